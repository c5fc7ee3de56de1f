package ps

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gradbus"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
)

const (
	telemetryEvery = time.Second
	// telemetryLate is how long a report waits for the control loop's news beyond the time at which they are due; it then
	// says what it has.
	telemetryLate = telemetryEvery / 2
	// reportsMax and reportBytesMax bound the reports of others that wait to be read: some seconds of those of the largest
	// job.
	reportsMax     = 2 * 4096
	reportBytesMax = 16 << 20
	// reportsPerSender bounds those of one sender in a second, who sends one; strangersMax bounds the senders in a second
	// of whom nothing here tells that they exist. strangersShare is their part of what waits to be read.
	reportsPerSender = 4
	strangersMax     = 4096
	strangersShare   = 2 // a half
)

// reporter sends this ps's own heartbeat once a second, with what it knows of itself and of its jobs, and hears the
// reports of all others for who asked for them (Options.Telemetry). It has two goroutines, one for either, and neither
// control loop nor shard ever waits for them: the control loop leaves what it knows in jobs, and shards answer the
// control loop's question.
type reporter struct {
	server  *Server
	gpus    func() []schema.GPUReport // may be nil
	page    string
	started time.Time
	host    string
	meter   *process.Meter
	writes  []process.Folder
	disks   *process.Disks
	serial  uint64
	failed  bool // to send one, which the log has said

	jobs atomic.Pointer[jobReports] // as of the control loop's last tick
	last atomic.Pointer[[]byte]     // report, as JSON
	wake chan struct{}              // has room for one: jobs is new

	hearMu sync.Mutex // hear is called with it, so that it is never called twice at once
	hear   func(schema.JobName, schema.Member, *schema.Telemetry)
	heard  chan *heardReport
	bytes  atomic.Int64 // of those in heard
	gate   senderGate   // of the goroutine that receives

	ended sync.WaitGroup
}

// heardReport is a heartbeat that has a report.
type heardReport struct {
	job  schema.JobName
	from schema.Member
	view schema.View
}

func newReporter(s *Server, options *Options) *reporter {
	return &reporter{server: s, gpus: options.GPUs, page: options.Page, started: time.Now(),
		host: schema.Clip(process.Host()), meter: process.NewMeter(), writes: options.Writes,
		wake: make(chan struct{}, 1), hear: options.Telemetry, heard: make(chan *heardReport, reportsMax)}
}

// start begins to say and to hear. The goroutines end with ctx.
func (p *reporter) start(ctx context.Context) {
	p.disks = process.WatchDisks(p.writes)
	p.ended.Go(func() { p.say(ctx) })
	if p.hear != nil {
		p.ended.Go(func() { p.read(ctx) })
	}
}

// serviceName is what a ps is to tools that look for services at a NATS server.
const serviceName = "gradbus-ps"

// announce makes this ps known to such tools.
func (p *reporter) announce() error {
	self := &p.server.registry.self
	return p.server.control.Service(fabric.ServiceConfig{Name: serviceName, Version: gradbus.Version,
		Description: "parameter server on " + self.Host,
		Metadata:    map[string]string{"id": self.ID, "url": p.url(), "page": p.page, "shards": strconv.Itoa(self.Shards)},
		Endpoint:    "report", Subject: serviceName + "." + self.ID + ".report",
		Answer: func() []byte {
			if last := p.last.Load(); last != nil {
				return *last
			}
			return nil
		}})
}

// look tells that jobs is new. It never waits.
func (p *reporter) look(jobs *jobReports) {
	p.jobs.Store(jobs)
	nudge(p.wake)
}

// say is the goroutine that sends, as soon as the control loop has news, and after a while without.
func (p *reporter) say(ctx context.Context) {
	defer p.disks.Close()
	late := time.NewTimer(telemetryEvery + telemetryLate)
	defer late.Stop()
	for {
		select {
		case <-p.wake:
		case <-late.C:
		case <-ctx.Done():
			return
		}
		p.send(time.Now())
		late.Reset(telemetryEvery + telemetryLate)
	}
}

// send sends the heartbeat of this ps, with how it fares, and tells whoever watches here.
func (p *reporter) send(now time.Time) {
	s := p.server
	p.serial++
	report := &schema.Telemetry{Serial: p.serial, StartedMS: p.started.UnixMilli(), NowMS: now.UnixMilli(),
		EveryMS: telemetryEvery.Milliseconds(),
		Host:    p.host, PID: os.Getpid(), Server: p.fill(now)}
	p.tell(schema.TelemetryJob, s.member, report)
	frame, err := p.encode(report)
	at := fabric.At(string(schema.TelemetryJob), string(s.member), fabric.KindHeartbeat, string(schema.All))
	err = errors.Join(err, s.control.Send(at, frame))
	if err != nil && !p.failed && !errors.Is(err, fabric.ErrLost) && !errors.Is(err, fabric.ErrClosed) {
		p.failed = true
		s.log.Warn("report not sent", "server", s.registry.self.ID, "err", err)
	}
}

