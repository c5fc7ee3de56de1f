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
	"gradbus/trainer/internal/exchange"
)

// heartbeatLate bounds the delay of a report, which keepTime sends with a heartbeat.
const heartbeatLate = 500 * time.Millisecond

// reports makes the session's telemetry report for watchers, once per TelemetryEvery. A goroutine of its own makes it
// from counters that exist in any case, under locks held briefly.
//
// keepTime requests a report just before a heartbeat, which then contains it: both are one message, so no watcher is
// woken for a report alone, which costs more than the report. A heartbeat never waits for a report; a late report is
// sent with a heartbeat of its own. If keepTime is blocked, for example by a shard that accepts nothing, the goroutine
// sends both.
type reports struct {
	due   chan struct{}          // capacity 1: a report is requested
	made  atomic.Pointer[[]byte] // report to be sent, as JSON
	asked time.Time              // time of the last request; used by keepTime
	once  sync.Once              // logs the first report that cannot be sent

	mu     sync.Mutex // guards the fields below, for the goroutine and the last report
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

// heartbeats sends heartbeats to the coordinator, and telemetry reports to watchers.
type heartbeats struct {
	*connection
	exchange     *exchanging
	stats        *statistics
	activity     *activity
	modules      *modules
	reducer      *reducer // nil if this trainer sums nothing for others
	fingerprints *fingerprints
	reports      *reports // nil if none are sent
}

// keepReports makes reports until the session ends. It is a goroutine.
func (h *heartbeats) keepReports() {
	p := h.reports
	defer p.disks.Close()
	late := time.NewTimer(0) // the first report is due at once
	defer late.Stop()
	for {
		select {
		case <-p.due:
			h.makeReport()
		case <-late.C:
			h.makeReport()
			if h.stuck(time.Now()) {
				break // stays silent, so that the deadline applies
			}
			if err := h.sendHeartbeat(); err != nil {
				h.fail(err)
			}
		case <-h.ctx.Done():
			return
		}
		late.Reset(h.config.TelemetryEvery + heartbeatLate)
	}
}

// tickHeartbeat is called every tickEvery. It sends the next heartbeat if it is due, or if a report cannot wait for it.
// sent is the time of the last heartbeat. It never waits.
func (h *heartbeats) tickHeartbeat(now time.Time, sent *time.Time) error {
	left := h.config.HeartbeatEvery - now.Sub(*sent)
	if h.heartbeatDue.Swap(false) {
		left = 0
	}
	made := false
	if p := h.reports; p != nil {
		since := now.Sub(p.asked)
		if since >= h.config.TelemetryEvery || since >= h.config.TelemetryEvery-3*tickEvery && left > 0 &&
			left <= 2*tickEvery {
			p.asked = now
			select {
			case p.due <- struct{}{}:
			default: // one is already requested
			}
		}
		made = p.made.Load() != nil
	}
	if left > 0 && (!made || left <= 3*tickEvery) {
		return nil
	}
	*sent = now
	if err := h.sendHeartbeat(); err != nil {
		return err
	}
	return h.sendReport()
}

// sendHeartbeat sends a heartbeat, with the report if there is one.
func (h *heartbeats) sendHeartbeat() error {
	frame, err := h.heartbeat()
	if err != nil {
		return err
	}
	return publish(h.control, h.subject(fabric.KindHeartbeat, schema.All), frame)
}

// heartbeat returns a heartbeat with the report, or without it if no frame has room for it.
func (h *heartbeats) heartbeat() ([]byte, error) {
	if p := h.reports; p != nil {
		if report := p.made.Swap(nil); report != nil {
			frame, err := schema.EncodeHeartbeat(h.signHead(), *report)
			if err == nil && len(frame) <= h.control.PayloadBytesMax() {
				return frame, nil
			}
			h.reportFailed(cmp.Or(err, fabric.ErrPayload))
		}
	}
	return schema.EncodeHeartbeat(h.signHead(), nil)
}

// makeReport makes a report of the current state. It replaces a report that was not sent.
func (h *heartbeats) makeReport() {
	p := h.reports
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Serial++
	p.report.NowMS, p.report.EveryMS = time.Now().UnixMilli(), max(1, h.config.TelemetryEvery.Milliseconds())
	h.fillReport(&p.body)
	p.body.Process, p.body.Disks = p.meter.Read(), p.disks.Read()
	report, err := schema.EncodeTelemetry(&p.report)
	if err != nil {
		h.reportFailed(err)
		return
	}
	p.made.Store(&report)
}

// reportFailed logs the first error. A missing report does not end a job.
func (h *heartbeats) reportFailed(err error) {
	h.reports.once.Do(func() {
		h.config.Log.Warn("report not sent", "job", h.job.Name, "member", h.joined.Member, "err", err)
	})
}

// sendLastReport reports the end of a session, so that sessions shorter than a second are seen.
func (h *heartbeats) sendLastReport() {
	if h.reports == nil || h.control == nil || h.ctx.Err() != nil {
		return
	}
	h.makeReport()
	if err := h.sendHeartbeat(); err != nil {
		h.reportFailed(err)
	}
}

// fillReport writes the session's state.
func (h *heartbeats) fillReport(t *schema.TrainerReport) {
	h.stats.mu.Lock()
	stats := h.stats.counters
	t.Loss, t.GradientNorm, t.GradientBatch = h.stats.loss, h.stats.norm, h.stats.normOf
	t.Replicas = append(t.Replicas[:0], h.fingerprints.digests...)
	h.stats.mu.Unlock()
	t.RunID, t.Batch, t.Planned = h.joined.RunID, h.newest(), schema.Batch(h.planned.Load())
	t.Batches, t.Samples, t.Behind, t.LanesSkipped = stats.batches, stats.samples, stats.behind, stats.lanesSkipped
	if len(h.modules.all) > 0 { // they have versions of their own, which no batch of the job makes
		t.Hosted, t.Batch = t.Planned == 0 && h.modules.passes.training(time.Now()), max(t.Batch, schema.Batch(stats.batches))
	}
	t.KeysSeconds, t.LookupSeconds, t.ComputeSeconds = seconds(stats.keysTime), seconds(stats.lookupTime),
		seconds(stats.computeTime)
	t.SendSeconds, t.ResultSeconds = seconds(stats.sendTime), seconds(stats.resultTime)
	t.LookupsRepeated, t.Pulls = stats.lookupsRepeated, stats.pulls
	c := get(h.exchange, (*exchange.Exchange).Counts)
	t.Results, t.ResultsRepeated, t.ResultsByRows = c.Taken, c.Repeated, c.ByRows
	h.fillTraffic(t)
	var since time.Duration
	t.Doing, since = h.activity.now(h.since())
	t.DoingMS = since.Milliseconds()
	t.AwaitedShard = h.awaited(t.Doing)
	if h.config.GPUs != nil {
		t.GPUs = h.config.GPUs()
	}
	if v, ok := h.config.Backend.(*cuda.Verified); ok {
		t.Verification = schema.VerificationOf(v, t.GPUs)
	}
}

// fillTraffic writes the counters of the connections and windows to all owners.
func (h *heartbeats) fillTraffic(t *schema.TrainerReport) {
	t.Traffic = schema.Traffic{Dropped: h.faults.Load(), Connected: h.connected()}
	for _, conn := range h.conns() {
		c := conn.Stats()
		t.Traffic.BytesSent, t.Traffic.BytesReceived = t.Traffic.BytesSent+c.BytesSent, t.Traffic.BytesReceived+c.BytesReceived
		t.Traffic.MessagesSent += c.MessagesSent
		t.Traffic.MessagesReceived += c.MessagesReceived
		t.Traffic.Reconnects, t.Traffic.Dropped = t.Traffic.Reconnects+c.Reconnects, t.Traffic.Dropped+c.Dropped
	}
	t.Links, t.GradientFrames, t.Resent = t.Links[:0], 0, 0
	for i, l := range h.links {
		if l.outbox == nil {
			continue
		}
		o := l.outbox.State()
		t.GradientFrames += o.Frames
		t.Resent += resent(o.OutboxStats)
		if len(t.Links) < schema.LinksMax {
			t.Links = append(t.Links, schema.LinkReport{Shard: i, PendingBytes: int64(o.PendingBytes),
				WindowBytes: int64(o.WindowBytes), Frames: o.Frames, Resent: resent(o.OutboxStats),
				RoundTrip: seconds(o.RoundTrip)})
		}
	}
}

func seconds(d time.Duration) schema.Real { return schema.Real(max(0, d.Seconds())) }

// addLoss adds a batch's sum of the losses over this trainer's samples, and sets the last mean. The caller holds mu of
// statistics.
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

// activity is the current activity of the goroutine that calls Run, and its beginning, in one word. That goroutine
// stores it several times per batch; reports read it. Zero means joining since the session was made.
type activity struct {
	epoch time.Time
	word  atomic.Uint64 // time since epoch in ns, times 8, plus a doing
}

// begin records that activity d begins now.
func (a *activity) begin(d doing) { a.beginAt(d, time.Now()) }

// beginAt is begin at a known time.
func (a *activity) beginAt(d doing, now time.Time) {
	a.word.Store(uint64(max(0, now.Sub(a.epoch)))<<3 | uint64(d))
}

// now returns the activity at a time since epoch, and its duration so far.
func (a *activity) now(at time.Duration) (schema.Doing, time.Duration) {
	word := a.word.Load()
	return doingNames[word&7], max(0, at-time.Duration(word>>3))
}

// sendReport tells the coordinator for which trainers this trainer's rounds wait, as often as heartbeats. So a trainer
// that sends heartbeats and no gradients is found even if no shard of a ps waits for it.
func (h *heartbeats) sendReport() error {
	if h.reducer == nil {
		return nil
	}
	report := &schema.Report{Ready: true, Waiting: h.reducer.waiting()}
	frame, err := schema.EncodeControl(h.head(h.newest()), schema.Control{Report: report})
	if err != nil {
		return err
	}
	return publish(h.control, h.subject(fabric.KindCtl, schema.Coordinator), frame)
}

// awaited returns the first shard for which a session waits: one that has not answered a lookup, or whose results are
// missing. It returns nil if the session waits for no shard, or for another trainer.
func (h *heartbeats) awaited(doing schema.Doing) *int {
	owner := -1
	if doing == schema.DoingLookup || doing == schema.DoingResult {
		h.exchange.do(func(x *exchange.Exchange) { owner, _ = x.Lacking() })
	}
	if owner < 0 || owner >= h.joined.Shards {
		return nil
	}
	return &owner
}

func resent(o fabric.OutboxStats) uint64 { return o.Gaps + o.Timeout + o.Back }

// counters count what a session has done since it joined. Times are wall time of the goroutine that calls Run. They add
// up to the time between the first batch and the last, except for report.
type counters struct {
	batches, samples uint64
	lanesSkipped     uint64
	behind           uint64

	keysTime    time.Duration // asking the workload for keys, finding the distinct ones, building lookups
	lookupTime  time.Duration // waiting for rows
	computeTime time.Duration // in the workload, and summing lanes
	sendTime    time.Duration // building gradient frames, and publishing those for which the windows have room
	resultTime  time.Duration // waiting for results after everything was sent

	lookupsRepeated uint64
	pulls           uint64
}

func (t *counters) add(samples int, times *batchTimes) {
	t.batches++
	t.samples += uint64(samples)
	t.keysTime += times.keys
	t.lookupTime += times.lookup
	t.computeTime += times.compute
	t.sendTime += times.send
	t.resultTime += times.result
}

// statistics are the counters of one run, safe for concurrent use.
type statistics struct {
	mu sync.Mutex // guards the fields below, and digests of fingerprints. A leaf
	counters
	loss   schema.TrainLoss
	norm   *schema.Real // gradient norm of the last measured batch; nil before the first
	normOf schema.Batch
}

// count calls add with the lock held.
func (s *statistics) count(add func(*counters)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counters)
}

// batchTimes are the times of one batch's phases.
type batchTimes struct {
	begin, last                         time.Time
	keys, lookup, compute, send, result time.Duration
}

func startTimes() *batchTimes {
	now := time.Now()
	return &batchTimes{begin: now, last: now}
}

// restart begins the batch's time again, after a wait.
func (t *batchTimes) restart() { t.lap(); t.begin = t.last }

// lap returns the time since the previous lap.
func (t *batchTimes) lap() time.Duration {
	now := time.Now()
	lap := now.Sub(t.last)
	t.last = now
	return lap
}
