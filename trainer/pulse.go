package trainer

import (
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

// pulseLate is for how long beyond its time a pulse may wait for keepTime, which sends it with a beat.
const pulseLate = 500 * time.Millisecond

// pulses is what a session says of itself, once a second, to whoever watches. A goroutine of its own puts it together, from
// counters that the session keeps in any case and under locks that are held for moments; nothing ever waits for it, and what
// cannot be sent is not said.
//
// keepTime says when, just before a beat, and sends what was put together right before that beat: so both are one write
// here and one reading at the server, and nobody is woken for the pulse alone, which takes more than the pulse itself. Where keepTime is held
// up, as by a shard that takes nothing, the goroutine sends pulses itself.
type pulses struct {
	due   chan struct{} // has room for one: a pulse is to be put together
	asked time.Time     // when that was said last; keepTime's

	mu     sync.Mutex // guards what follows; of the goroutine, of keepTime, which tries, and of the last one
	pulse  schema.Pulse
	body   schema.TrainerPulse
	meter  *process.Meter
	frame  []byte // put together and not sent yet
	failed bool   // to send one, which the log has said
	disks  *process.Disks
}

func newPulses(started time.Time, backend cuda.Backend) *pulses {
	p := &pulses{due: make(chan struct{}, 1), asked: time.Now(), meter: process.NewMeter()}
	p.pulse = schema.Pulse{StartedMS: started.UnixMilli(), Host: schema.Clip(process.Host()), PID: os.Getpid(), Trainer: &p.body}
	p.body.Backend = schema.Clip(cuda.Describe(backend))
	return p
}

// keepPulses is the goroutine that puts them together, until the session ends.
func (s *Session) keepPulses() {
	defer s.clock.Done()
	p := s.pulses
	defer p.disks.Close()
	late := time.NewTimer(0) // the first at once
	defer late.Stop()
	for {
		select {
		case <-p.due:
			p.mu.Lock()
			s.makePulse()
			p.mu.Unlock()
		case <-late.C:
			s.sendPulse()
		case <-s.ctx.Done():
			return
		}
		late.Reset(s.config.PulseEvery + pulseLate)
	}
}

// passPulse is called every tickEvery, before the beat that is due at a time. It never waits.
func (s *Session) passPulse(now, beat time.Time) {
	p := s.pulses
	if p == nil {
		return
	}
	left, since := beat.Sub(now), now.Sub(p.asked)
	if since >= s.config.PulseEvery || since >= s.config.PulseEvery-3*tickEvery && left > 0 && left <= 2*tickEvery {
		p.asked = now
		select {
		case p.due <- struct{}{}:
		default: // it has yet to do so
		}
	}
	if left > 0 && left <= 3*tickEvery || !p.mu.TryLock() {
		return // with the beat, or on the next tick
	}
	defer p.mu.Unlock()
	s.publishPulse()
}

// sendPulse says how the session fares now.
func (s *Session) sendPulse() {
	if p := s.pulses; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.makePulse()
		s.publishPulse()
	}
}

// makePulse puts a pulse together, instead of one that was not sent. The lock is held.
func (s *Session) makePulse() {
	p := s.pulses
	p.pulse.Serial++
	p.pulse.NowMS, p.pulse.EveryMS = time.Now().UnixMilli(), max(1, s.config.PulseEvery.Milliseconds())
	s.fillPulse(&p.body)
	p.body.Process, p.body.Disks = p.meter.Read(), p.disks.Read()
	var err error
	p.frame, err = schema.EncodePulse(s.head(p.body.Batch), &p.pulse)
	s.pulseFailed(err)
}

// publishPulse sends what was put together, once. The lock is held.
func (s *Session) publishPulse() {
	if frame := s.pulses.frame; frame != nil {
		s.pulses.frame = nil
		s.pulseFailed(publish(s.control, s.subject(fabric.KindPulse, schema.All), frame))
	}
}

// pulseFailed logs the first error: a pulse more or less is nothing to end a job for. The lock is held.
func (s *Session) pulseFailed(err error) {
	if p := s.pulses; err != nil && !p.failed && s.ctx.Err() == nil {
		p.failed = true
		s.config.Log.Warn("pulse not sent", "job", s.job.Name, "member", s.joined.Member, "err", err)
	}
}

// sendLastPulse says how a session ends, so that one that was shorter than a second is seen, too.
func (s *Session) sendLastPulse() {
	if s.control != nil && s.ctx.Err() == nil {
		s.sendPulse()
	}
}

// fillPulse writes what the session knows of itself.
func (s *Session) fillPulse(t *schema.TrainerPulse) {
	stats := s.Stats()
	t.RunID, t.Batch, t.Planned = s.joined.RunID, s.newest(), schema.Batch(s.planned.Load())
	t.Batches, t.Samples, t.Behind = stats.Batches, stats.Samples, stats.Behind
	if len(s.modules) > 0 { // versions of their own, which no batch of the job makes
		t.Hosted, t.Batch = t.Planned == 0 && s.passes.training(time.Now()), max(t.Batch, schema.Batch(stats.Batches))
	}
	t.KeysSeconds, t.LookupSeconds, t.ComputeSeconds = seconds(stats.KeysTime), seconds(stats.LookupTime), seconds(stats.ComputeTime)
	t.SendSeconds, t.ResultSeconds = seconds(stats.SendTime), seconds(stats.ResultTime)
	t.LanesSkipped = stats.LanesSkipped
	t.LookupsRepeated, t.Pulls, t.GradientFrames, t.Resent = stats.LookupsRepeated, stats.Pulls, stats.GradientFrames, stats.Resent
	t.Results, t.ResultsRepeated = stats.Results, stats.ResultsRepeated
	t.Traffic = schema.Traffic{BytesSent: stats.BytesSent, BytesReceived: stats.BytesReceived, MessagesSent: stats.MessagesSent,
		MessagesReceived: stats.MessagesReceived, Reconnects: stats.Reconnects, Dropped: stats.Dropped, Connected: s.connected()}
	s.statsMu.Lock()
	t.Loss, t.GradientNorm, t.GradientBatch = s.loss, s.norm.value, s.norm.batch
	t.Replicas = append(t.Replicas[:0], s.fingerprints.digests...)
	s.statsMu.Unlock()
	var since time.Duration
	t.Doing, since = s.activity.now(s.since())
	t.DoingMS = since.Milliseconds()
	t.AwaitedShard, t.Awaited = s.awaited(t.Doing)
	t.Links = s.linkPulses(t.Links)
	if s.config.GPUs != nil {
		t.GPUs = s.config.GPUs()
	}
	if v, ok := s.config.Backend.(*cuda.Verified); ok {
		t.Verification = schema.VerificationOf(v, t.GPUs)
	}
}

func seconds(d time.Duration) schema.Real { return schema.Real(max(0, d.Seconds())) }

// connected says that no server is out of reach.
func (s *Session) connected() bool {
	if s.lost.Load() != 0 {
		return false
	}
	for _, d := range s.servers {
		if d.lost.Load() != 0 {
			return false
		}
	}
	return true
}

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

var doingNames = [...]schema.Doing{schema.DoingJoining, schema.DoingKeys, schema.DoingLookup, schema.DoingCompute, schema.DoingSend, schema.DoingResult, schema.DoingOther}

// activity is what the goroutine that calls Run does, and since when: one word, which that goroutine stores some times a batch
// and a pulse reads. Zero is joining since the session was made.
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
