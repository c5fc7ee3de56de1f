package ps

import (
	"context"
	"errors"
	"os"
	"strconv"
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
	pulseEvery = time.Second
	// pulseLate is how long a pulse waits for the desk's news beyond the time at which they are due; it then says what it has.
	pulseLate = pulseEvery / 2
	// pulsesMax and pulseBytesMax bound the pulses of others that wait to be read: some seconds of those of the largest job.
	pulsesMax     = 2 * 4096
	pulseBytesMax = 16 << 20
	// pulsesPerSender bounds those of one sender in a second, who sends one; sendersMax bounds the senders in a second.
	pulsesPerSender = 4
	sendersMax      = 4 * 4096
)

// pulser says once a second what this ps knows of itself and of its jobs, and hears the pulses of all others for who asked for
// them (Options.Pulses). It has two goroutines, one for either, and neither desk nor shard ever waits for them: the desk
// leaves what it knows in jobs, and shards answer the desk's question.
type pulser struct {
	server  *Server
	gpus    func() []schema.GPUPulse // may be nil
	page    string
	started time.Time
	host    string
	meter   *process.Meter
	writes  []process.Folder
	disks   *process.Disks
	serial  uint64
	failed  bool // to send one, which the log has said

	jobs atomic.Pointer[jobPulses] // as of the desk's last tick
	last atomic.Pointer[[]byte]    // pulse, as JSON
	wake chan struct{}             // has room for one: jobs is new

	hearMu sync.Mutex // hear is called with it, so that it is never called twice at once
	hear   func(schema.JobName, schema.Member, *schema.Pulse)
	heard  chan heardPulse
	bytes  atomic.Int64 // of those in heard
	gate   senderGate   // of the goroutine that receives

	ended sync.WaitGroup
}

// heardPulse is a message that may hold a pulse.
type heardPulse struct {
	job  schema.JobName
	from schema.Member
	data []byte
}

func newPulser(s *Server, options *Options) *pulser {
	return &pulser{server: s, gpus: options.GPUs, page: options.Page, started: time.Now(), host: schema.Clip(process.Host()), meter: process.NewMeter(), writes: options.Writes,
		wake: make(chan struct{}, 1), hear: options.Pulses, heard: make(chan heardPulse, pulsesMax)}
}

// start begins to say and to hear. The goroutines end with ctx.
func (p *pulser) start(ctx context.Context) {
	p.disks = process.WatchDisks(p.writes)
	p.ended.Go(func() { p.say(ctx) })
	if p.hear != nil {
		p.ended.Go(func() { p.read(ctx) })
	}
}

// serviceName is what a ps is to tools that look for services at a NATS server.
const serviceName = "gradbus-ps"

// subscribe makes this ps known to such tools, and listens for the pulses of all jobs there will ever be, where somebody wants to
// know.
func (p *pulser) subscribe() error {
	self := &p.server.registry.self
	err := p.server.control.Service(fabric.ServiceConfig{Name: serviceName, Version: gradbus.Version, Description: "parameter server on " + self.Host,
		Metadata: map[string]string{"id": self.ID, "url": p.url(), "page": p.page, "shards": strconv.Itoa(self.Shards)},
		Endpoint: "pulse", Subject: serviceName + "." + self.ID + ".pulse",
		Answer: func() []byte {
			if last := p.last.Load(); last != nil {
				return *last
			}
			return nil
		}})
	if err != nil {
		return err
	}
	if p.hear == nil {
		return nil
	}
	return p.server.control.Subscribe(fabric.Pattern(fabric.Any, fabric.Any, fabric.KindPulse, string(schema.All), false), p.receive)
}

// look tells that jobs is new. It never waits.
func (p *pulser) look(jobs *jobPulses) {
	p.jobs.Store(jobs)
	select {
	case p.wake <- struct{}{}:
	default: // it has yet to look
	}
}

// say is the goroutine that sends, as soon as the desk has news, and after a while without.
func (p *pulser) say(ctx context.Context) {
	defer p.disks.Close()
	late := time.NewTimer(pulseEvery + pulseLate)
	defer late.Stop()
	for {
		select {
		case <-p.wake:
		case <-late.C:
		case <-ctx.Done():
			return
		}
		p.send(time.Now())
		late.Reset(pulseEvery + pulseLate)
	}
}

// send tells whoever watches, here and elsewhere.
func (p *pulser) send(now time.Time) {
	s := p.server
	p.serial++
	pulse := &schema.Pulse{Serial: p.serial, StartedMS: p.started.UnixMilli(), NowMS: now.UnixMilli(), EveryMS: pulseEvery.Milliseconds(),
		Host: p.host, PID: os.Getpid(), Server: p.fill(now)}
	p.tell(schema.PulseJob, s.member, pulse)
	frame, err := p.encode(pulse)
	if err == nil {
		p.keep(frame)
		err = s.control.Send(fabric.At(string(schema.PulseJob), string(s.member), fabric.KindPulse, string(schema.All)), frame)
	}
	if err != nil && !p.failed && !errors.Is(err, fabric.ErrLost) && !errors.Is(err, fabric.ErrClosed) {
		p.failed = true
		s.log.Warn("pulse not sent", "server", s.registry.self.ID, "err", err)
	}
}

// keep remembers a pulse as JSON, for who asks.
func (p *pulser) keep(frame []byte) {
	if v, err := schema.Verify(frame, schema.Limits{}); err == nil {
		body := v.Body()
		p.last.Store(&body)
	}
}

