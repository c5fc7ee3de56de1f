package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gradbus"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

const (
	telemetryEvery = time.Second
	// telemetryLate bounds the time for which a report waits for the control loop's news after they are due; then it
	// uses what it has.
	telemetryLate = telemetryEvery / 2
	// reportsMax and reportBytesMax bound the reports of others that wait to be read: some seconds of those of the largest
	// job.
	reportsMax     = 2 * 4096
	reportBytesMax = 16 << 20
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

// serviceName is the name of a ps for tools that look for services at a NATS server.
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

// send sends the heartbeat of this ps with its report, and passes it to local readers.
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
		if b := s.Jobs[i].Replica; b != nil && len(b.Kept) > 0 {
			less := *b
			less.Kept, s.Jobs[i].Replica = nil, &less
		}
	}
	if s.Primary != nil {
		fewer := *s.Primary
		fewer.Jobs = slices.Clone(fewer.Jobs[:min(len(fewer.Jobs), 16)])
		for i := range fewer.Jobs {
			fewer.Jobs[i].Of, fewer.Jobs[i].Missing = nil, nil
		}
		s.Primary = &fewer
	}
}

// url is where the data server of this ps is.
func (p *reporter) url() string {
	if at := p.server.registry.self.URL; at != "" {
		return at
	}
	return p.server.announced("")
}

// fill returns the report of this ps on itself.
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
	case s.primary != nil:
		t.Primary = s.primary.report(s.now())
	case s.config.grouped():
		t.Primary = s.replicas.report(!t.ControlLost)
	}
	return t
}

// traffic returns the traffic of the connections of this ps.
func (p *reporter) traffic() schema.Traffic {
	s := p.server
	n := s.links.stats()
	n.Add(s.control.Stats())
	return schema.Traffic{
		Connected: !s.controlLost.Load(), BytesSent: n.BytesSent, BytesReceived: n.BytesReceived,
		MessagesSent: n.MessagesSent, MessagesReceived: n.MessagesReceived, Reconnects: n.Reconnects, Dropped: n.Dropped,
	}
}

// tell passes a report to Options.Telemetry.
func (p *reporter) tell(job schema.JobName, from schema.Member, report *schema.Telemetry) {
	if p.hear == nil {
		return
	}
	p.hearMu.Lock()
	defer p.hearMu.Unlock()
	p.hear(job, from, report)
}

// receive processes a heartbeat of another member. No goroutine waits for its report: what finds no room is dropped and
// counted. It never blocks.
func (p *reporter) receive(subject *fabric.Subject, view *schema.View) {
	if p.hear == nil || len(view.Body()) == 0 || subject.From == string(p.server.member) &&
		subject.Job == string(schema.TelemetryJob) {
		return // our own is told where it is made
	}
	bytes := int64(len(view.Bytes()))
	if p.bytes.Add(bytes) <= reportBytesMax {
		select {
		case p.heard <- &heardReport{schema.JobName(subject.Job), schema.Member(subject.From), *view}:
			return
		default:
		}
	}
	p.bytes.Add(-bytes)
	p.server.counters.reportsDropped.Add(1)
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

const (
	// endedShown is for how long, and endedShownMax how many, ended jobs are told of, so that who looks later sees why one
	// ended.
	endedShown    = 5 * time.Minute
	endedShownMax = 16
)

// jobReports is the control loop's state of the jobs that this ps coordinates, at one time. It is immutable.
type jobReports struct {
	when    time.Time
	jobs    []schema.JobReport
	refused []schema.RefusedReport
}

// at returns the reports for a later time: silences have grown if the control loop has not looked since.
func (p *jobReports) at(now time.Time) []schema.JobReport {
	since := now.Sub(p.when).Milliseconds()
	if since < 100 {
		return p.jobs
	}
	later := slices.Clone(p.jobs)
	for i := range later {
		j := &later[i]
		if j.Phase == schema.PhaseEnded {
			continue
		}
		j.Members = slices.Clone(j.Members)
		for n := range j.Members {
			if m := &j.Members[n]; m.Host != "" {
				m.SilentMS += since
			}
		}
	}
	return later
}

// shownJobs are the reports of jobs that have ended lately, the latest last.
type shownJobs []schema.JobReport

// add keeps the report of a job that has ended.
func (s *shownJobs) add(j *job, now time.Time) {
	p := j.telemetry(now)
	p.EndedMS = now.UnixMilli()
	if len(*s) == endedShownMax {
		*s = slices.Delete(*s, 0, 1)
	}
	*s = append(*s, p)
}

// durable notes which version of a run is durable now.
func (s shownJobs) durable(run schema.RunID, d *schema.DurabilityReport) {
	for i := range s {
		if s[i].RunID == run {
			s[i].Durability = d
		}
	}
}

// telemetry returns the report of the job.
func (j *job) telemetry(now time.Time) schema.JobReport {
	p := j.coordinator.Telemetry(now)
	if p.Durability.Off != "" {
		p.Durability.Off = schema.ClipFailure(cmp.Or(j.notSaved, p.Durability.Off))
	}
	if !j.coordinator.State().IsOver() {
		p.Replica = j.replicaStatus.report(now)
	}
	return p
}

// shards returns the last reports of the shards here.
func (p *reporter) shards() []schema.ShardReport {
	jobs := *p.server.jobs.Load()
	var all []schema.ShardReport
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		a := jobs[name]
		for _, i := range a.own {
			if len(all) == schema.TelemetryShardsMax {
				return all
			}
			all = append(all, a.workers[i].report(a))
		}
	}
	return all
}