// encode makes the heartbeat with a report, without what may be left out where all does not fit. Where there is an
// error the heartbeat is without a report.
func (p *reporter) encode(report *schema.Telemetry) (frame []byte, err error) {
	most := p.server.control.PayloadBytesMax()
	for _, shrink := range []func(*schema.ServerReport){nil, leaveOutEnded, leaveOutBuckets, leaveOutQuiet,
		leaveOutShards} {
		if shrink != nil {
			server, smaller := *report.Server, *report
			shrink(&server)
			smaller.Server = &server
			report = &smaller
		}
		body, failed := schema.EncodeTelemetry(report)
		if err = failed; err != nil {
			continue
		}
		if frame, err = schema.EncodeHeartbeat(schema.Head{}, body); err == nil && len(frame) <= most {
			p.last.Store(&body)
			return frame, nil
		}
	}
	frame, _ = schema.EncodeHeartbeat(schema.Head{}, nil)
	return frame, cmp.Or(err, fabric.ErrPayload)
}

// leaveOutEnded leaves out what shards that have ended had to say.
func leaveOutEnded(s *schema.ServerReport) { s.Ended = nil }

// leaveOutBuckets leaves out what shards have to say of each bucket.
func leaveOutBuckets(s *schema.ServerReport) {
	s.Shards = slices.Clone(s.Shards)
	for i := range s.Shards {
		s.Shards[i].Buckets = nil
	}
}

// leaveOutQuiet leaves out the members of whom nothing is to be said.
func leaveOutQuiet(s *schema.ServerReport) {
	const quietMS = 3000
	jobs := make([]schema.JobReport, len(s.Jobs))
	for i, j := range s.Jobs {
		all := j.Members
		j.Members = nil
		for _, m := range all {
			if (m.First || m.Gone || m.Lost || m.SilentMS > quietMS) && len(j.Members) < 64 {
				j.Members = append(j.Members, m)
			}
		}
		jobs[i] = j
	}
	s.Jobs = jobs
}

// leaveOutShards leaves out what shards and ended jobs have to say, and what was refused.
func leaveOutShards(s *schema.ServerReport) {
	s.Shards, s.GPUs, s.Refused = nil, nil, nil
	s.Jobs = slices.Clone(s.Jobs[:min(len(s.Jobs), 16)])
	for i := range s.Jobs {
		if b := s.Jobs[i].Standby; b != nil && len(b.Kept) > 0 {
			less := *b
			less.Kept, s.Jobs[i].Standby = nil, &less
		}
	}
	if s.StandsBy != nil {
		fewer := *s.StandsBy
		fewer.Jobs = slices.Clone(fewer.Jobs[:min(len(fewer.Jobs), 16)])
		for i := range fewer.Jobs {
			fewer.Jobs[i].Of = nil
		}
		s.StandsBy = &fewer
	}
}

// url is where the data server of this ps is.
func (p *reporter) url() string {
	if at := p.server.registry.self.URL; at != "" {
		return at
	}
	return p.server.announced("")
}

// fill is what this ps says of itself.
func (p *reporter) fill(now time.Time) *schema.ServerReport {
	s := p.server
	state, _ := s.state.Load().(schema.ServerState)
	t := &schema.ServerReport{
		ID: s.registry.self.ID, State: state, Version: gradbus.Version + "+" + schema.Fingerprint[:8], URL: p.url(),
		Page:     p.page,
		Backend:  schema.Clip(cuda.Describe(s.backend)),
		Calls:    cuda.Calls(s.backend),
		Deadline: schema.Real(s.config.Deadline.Seconds()), ControlLost: s.controlLost.Load(), Reasons: map[string]uint64{},
		Memory: schema.MemoryReport{PromisedBytes: max(0, s.config.MemoryBytesMax-s.freeBytes.Load()),
			MaxBytes: s.config.MemoryBytesMax},
		Process: p.meter.Read(), Disks: p.disks.Read(), SlowReaders: uint64(s.nats.SlowConsumers()),
	}
	var stats Stats
	s.counters.read(&stats)
	t.Frames, t.Bytes, t.Dropped = stats.Frames, stats.Bytes, stats.Dropped
	for r := schema.ReasonOK + 1; int(r) < schema.ReasonCount; r++ {
		t.Reasons[r.String()] = stats.Reasons[r]
	}
	if !s.embedsControl() {
		t.Control = schema.Clip(s.control.Address())
	}
	if p.gpus != nil {
		t.GPUs = p.gpus()
	}
	if v, ok := s.backend.(*cuda.Verified); ok {
		t.Verification = schema.VerificationOf(v, t.GPUs)
	}
	t.Traffic = p.traffic()
	if jobs := p.jobs.Load(); jobs != nil {
		t.Jobs, t.Refused = jobs.at(now), jobs.refused
	}
	t.Shards, t.Ended = p.shards(), s.ended.report(s.now(), s.config.StartTimeout, *s.jobs.Load())
	switch {
	case s.standby != nil:
		t.StandsBy = s.standby.report(s.now())
	case s.keeper != nil:
		t.StandsBy = s.keeper.report(!t.ControlLost)
	}
	return t
}

