package trainer

import (
	"cmp"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
)

// heartbeatLate is how long beyond its time a report may wait for keepTime, which sends it with a heartbeat.
const heartbeatLate = 500 * time.Millisecond

// reports makes what a session says of itself, once a second, to whoever watches. A goroutine of its own makes a
// report, from counters that the session keeps in any case and under locks that are held for moments.
//
// keepTime asks for one just before a heartbeat, which then takes it along: both are one message, and nobody is woken
// for the report alone, which costs more than the report itself. A heartbeat never waits for a report: one that is late
// leaves with a heartbeat of its own. Where keepTime is held up, as by a shard that takes nothing, the goroutine sends
// both.
type reports struct {
	due   chan struct{}          // has room for one: a report is to be made
	made  atomic.Pointer[[]byte] // and not sent yet, as JSON
	asked time.Time              // when one was asked for last; keepTime's
	once  sync.Once              // the log has said that one cannot be sent

	mu     sync.Mutex // guards what follows, for the goroutine and the last report
	report schema.Telemetry
	body   schema.TrainerReport
	meter  *process.Meter
	disks  *process.Disks
}

func newReports(started time.Time, backend cuda.Backend) *reports {
	p := &reports{due: make(chan struct{}, 1), asked: time.Now(), meter: process.NewMeter()}
	p.report = schema.Telemetry{StartedMS: started.UnixMilli(), Host: schema.Clip(process.Host()), PID: os.Getpid(),
		Trainer: &p.body}
	p.body.Backend = schema.Clip(cuda.Describe(backend))
	return p
}

// keepReports is the goroutine that makes them, until the session ends.
func (s *membership) keepReports() {
	defer s.clock.Done()
	p := s.reports
	defer p.disks.Close()
	late := time.NewTimer(0) // the first at once
	defer late.Stop()
	for {
		select {
		case <-p.due:
			s.makeReport()
		case <-late.C:
			s.makeReport()
			if s.stuck(time.Now()) {
				break // and is silent, so that the deadline finds it
			}
			if err := s.sendHeartbeat(); err != nil {
				s.fail(err)
			}
		case <-s.ctx.Done():
			return
		}
		late.Reset(s.config.TelemetryEvery + heartbeatLate)
	}
}

// tickHeartbeat is called every tickEvery, with the time at which the last heartbeat was sent, and sends the next one
// when it is due, or a report is that cannot wait for it. It never waits.
func (s *membership) tickHeartbeat(now time.Time, sent *time.Time) error {
	left := s.config.HeartbeatEvery - now.Sub(*sent)
	if s.speaks.Swap(false) {
		left = 0
	}
	made := false
	if p := s.reports; p != nil {
		since := now.Sub(p.asked)
		if since >= s.config.TelemetryEvery || since >= s.config.TelemetryEvery-3*tickEvery && left > 0 &&
			left <= 2*tickEvery {
			p.asked = now
			select {
			case p.due <- struct{}{}:
			default: // it has yet to do so
			}
		}
		made = p.made.Load() != nil
	}
	if left > 0 && (!made || left <= 3*tickEvery) {
		return nil
	}
	*sent = now
	if err := s.sendHeartbeat(); err != nil {
		return err
	}
	return s.sendReport()
}

// sendHeartbeat says that this trainer is there, and how it fares where a report is made.
func (s *membership) sendHeartbeat() error {
	frame, err := s.heartbeat()
	if err != nil {
		return err
	}
	return publish(s.control, s.subject(fabric.KindHeartbeat, schema.All), frame)
}

// heartbeat is with the report that is made, unless no frame can have it.
func (s *membership) heartbeat() ([]byte, error) {
	if p := s.reports; p != nil {
		if report := p.made.Swap(nil); report != nil {
			frame, err := schema.EncodeHeartbeat(s.signHead(), *report)
			if err == nil && len(frame) <= s.control.PayloadBytesMax() {
				return frame, nil
			}
			s.reportFailed(cmp.Or(err, fabric.ErrPayload))
		}
	}
	return schema.EncodeHeartbeat(s.signHead(), nil)
}

// makeReport makes a report of this moment, in place of one that was not sent.
func (s *membership) makeReport() {
	p := s.reports
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Serial++
	p.report.NowMS, p.report.EveryMS = time.Now().UnixMilli(), max(1, s.config.TelemetryEvery.Milliseconds())
	s.fillReport(&p.body)
	p.body.Process, p.body.Disks = p.meter.Read(), p.disks.Read()
	report, err := schema.EncodeTelemetry(&p.report)
	if err != nil {
		s.reportFailed(err)
		return
	}
	p.made.Store(&report)
}