// stepped counts a frame that was stepped.
func (t *tally) stepped(h *schema.Head, reason schema.Reason, bytes int, began time.Time) {
	t.step += time.Since(began)
	switch {
	case reason == schema.ReasonDuplicate:
		t.repeats++
	case reason != schema.ReasonOK:
	default:
		t.frames, t.bytes = t.frames+1, t.bytes+uint64(bytes)
		switch h.Kind {
		case schema.KindLookup:
			t.lookups++
		case schema.KindPull:
			t.pulls++
		}
	}
}

// notePromised notes what each shard here was promised. A shard that has nothing to do is promised what may be under
// way to it alone.
func (a *assignment) notePromised() {
	is, busy := a.manifest.BusyShards(a.shards), 0
	for _, i := range a.own {
		if is[i] {
			busy++
		}
	}
	each := a.memory.UnderWay / int64(len(a.own))
	for _, i := range a.own {
		if a.workers[i].promised = each; is[i] {
			a.workers[i].promised += (a.memory.Bytes() - a.memory.UnderWay) / int64(busy)
		}
	}
}

// noteHeld notes what the shard holds of the job's state, or why it has nothing to do. It walks all chunks of the job,
// so the worker's goroutine calls it.
func (w *worker) noteHeld() {
	place, held := w.config.Placement, int64(0)
	idle := place.Idle(w.config.Index)
	if idle == "" {
		held = stateBytes(&w.server.config, w.config.Job, place, w.config.Index)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.held = idle, held
}

// stateBytes returns the memory of a shard for a job's rows and parameters, with the optimizers' state.
func stateBytes(c *Config, job *schema.Job, place *schema.Placement, shard int) (n int64) {
	for i := range job.Tables {
		t := &job.Tables[i]
		_, columns := place.Columns(schema.Table(i), shard)
		if columns == 0 || place.Plan.Tables[i].Owner == schema.ByTrainers {
			continue
		}
		slots, marks := slotBytes(c, job, schema.Table(i))
		all := (int64(t.Rows)*int64(t.Dim)*valueBytes+slots)*int64(columns)/int64(t.Dim) + marks
		n += all * int64(place.PartitionsOf(schema.Table(i), shard)) / int64(t.Partitions)
	}
	if place.Plan.Owner == schema.ByTrainers {
		return n
	}
	for _, ref := range place.OwnedChunks(shard) {
		_, elements := place.ChunkRange(ref.Bucket, ref.Chunk)
		slots, _ := state.SlotBytes(place.OptimizerOf(ref.Bucket), int64(elements), 1)
		n += int64(elements)*valueBytes*int64(round.Versions(job)) + 2*slots
	}
	return n
}

// report returns the last report of a shard, with what waits for it now.
func (w *worker) report(a *assignment) schema.ShardReport {
	w.mu.Lock()
	t, waiting, held, idle := w.told, w.waiting, w.held, w.idle
	w.mu.Unlock()
	p := schema.ShardReport{
		Job: w.config.Job.Name, Shard: w.config.Index, Ready: t.ready, Version: t.version, Frames: t.frames, Bytes: t.bytes,
		Acks:    t.acks,
		Lookups: t.lookups, Pulls: t.pulls, Repeats: t.repeats, Rounds: t.rounds, StagedBytes: t.staged,
		StagedBytesMax: w.config.StagedBytesMax,
		MemoryBytes:    w.promised, HeldBytes: held + t.staged, Idle: idle, StepSeconds: schema.Real(t.step.Seconds()),
		PublishSeconds: schema.Real(t.publish.Seconds()), ApplySeconds: schema.Real(t.apply.Seconds()),
		ApplyBytes: t.applyBytes, Buckets: w.watch.times.report(),
	}
	p.QueueFrames, p.QueueBytes = w.queue.load()
	if len(waiting.Members) > 0 {
		p.Waiting = &waiting.Waiting
	}
	return p
}

// endedShards keeps the last figures of buckets of shards that have ended, for as long as jobs may wait for trainers
// (Config.StartTimeout): a program that has trained comes after the end of the job.
type endedShards struct {
	mu  sync.Mutex // a leaf
	all []endedShard
}

type endedShard struct {
	at time.Time
	schema.EndedShard
}

// endedShardsMax bounds the shards that are kept: beyond, the first to end is forgotten.
const endedShardsMax = 256

// add keeps the figures of a job's shards here, in the place of those of an earlier run.
func (e *endedShards) add(now time.Time, a *assignment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(s endedShard) bool { return s.Job == a.manifest.Name })
	for _, i := range a.own {
		w := a.workers[i]
		e.all = append(e.all, endedShard{now, schema.EndedShard{Job: a.manifest.Name, Run: a.run, Shard: w.config.Index,
			Buckets: w.watch.times.report()}})
	}
	e.all = slices.Delete(e.all, 0, max(0, len(e.all)-endedShardsMax))
}