// traffic is what went over the connections of this ps.
func (p *reporter) traffic() schema.Traffic {
	s := p.server
	n := s.links.stats()
	n.Add(s.control.Stats())
	return schema.Traffic{
		Connected: !s.controlLost.Load(), BytesSent: n.BytesSent, BytesReceived: n.BytesReceived,
		MessagesSent: n.MessagesSent, MessagesReceived: n.MessagesReceived, Reconnects: n.Reconnects, Dropped: n.Dropped,
	}
}

// tell calls who asked for reports.
func (p *reporter) tell(job schema.JobName, from schema.Member, report *schema.Telemetry) {
	if p.hear == nil {
		return
	}
	p.hearMu.Lock()
	defer p.hearMu.Unlock()
	p.hear(job, from, report)
}

// receive takes a heartbeat that others have sent, whose report nobody waits for: what finds no room is dropped and
// counted. It never waits.
func (p *reporter) receive(subject *fabric.Subject, view *schema.View) {
	if p.hear == nil || len(view.Body()) == 0 || subject.From == string(p.server.member) &&
		subject.Job == string(schema.TelemetryJob) {
		return // our own is told where it is made
	}
	bytes, share, known := int64(len(view.Bytes())), 1, p.knows(subject.Job, subject.From)
	if !known {
		share = strangersShare
	}
	if p.gate.allow(time.Now(), subject.Job, subject.From, known) {
		if p.bytes.Add(bytes) <= int64(reportBytesMax/share) && len(p.heard) < reportsMax/share {
			select {
			case p.heard <- &heardReport{schema.JobName(subject.Job), schema.Member(subject.From), *view}:
				return
			default:
			}
		}
		p.bytes.Add(-bytes)
	}
	p.server.counters.reportsDropped.Add(1)
}

// knows reports whether a sender is a trainer of a job that is coordinated, or has shards, here, or a ps of the
// registry.
func (p *reporter) knows(job, from string) bool {
	if id, isServer := strings.CutPrefix(from, "p-"); isServer {
		return job == string(schema.TelemetryJob) && slices.Contains(p.server.Announced(), id)
	}
	if a := (*p.server.jobs.Load())[schema.JobName(job)]; a != nil {
		return a.manifest.HasTrainer(schema.Member(from))
	}
	if jobs := p.jobs.Load(); jobs != nil {
		for i := range jobs.jobs {
			if j := &jobs.jobs[i]; string(j.Name) == job {
				return (&schema.Job{Trainers: j.Trainers}).HasTrainer(schema.Member(from))
			}
		}
	}
	return false
}

// read is the goroutine that reads the reports of others. What is none, or not its sender's, is counted by reason and
// forgotten.
func (p *reporter) read(ctx context.Context) {
	for {
		select {
		case h := <-p.heard:
			p.bytes.Add(-int64(len(h.view.Bytes())))
			report, err := p.open(h)
			if err != nil {
				p.server.counters.count(schema.ReasonOf(err))
				continue
			}
			p.tell(h.job, h.from, report)
		case <-ctx.Done():
			return
		}
	}
}

func (p *reporter) open(h *heardReport) (*schema.Telemetry, error) {
	report, err := schema.DecodeTelemetry(&h.view)
	if err != nil {
		return nil, err
	}
	if run := h.view.Head().Job; report.Trainer != nil && report.Trainer.RunID != run {
		return nil, schema.Refuse(schema.ReasonForeignJob, "report of run %d under the head of run %d",
			report.Trainer.RunID, run)
	}
	return report, report.CheckFrom(h.job, h.from)
}

// senderGate lets some reports of each sender pass in each second. Known senders are at most all trainers and ps. Of
// strangers, whose names cost nothing, any one is forgotten where there are too many: a new one is never shut out.
type senderGate struct {
	second           int64
	known, strangers map[[2]string]int // reports in this second, by job and member
}

func (g *senderGate) allow(now time.Time, job, from string, known bool) bool {
	if second := now.Unix(); second != g.second || g.known == nil {
		g.second, g.known, g.strangers = second, map[[2]string]int{}, map[[2]string]int{}
	}
	passed := g.strangers
	if known {
		passed = g.known
	}
	key := [2]string{job, from}
	n, seen := passed[key]
	if n == reportsPerSender {
		return false
	}
	if !seen && !known && len(passed) >= strangersMax {
		for one := range passed {
			delete(passed, one)
			break
		}
	}
	passed[key] = n + 1
	return true
}