// encode makes the frame of a pulse, without what may be left out where all does not fit.
func (p *pulser) encode(pulse *schema.Pulse) (frame []byte, err error) {
	most := p.server.control.PayloadBytesMax()
	for _, shrink := range []func(*schema.ServerPulse){nil, leaveOutQuiet, leaveOutShards} {
		if shrink != nil {
			server, smaller := *pulse.Server, *pulse
			shrink(&server)
			smaller.Server = &server
			pulse = &smaller
		}
		if frame, err = schema.EncodePulse(schema.Head{}, pulse); err == nil && len(frame) <= most {
			return frame, nil
		}
	}
	if err == nil {
		err = fabric.ErrPayload
	}
	return nil, err
}

// leaveOutQuiet leaves out the members of whom nothing is to be said.
func leaveOutQuiet(s *schema.ServerPulse) {
	const quietMS = 3000
	jobs := make([]schema.JobPulse, len(s.Jobs))
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
func leaveOutShards(s *schema.ServerPulse) {
	s.Shards, s.GPUs, s.Refused = nil, nil, nil
	s.Jobs = s.Jobs[:min(len(s.Jobs), 16)]
}

// url is where the data server of this ps is.
func (p *pulser) url() string {
	if at := p.server.registry.self.URL; at != "" {
		return at
	}
	return p.server.nats.URL()
}

// fill is what this ps says of itself.
func (p *pulser) fill(now time.Time) *schema.ServerPulse {
	s := p.server
	t := &schema.ServerPulse{
		ID: s.registry.self.ID, Version: gradbus.Version, URL: p.url(), Page: p.page, Backend: schema.Clip(cuda.Describe(s.backend)),
		Deadline: schema.Real(s.config.Deadline.Seconds()), ControlLost: s.controlLost.Load(), Reasons: map[string]uint64{},
		Memory:  schema.MemoryPulse{PromisedBytes: max(0, s.config.MemoryBytesMax-s.freeBytes.Load()), MaxBytes: s.config.MemoryBytesMax},
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
	t.Shards = p.shards()
	return t
}

// traffic is what went over the connections of this ps.
func (p *pulser) traffic() schema.Traffic {
	s := p.server
	t := schema.Traffic{Connected: !s.controlLost.Load()}
	add := func(n fabric.Stats) {
		t.BytesSent, t.BytesReceived = t.BytesSent+n.BytesSent, t.BytesReceived+n.BytesReceived
		t.MessagesSent, t.MessagesReceived = t.MessagesSent+n.MessagesSent, t.MessagesReceived+n.MessagesReceived
		t.Reconnects, t.Dropped = t.Reconnects+n.Reconnects, t.Dropped+n.Dropped
	}
	add(s.conn.Stats())
	add(s.control.Stats())
	return t
}

// tell calls who asked for pulses.
func (p *pulser) tell(job schema.JobName, from schema.Member, pulse *schema.Pulse) {
	if p.hear == nil {
		return
	}
	p.hearMu.Lock()
	defer p.hearMu.Unlock()
	p.hear(job, from, pulse)
}

// receive takes what comes in from others. It never waits: what finds no room is dropped and counted.
func (p *pulser) receive(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil || subject.From == string(p.server.member) && subject.Job == string(schema.PulseJob) {
		return // no pulse, or our own
	}
	bytes := int64(len(m.Data))
	if p.gate.allow(time.Now(), subject.Job, subject.From) {
		if p.bytes.Add(bytes) <= pulseBytesMax {
			select {
			case p.heard <- heardPulse{schema.JobName(subject.Job), schema.Member(subject.From), m.Data}:
				return
			default:
			}
		}
		p.bytes.Add(-bytes)
	}
	p.server.counters.dropped.Add(1)
}

// read is the goroutine that reads the pulses of others. What is none, or is not its sender's, is counted by reason and forgotten.
func (p *pulser) read(ctx context.Context) {
	for {
		select {
		case h := <-p.heard:
			p.bytes.Add(-int64(len(h.data)))
			pulse, err := p.open(&h)
			if err != nil {
				p.server.counters.count(schema.ReasonOf(err))
				continue
			}
			p.tell(h.job, h.from, pulse)
		case <-ctx.Done():
			return
		}
	}
}

func (p *pulser) open(h *heardPulse) (*schema.Pulse, error) {
	view, err := schema.Verify(h.data, p.server.limits)
	if err != nil {
		return nil, err
	}
	pulse, err := schema.DecodePulse(&view)
	if err != nil {
		return nil, err
	}
	if pulse.Trainer != nil && pulse.Trainer.RunID != view.Head().Job {
		return nil, schema.Refuse(schema.ReasonForeignJob, "pulse of run %d under the head of run %d", pulse.Trainer.RunID, view.Head().Job)
	}
	return pulse, pulse.CheckFrom(h.job, h.from)
}

// senderGate lets some pulses of each sender pass in each second.
type senderGate struct {
	second int64
	passed map[[2]string]int // by job and member
}

func (g *senderGate) allow(now time.Time, job, from string) bool {
	if second := now.Unix(); second != g.second || g.passed == nil {
		g.second, g.passed = second, map[[2]string]int{}
	}
	key := [2]string{job, from}
	n, known := g.passed[key]
	if n == pulsesPerSender || !known && len(g.passed) == sendersMax {
		return false
	}
	g.passed[key] = n + 1
	return true
}