// report lists the figures that are kept, but those of jobs that have shards here again.
func (e *endedShards) report(now time.Time, within time.Duration,
	jobs map[schema.JobName]*assignment) (all []schema.EndedShard) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(s endedShard) bool { return now.Sub(s.at) > within })
	for i := range e.all {
		if jobs[e.all[i].Job] == nil {
			all = append(all, e.all[i].EndedShard)
		}
	}
	return all
}

// refusedShown is for how long after its last time a refused join is told of. Its bound is that of a report: what was
// refused longest ago makes way.
const refusedShown = 5 * time.Minute

// refusedJoins are the joins that were refused lately, each once: of the same job, for the same reason and field.
type refusedJoins struct {
	all     []schema.RefusedReport // the latest is last
	crowded time.Time              // when one last made way that had been refused within a second
}

// note counts a refusal. It reports whether to tell of it: of the first, the second, the fourth and so on, since a
// trainer that a service manager starts again and again is refused for ever. The table bounds what is told of others:
// for a second after one made way for another too soon, only those tell that were there a second before.
func (r *refusedJoins) note(now time.Time, job schema.JobName, host string, why *schema.Refused) (n uint64, tell bool) {
	if schema.CheckName("job", string(job)) != nil {
		return 0, false // no report can have it
	}
	one := schema.RefusedReport{Job: job, Reason: schema.Clip(why.Reason), Field: schema.Clip(why.Field),
		FirstMS: now.UnixMilli()}
	same := func(p schema.RefusedReport) bool {
		return p.Job == job && p.Reason == one.Reason && p.Field == one.Field
	}
	if i := slices.IndexFunc(r.all, same); i >= 0 {
		one = r.all[i]
		r.all = slices.Delete(r.all, i, i+1)
	} else if len(r.all) == schema.TelemetryRefusedMax {
		if now.Sub(time.UnixMilli(r.all[0].LastMS)) < time.Second {
			r.crowded = now
		}
		r.all = slices.Delete(r.all, 0, 1)
	}
	one.Host, one.Text, one.LastMS = schema.Clip(host), schema.Clip(why.Text), now.UnixMilli()
	one.Count++
	r.all = append(r.all, one)
	late := now.Sub(r.crowded) < time.Second && one.FirstMS > r.crowded.Add(-time.Second).UnixMilli()
	return one.Count, !late && one.Count&(one.Count-1) == 0
}

// lately forgets what is over, and gives the rest for a report.
func (r *refusedJoins) lately(now time.Time) []schema.RefusedReport {
	r.all = slices.DeleteFunc(r.all,
		func(p schema.RefusedReport) bool { return now.Sub(time.UnixMilli(p.LastMS)) > refusedShown })
	return slices.Clone(r.all)
}

// replicaStatus is the state of a job's replica, for reports. It is updated when the other ps reports, and at each
// tick.
type replicaStatus struct {
	known bool           // a ps holds replicas for this one, or has
	off   string         // why none can for this job
	by    *follower      // nil: none does
	gone  string         // why not
	was   bool           // another ps could go on with the job, or this one has
	ready bool           // another ps can
	at    time.Time      // when version became that
	late  time.Time      // since when trainers are past it; zero: they are not
	since time.Time      // since when the job is not ready, though it was to be; zero: it is, or is not to be
	batch schema.Version // that trainers have begun

	peers bool                // several ps hold replicas for each other
	kept  []schema.KeptReport // what each ps keeps
	took  time.Duration       // to tell them the last version

	version schema.Version // that is whole there; 0: none
	failure string         // why the job has none there; empty since it has one
	bytes   uint64         // that were told
}