// reportFailed logs the first error: a report more or less is nothing to end a job for.
func (s *membership) reportFailed(err error) {
	s.reports.once.Do(func() {
		s.config.Log.Warn("report not sent", "job", s.job.Name, "member", s.joined.Member, "err", err)
	})
}

// sendLastReport says how a session ends, so that one that was shorter than a second is seen, too.
func (s *membership) sendLastReport() {
	if s.reports == nil || s.control == nil || s.ctx.Err() != nil {
		return
	}
	s.makeReport()
	if err := s.sendHeartbeat(); err != nil {
		s.reportFailed(err)
	}
}

// fillReport writes what the session knows of itself.
func (s *membership) fillReport(t *schema.TrainerReport) {
	stats := s.Stats()
	t.RunID, t.Batch, t.Planned = s.joined.RunID, s.newest(), schema.Batch(s.planned.Load())
	t.Batches, t.Samples, t.Behind = stats.Batches, stats.Samples, stats.Behind
	if len(s.modules) > 0 { // versions of their own, which no batch of the job makes
		t.Hosted, t.Batch = t.Planned == 0 && s.passes.training(time.Now()), max(t.Batch, schema.Batch(stats.Batches))
	}
	t.KeysSeconds, t.LookupSeconds, t.ComputeSeconds = seconds(stats.KeysTime), seconds(stats.LookupTime),
		seconds(stats.ComputeTime)
	t.SendSeconds, t.ResultSeconds = seconds(stats.SendTime), seconds(stats.ResultTime)
	t.LanesSkipped = stats.LanesSkipped
	t.LookupsRepeated, t.Pulls, t.GradientFrames, t.Resent = stats.LookupsRepeated, stats.Pulls, stats.GradientFrames,
		stats.Resent
	t.Results, t.ResultsRepeated = stats.Results, stats.ResultsRepeated
	t.Traffic = schema.Traffic{BytesSent: stats.BytesSent, BytesReceived: stats.BytesReceived,
		MessagesSent:     stats.MessagesSent,
		MessagesReceived: stats.MessagesReceived, Reconnects: stats.Reconnects, Dropped: stats.Dropped,
		Connected: s.connected()}
	s.statsMu.Lock()
	t.Loss, t.GradientNorm, t.GradientBatch = s.loss, s.norm.value, s.norm.batch
	t.Replicas = append(t.Replicas[:0], s.fingerprints.digests...)
	s.statsMu.Unlock()
	var since time.Duration
	t.Doing, since = s.activity.now(s.since())
	t.DoingMS = since.Milliseconds()
	t.AwaitedShard = s.awaited(t.Doing)
	t.Links = s.linkReports(t.Links)
	if s.config.GPUs != nil {
		t.GPUs = s.config.GPUs()
	}
	if v, ok := s.config.Backend.(*cuda.Verified); ok {
		t.Verification = schema.VerificationOf(v, t.GPUs)
	}
}

func seconds(d time.Duration) schema.Real { return schema.Real(max(0, d.Seconds())) }

// addLoss takes the sum of the losses of a batch over this trainer's samples, and its mean. statsMu is held.
func addLoss(l *schema.TrainLoss, sum float64, samples int) {
	if samples == 0 {
		return
	}
	l.Last = schema.Real(sum / float64(samples))
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		l.Bad++
		return
	}
	l.Sum += schema.Real(sum)
	l.Samples += uint64(samples)
}

// doing is a schema.Doing as a number.
type doing uint64

const (
	joining doing = iota
	seekingKeys
	lookingUp
	computing
	sending
	awaitingResults
	elsewhere
)

var doingNames = [...]schema.Doing{schema.DoingJoining, schema.DoingKeys, schema.DoingLookup, schema.DoingCompute,
	schema.DoingSend, schema.DoingResult, schema.DoingOther}

// activity is what the goroutine that calls Run does, and since when: one word, which that goroutine stores some times
// a batch and a report reads. Zero is joining since the session was made.
type activity struct {
	epoch time.Time
	word  atomic.Uint64 // time since epoch in ns, times 8, and a doing
}

// begin notes what is done from now on.
func (a *activity) begin(d doing) { a.beginAt(d, time.Now()) }

// beginAt is begin for who knows the time.
func (a *activity) beginAt(d doing, now time.Time) {
	a.word.Store(uint64(max(0, now.Sub(a.epoch)))<<3 | uint64(d))
}

// now is what is done at a time since epoch, and for how long it has been.
func (a *activity) now(at time.Duration) (schema.Doing, time.Duration) {
	word := a.word.Load()
	return doingNames[word&7], max(0, at-time.Duration(word>>3))
}