// noteReplica notes what others keep of a job.
func (j *job) noteReplica(now time.Time, s *successor, grouped bool) {
	j.replicaStatus.batch, j.replicaStatus.peers = schema.Version(j.coordinator.Status().Batch), grouped
	j.replicaStatus.note(now, j.coordinator.Replicas(now), s.is, s.gone)
}

// note records the replicas of a job. by is the ps that holds them: nil if there is none, for the reason gone.
func (s *replicaStatus) note(now time.Time, k coordinator.ReplicaReport, by *follower, gone string) {
	if by != s.by {
		s.by, s.failure = by, ""
	}
	s.known = s.known || s.peers || by != nil || gone != "" || s.was
	if s.off, s.gone = k.Off, gone; k.Missing != "" && (s.peers || by != nil) {
		s.gone, s.failure = k.Missing, ""
	}
	s.has(now, k.Version, k.Failure, k.Ready && (s.peers || by != nil && !by.silent(now)))
	if s.version > 0 {
		s.at = k.At
	}
	s.kept, s.bytes, s.took = k.Kept, k.Bytes, k.Took
}

// has notes a version that is whole elsewhere; ready says that the job could go on with it.
func (s *replicaStatus) has(now time.Time, version schema.Version, failure string, ready bool) {
	s.ready = ready && s.off == ""
	fresh := version != s.version
	if fresh {
		s.version, s.at = version, now
	}
	if version > 0 || failure != "" { // else it is sent all again
		s.failure = failure
	}
	s.was = s.was || s.ready
	switch {
	case s.ready || s.off != "":
		s.since = time.Time{}
	case s.since.IsZero() && s.known: // for the first time, too: what never becomes ready must not look like what is
		s.since = now
	}
	switch {
	case !s.ready || s.batch <= s.version:
		s.late = time.Time{}
	case fresh || s.late.IsZero():
		s.late = now
	}
}

// report returns the report; nil if no ps has ever held a replica.
func (s *replicaStatus) report(now time.Time) *schema.ReplicaReport {
	if !s.known {
		return nil
	}
	p := &schema.ReplicaReport{Off: schema.ClipFailure(s.off), Ready: s.ready, Version: s.version,
		Failure: s.failure, Bytes: s.bytes, TookSeconds: schema.Real(s.took.Seconds()), Peers: s.peers, Kept: s.kept}
	if s.version > 0 {
		p.ToldMS = s.at.UnixMilli()
	}
	if s.by != nil {
		p.Server, p.URL = s.by.member.ServerID(), schema.Clip(fabric.WithoutUser(s.by.url))
	}
	switch {
	case s.gone != "":
		p.Failure = schema.ClipFailure(s.gone)
	case !s.peers && s.by == nil:
		p.Failure = "it has gone on here, and no ps holds replicas for this one"
	}
	if !s.since.IsZero() {
		p.UnreadyMS = max(0, now.Sub(s.since).Milliseconds())
	}
	if !s.late.IsZero() {
		p.LateMS = max(0, now.Sub(s.late).Milliseconds())
	}
	return p
}

// goneText returns the text that there is no replica any more.
func (f *follower) goneText(why string) string {
	return fmt.Sprintf("ps %s on %s %s", f.member.ServerID(), f.host, why)
}

// report returns a ps's report on the one for which it holds replicas.
func (b *primary) report(now time.Time) *schema.PrimaryReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &schema.PrimaryReport{URL: schema.Clip(fabric.WithoutUser(b.url)), Refused: schema.ClipFailure(b.refused)}
	if b.other != 0 {
		silent := b.silent.For(now)
		p.Reached, p.SilentMS = silent < cutMax && !b.cut.Lasts(), silent.Milliseconds()
	}
	for _, name := range slices.Sorted(maps.Keys(b.jobs)) {
		if len(p.Jobs) == schema.TelemetryJobsMax {
			break
		}
		j := b.jobs[name]
		h := b.server.replicas.holds(name, j.run)
		if h.Of, h.Lost = nil, j.gone; j.gone != "" && !j.ended {
			h.Lost, h.Missing = j.missing(name), j.absent()
		}
		h.Lost = schema.ClipFailure(h.Lost)
		p.Jobs = append(p.Jobs, h)
	}
	return p
}

// absent are the voters of a job that have not joined here.
func (j *followedJob) absent() (all []schema.Member) {
	for _, v := range j.voters {
		if !j.promised[v.Number] {
			all = append(all, v.Member)
		}
	}
	return all
}
