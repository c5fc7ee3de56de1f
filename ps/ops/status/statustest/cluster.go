// Package statustest simulates jobs: it makes the reports of trainers and ps, healthy or not, for tests of what shows
// them.
//
// It is a model of a job and no part of one: a batch takes as long as its slowest trainer, all trainers wait for a
// stopped one, and nothing is random. It knows no clock and no network.
package statustest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Options say what a Cluster is made of. Zero fields are the values in brackets.
type Options struct {
	Job         string       // [packages]
	Workload    string       // [packages]
	Trainers    int          // [2]
	Servers     int          // [1] ps, of which the first coordinates
	Shards      int          // [2] over all ps
	Consistency string       // [sync]
	Apply       string       // [update]
	Ahead       int          // batches, where consistency is bounded
	Planned     schema.Batch // [20000]
	GPUs        bool         // every machine has a GPU for each trainer
	Hosts       int          // [1] machines that the trainers run on: box-0, box-1, ...
	Place       string       // [box] what machines and ps are called
	Hosted      bool         // trainers train by themselves with a module that a shard hosts
	Control     string       // host:port of a control server of its own; empty is the first ps's

	BatchSeconds float64 // [0.1] that a trainer computes for each batch
	BatchSamples int     // [1230] of all trainers
}

// Heard is a report as it came.
type Heard struct {
	Job       schema.JobName
	From      schema.Member
	Telemetry *schema.Telemetry
}

// start is when every Cluster begins.
var start = time.Date(2026, 3, 4, 2, 0, 0, 0, time.UTC)

// Cluster is ps and trainers at one second after the other. Members may be changed between seconds.
type Cluster struct {
	Options
	Now      time.Time
	RunID    schema.RunID
	Phase    string // gathering, running, ended
	Failed   *schema.Ended
	Trainers []*Trainer
	Servers  []*Server
	Digests  map[string]uint32 // in mean: of trainers that differ from the others
	NoJob    bool              // ps alone
	By       int               // the ps that coordinates the job
	Hung     bool              // nothing progresses, and no process says why
	Deaf     bool              // the control server hangs: the first ps hears itself alone
	Durable  Checkpoints
	Replica  Replica

	before  []schema.JobReport // runs that have ended
	follows []schema.RunID     // earlier runs that this one goes on from
	began   time.Time
	ended   time.Time
	second  uint64
	batch   float64
	samples float64
	frozen  float64 // seconds for which no batch has been completed
}

// Trainer is the adjustable state of a trainer.
type Trainer struct {
	Away    bool    // has not joined
	Stopped bool    // says nothing, does nothing: killed, or its machine is off
	After   float64 // part of a second that it goes on for after its last word, when it stops
	Gone    bool    // its connections are gone, too
	Left    bool    // said goodbye
	Dropped bool    // the job goes on without it
	Stuck   bool    // alive, and does not get on with its batch
	Slow    float64 // times as long as others to compute; 0 is 1
	Resends uint64  // frames sent again every second
	Skipped uint64  // lanes whose gradient was not finite, since it joined
	Loss    float64 // 0 is the one of the model
	Norm    float64 // 0 is the one of the model
	Wrong   uint64  // blocks that differed when it computed them again; it checks some where one did
	Host    string
	GPUs    []schema.GPUReport
	Disks   []schema.DiskReport

	index   int
	life    life
	batch   float64
	stopped time.Time
	report  schema.TrainerReport
}

// Server is the adjustable state of a ps.
type Server struct {
	Stopped     bool
	ControlLost bool
	Idle        bool // its shards have nothing to do: the job has fewer buckets than shards
	NotReady    bool
	Refused     map[string]uint64 // added every second
	Promised    int64             // bytes of memory; 0 is the one of the model
	Host        string
	Disk        schema.DiskReport
	GPUs        []schema.GPUReport
	Mismatches  uint64
	Amnesic     bool                   // knows no job
	Joins       []schema.RefusedReport // that it refused
	Primary     *schema.PrimaryReport  // nil: for no other

	last    *schema.JobReport // of its job, where it has been asked to end
	id      string
	life    life
	first   int // shards [first, first+count)
	count   int
	reasons map[string]uint64
	busy    float64
}

// life is one of a process's lives.
type life struct {
	began  time.Time
	serial uint64
	pid    int
}

// Restart starts a trainer's process again: all that it counts begins at zero.
func (t *Trainer) Restart(now time.Time) {
	t.life = life{began: now, pid: t.life.pid + 1000}
	t.report = schema.TrainerReport{}
}

// Restart starts a ps again: it knows no job.
func (s *Server) Restart(c *Cluster) {
	s.life = life{began: c.Now, pid: s.life.pid + 1000}
	s.reasons, s.busy = map[string]uint64{}, 0
	s.Amnesic = true
}

// NewCluster is a cluster whose job has just begun.
func NewCluster(o Options) *Cluster {
	o.fill()
	c := &Cluster{Options: o, Now: start, RunID: 81985529216486895, Phase: "running", began: start}
	for i := range o.Servers {
		s := &Server{id: serverID(o.Place, i, o.Servers), life: life{began: start, pid: 4200 + i},
			Host: fmt.Sprintf("%s-%d", o.Place, i%o.Hosts), first: o.Shards * i / o.Servers,
			Disk:    schema.DiskReport{Path: "/var/lib/gradbus", FreeBytes: 300 << 30, TotalBytes: 500 << 30},
			reasons: map[string]uint64{}}
		s.count = o.Shards*(i+1)/o.Servers - s.first
		c.Servers = append(c.Servers, s)
	}
	for i := range o.Trainers {
		t := &Trainer{index: i, life: life{began: start, pid: 7100 + i},
			Host: fmt.Sprintf("%s-%d", o.Place, i*o.Hosts/o.Trainers)}
		if o.GPUs {
			t.GPUs = []schema.GPUReport{GPU(t.Host, i-(i*o.Hosts/o.Trainers)*o.Trainers/o.Hosts)}
		}
		c.Trainers = append(c.Trainers, t)
	}
	return c
}

func (o *Options) fill() {
	number := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	text := func(s *string, otherwise string) {
		if *s == "" {
			*s = otherwise
		}
	}
	text(&o.Job, "packages")
	text(&o.Place, "box")
	text(&o.Workload, "packages")
	text(&o.Consistency, "sync")
	text(&o.Apply, "update")
	number(&o.Trainers, 2)
	number(&o.Servers, 1)
	number(&o.Shards, 2)
	number(&o.Hosts, 1)
	number(&o.BatchSamples, 1230)
	if o.Planned == 0 {
		o.Planned = 20_000
	}
	if o.BatchSeconds == 0 {
		o.BatchSeconds = 0.1
	}
}

func serverID(place string, i, n int) string {
	if n == 1 {
		return place + "-4222"
	}
	return fmt.Sprintf("%s-%d-4222", place, i)
}

// GPU is the i-th GPU of a machine, healthy and in use.
func GPU(host string, i int) schema.GPUReport {
	real := func(f float64) *schema.Real { r := schema.Real(f); return &r }
	integer := func(n int64) *int64 { return &n }
	return schema.GPUReport{
		Index: i, UUID: fmt.Sprintf("GPU-%s-%d", host, i), Name: "NVIDIA H100 80GB HBM3",
		PCI: fmt.Sprintf("00000000:%02X:00.0", 0x1b+i), Driver: "550.54.15",
		Used: true, State: schema.GPUHealthy, SinceMS: start.UnixMilli(), SampleMS: start.UnixMilli(),
		Temperature: real(54), ThermalMargin: real(33), PowerWatts: real(412), PowerLimitWatts: real(700),
		Utilisation: real(0.91),
		MemoryUsed:  integer(21 << 30), MemoryTotal: integer(80 << 30),
		SMClockHz: integer(1_755_000_000), MemoryClockHz: integer(2_619_000_000),
		XIDs: map[string]uint64{},
	}
}

// NewTracker is a tracker as the first ps has one.
func (c *Cluster) NewTracker() *status.Tracker { return c.NewTrackerOf(0) }

// NewTrackerOf is a tracker as the i-th ps has one.
func (c *Cluster) NewTrackerOf(i int) *status.Tracker {
	return status.New(status.Config{Server: c.Servers[i].id, Version: "0.1.0"})
}

// Play lets seconds pass, and gives what is heard to a tracker. It returns the latest update.
func (c *Cluster) Play(t *status.Tracker, seconds int) (u status.Update) {
	for range seconds {
		for _, h := range c.Second() {
			t.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		u = t.Tick(c.Now)
	}
	return u
}

// End lets the job end: well, or as failed by a member.
func (c *Cluster) End(failed *schema.Ended) {
	c.Phase, c.Failed, c.ended = "ended", failed, c.Now
	for _, t := range c.Trainers {
		t.Left = failed == nil
	}
}

// Second lets a second pass, and returns the reports of its end.
func (c *Cluster) Second() []Heard {
	c.Now = c.Now.Add(time.Second)
	c.second++
	c.advance()
	c.write()
	c.tell()
	var all []Heard
	for i, s := range c.Servers {
		if !s.Stopped && (i == 0 || !c.Deaf) {
			all = append(all, Heard{"ps", schema.ServerMember(s.id), c.serverReport(s)})
			s.Stopped = s.last != nil
		}
	}
	for _, t := range c.Trainers {
		if t.Stopped || t.Gone {
			if t.stopped.IsZero() {
				t.stopped = c.Now
			}
			continue
		}
		t.stopped = time.Time{}
		if !t.Away && !t.Left && !c.NoJob && c.Phase != "ended" && !c.Deaf {
			all = append(all, Heard{schema.JobName(c.Job), schema.TrainerMember(t.index), c.trainerReport(t)})
		}
	}
	return all
}

// blocking returns the trainers without which the job cannot continue.
func (c *Cluster) blocking() []*Trainer {
	var all []*Trainer
	for _, t := range c.Trainers {
		if t.Stopped || t.Gone || t.Stuck {
			all = append(all, t)
		}
	}
	return all
}

// deaf is a shard whose ps has stopped; -1 where there is none.
func (c *Cluster) deaf() int {
	for _, s := range c.Servers {
		if s.Stopped && s.last == nil && s.count > 0 {
			return s.first
		}
	}
	return -1
}

// advance computes for a second.
func (c *Cluster) advance() {
	if c.Phase != "running" || c.NoJob {
		return
	}
	if !schema.ClockOf(c.Consistency).Waits() {
		c.advanceAlone()
		return
	}
	share := c.share()
	if share == 0 || c.deaf() >= 0 || c.Hung {
		c.frozen++
		return
	}
	c.frozen = 0
	slowest := 0.0
	for _, t := range c.Trainers {
		slowest = math.Max(slowest, c.computes(t))
	}
	period := slowest * 1.25
	n := share / period
	c.batch += n
	c.samples += n * float64(c.BatchSamples)
	for _, t := range c.Trainers {
		if !t.Stopped {
			t.batch = c.batch
			c.train(t, n, period)
		}
	}
}

// share is the part of this second in which batches are completed.
func (c *Cluster) share() float64 {
	share := 1.0
	for _, t := range c.blocking() {
		share, t.After = math.Min(share, t.After), 0
	}
	return share
}

// advanceAlone computes for a second without waiting of trainers for each other.
func (c *Cluster) advanceAlone() {
	for _, t := range c.Trainers {
		if t.Stopped || t.Gone || t.Stuck || t.Left || c.deaf() >= 0 || c.Hung {
			continue
		}
		period := c.computes(t) * 1.25
		n := 1 / period
		t.batch += n
		c.samples += n * float64(c.BatchSamples) / float64(len(c.Trainers))
		c.batch = math.Max(c.batch, t.batch)
		c.train(t, n, period)
	}
}

// computes returns the time that a trainer computes for a batch.
func (c *Cluster) computes(t *Trainer) float64 {
	if t.Slow > 0 {
		return c.BatchSeconds * t.Slow
	}
	return c.BatchSeconds
}

// train adds n batches to what a trainer has done.
func (c *Cluster) train(t *Trainer, n, period float64) {
	p, own := &t.report, c.computes(t)
	part := func(to *schema.Real, seconds float64) { *to += schema.Real(n * seconds) }
	part(&p.KeysSeconds, c.BatchSeconds*0.03)
	part(&p.LookupSeconds, c.BatchSeconds*0.07)
	part(&p.ComputeSeconds, own)
	part(&p.SendSeconds, c.BatchSeconds*0.05)
	part(&p.ResultSeconds, period-own-c.BatchSeconds*0.15)
	part(&p.Process.CPUSeconds, own*1.4)
	samples := n * float64(c.BatchSamples) / float64(len(c.Trainers))
	p.Samples += uint64(t.batch*float64(c.BatchSamples))/uint64(len(c.Trainers)) -
		uint64((t.batch-n)*float64(c.BatchSamples))/uint64(len(c.Trainers))
	p.Batches += uint64(t.batch) - uint64(t.batch-n)
	loss := c.LossAt(c.batch)
	if t.Loss != 0 {
		loss = t.Loss
	}
	p.Loss.Last = schema.Real(loss)
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		p.Loss.Bad += uint64(n) + 1
	} else {
		p.Loss.Sum += schema.Real(loss * samples)
		p.Loss.Samples = p.Samples
	}
	p.Traffic.BytesSent += uint64(n * 220_000)
	p.Traffic.BytesReceived += uint64(n * 180_000)
	p.Traffic.MessagesSent += uint64(n * 6)
	p.Traffic.MessagesReceived += uint64(n * 6)
	p.GradientFrames += uint64(n * 4)
	p.Results += uint64(n * 4)
}

// LossAt is the loss of the model at a batch.
func (c *Cluster) LossAt(batch float64) float64 { return 0.35 + 2.4*math.Exp(-batch/1500) }

// Begin lets another run of the job begin, after one that has ended.
func (c *Cluster) Begin(id schema.RunID) {
	c.before = append(c.before, c.jobReport())
	c.Phase, c.Failed, c.RunID, c.began, c.batch = "running", nil, id, c.Now, 0
	for _, t := range c.Trainers {
		t.Left, t.batch, t.report = false, 0, schema.TrainerReport{}
		t.life = life{began: c.Now, pid: t.life.pid + 1}
	}
}

// Drain ends the ps that coordinates the job as one ends that is asked to: another one goes on with the job, in a run
// of its own. heard is that its last report is.
func (c *Cluster) Drain(by int, heard bool) {
	s := c.Servers[c.By]
	j := c.jobReport()
	j.Phase, j.EndedMS, j.End = schema.PhaseEnded, c.Now.UnixMilli(), schema.EndStopped
	j.Failed = &schema.Ended{Member: schema.Coordinator, Text: "the parameter server is shutting down", Back: true,
		End: schema.EndStopped}
	s.last, s.Stopped = &j, !heard
	c.By, c.follows, c.RunID, c.began = by, []schema.RunID{c.RunID}, c.RunID+1, c.Now
	t := c.Servers[by]
	t.first, t.count = min(t.first, s.first), t.count+s.count
}

const mib = 1 << 20

func (c *Cluster) head(host string, l *life) schema.Telemetry {
	l.serial++
	return schema.Telemetry{Serial: l.serial, StartedMS: l.began.UnixMilli(), NowMS: c.Now.UnixMilli(), EveryMS: 1000,
		Host: host, PID: l.pid}
}

func (c *Cluster) process(cpu float64) schema.ProcessReport {
	return schema.ProcessReport{CPUSeconds: schema.Real(cpu * float64(c.second)), ResidentBytes: 310 * mib,
		HeapBytes: 42 * mib, Goroutines: 31, CPUs: 16}
}

// gpus are some GPUs as their driver tells of them at this second.
func (c *Cluster) gpus(all []schema.GPUReport) []schema.GPUReport {
	all = slices.Clone(all)
	for i := range all {
		all[i].SampleMS = c.Now.UnixMilli()
	}
	return all
}

// trainerReport returns the report of a trainer at this second.
func (c *Cluster) trainerReport(t *Trainer) *schema.Telemetry {
	t.report.Resent += t.Resends
	t.report.LanesSkipped = t.Skipped
	p, said := c.head(t.Host, &t.life), t.report
	said.RunID, said.Batch, said.Planned, said.Backend = c.RunID, schema.Batch(t.batch), c.Planned, "cpu avx512, 2 threads"
	if c.Hosted && c.Phase == "running" {
		said.Planned, said.Hosted = 0, true
	}
	said.Process = c.process(0)
	said.Process.CPUSeconds = t.report.Process.CPUSeconds
	said.Traffic.Connected = true
	if t.Wrong > 0 {
		said.Verification = schema.VerifyReport{OneIn: 100, Blocks: uint64(c.batch), Mismatches: t.Wrong, Device: "GPU-5f0e"}
	}
	said.Disks = slices.Clone(t.Disks)
	for i := range said.Disks {
		if d := &said.Disks[i]; d.SampleMS == 0 { // else it has not answered since
			d.SampleMS = c.Now.UnixMilli()
		}
	}
	said.GPUs = c.gpus(t.GPUs)
	switch deaf := c.deaf(); {
	case c.Phase == "gathering":
		said.Doing, said.DoingMS, said.Planned = schema.DoingJoining, int64(c.second)*1000, 0
	case t.Stuck:
		said.Doing, said.DoingMS = schema.DoingCompute, int64(c.frozen*1000)
	case c.Hung:
		said.Doing, said.DoingMS = schema.DoingResult, int64(c.frozen*1000)
	case deaf >= 0 || len(c.blocking()) > 0 && schema.ClockOf(c.Consistency).Waits():
		deaf = max(deaf, 0)
		said.Doing, said.DoingMS, said.AwaitedShard = schema.DoingResult, int64(c.frozen*1000), &deaf
	default:
		said.Doing, said.DoingMS = schema.DoingCompute, 40
	}
	for i := range c.Shards {
		said.Links = append(said.Links, schema.LinkReport{Shard: i, PendingBytes: 96 << 10, WindowBytes: 4 * mib,
			Frames: said.GradientFrames / uint64(c.Shards), RoundTrip: 0.0021})
	}
	if c.Phase != "gathering" {
		norm := schema.Real(0.8 + 0.4*math.Exp(-c.batch/900))
		if t.Norm != 0 {
			norm = schema.Real(t.Norm)
		}
		said.GradientNorm, said.GradientBatch = &norm, said.Batch
	}
	if schema.OwnerOf(c.Apply) == schema.ByTrainers {
		for v := schema.Version(3); v > 0; v-- {
			if at := schema.Version(c.batch); at >= v {
				said.Replicas = append(said.Replicas, schema.ReplicaDigest{Version: at - v + 1, Digest: c.digest(t, at-v+1)})
			}
		}
	}
	p.Trainer = &said
	return &p
}

func (c *Cluster) digest(t *Trainer, v schema.Version) uint32 {
	d := uint32(v) * 2654435761
	return d ^ c.Digests[string(schema.TrainerMember(t.index))]
}

// serverReport returns the report of a ps at this second.
func (c *Cluster) serverReport(s *Server) *schema.Telemetry {
	p := c.head(s.Host, &s.life)
	for reason, n := range s.Refused {
		s.reasons[reason] += n
	}
	promised := int64(700 * mib)
	if s.Promised > 0 {
		promised = s.Promised
	}
	reasons := map[string]uint64{}
	for r := schema.Reason(1); int(r) < schema.ReasonCount; r++ {
		reasons[r.String()] = s.reasons[r.String()]
	}
	frames := uint64(c.batch*4) * uint64(len(c.Trainers))
	p.Server = &schema.ServerReport{
		ID: s.id, Version: "0.1.0", URL: "nats://127.0.0.1:4222", Page: "http://127.0.0.1:8080/",
		Backend:  "cpu avx512, 2 threads",
		Deadline: 30, ControlLost: s.ControlLost, Frames: frames, Bytes: uint64(c.batch * 220_000), Reasons: reasons,
		Traffic: schema.Traffic{BytesSent: uint64(c.batch * 180_000), BytesReceived: uint64(c.batch * 220_000),
			Connected: !s.ControlLost},
		Memory: schema.MemoryReport{PromisedBytes: promised, MaxBytes: 8192 * mib}, Process: c.process(0.8),
		Verification: schema.VerifyReport{OneIn: 1000, Blocks: uint64(c.batch / 100), Mismatches: s.Mismatches},
		Disks:        []schema.DiskReport{s.Disk}, GPUs: slices.Clone(s.GPUs),
	}
	p.Server.Refused, p.Server.Primary = slices.Clone(s.Joins), s.Primary
	if p.Server.Control = c.Control; s != c.Servers[0] {
		p.Server.URL = fmt.Sprintf("nats://%s:4222", s.Host)
		if c.Control == "" {
			p.Server.Control = "127.0.0.1:4222"
		}
	}
	if c.NoJob || s.Amnesic {
		return &p
	}
	if s.last != nil {
		p.Server.State, p.Server.Jobs = schema.ServerEnded, []schema.JobReport{*s.last}
		return &p
	}
	if s == c.Servers[c.By] {
		p.Server.Jobs = append(slices.Clone(c.before), c.jobReport())
	}
	if c.Phase != "ended" {
		c.addShards(s, p.Server)
	}
	return &p
}

func (c *Cluster) addShards(s *Server, p *schema.ServerReport) {
	if c.Phase == "running" && len(c.blocking()) == 0 {
		s.busy += 0.22
	}
	for i := range s.count {
		h := schema.ShardReport{
			Job: schema.JobName(c.Job), Shard: s.first + i, Ready: !s.NotReady, Version: schema.Version(c.batch),
			Frames: uint64(c.batch * 4),
			Bytes:  uint64(c.batch * 110_000), Acks: uint64(c.batch), Lookups: uint64(c.batch) * uint64(len(c.Trainers)),
			Rounds:      uint64(c.batch * 2),
			StagedBytes: 2 * mib, StagedBytesMax: 64 * mib, MemoryBytes: 350 * mib, StepSeconds: schema.Real(s.busy * 0.8),
			PublishSeconds: schema.Real(s.busy * 0.2), ApplySeconds: schema.Real(s.busy * 0.5),
			ApplyBytes: uint64(c.batch * 400_000),
		}
		if n := uint64(c.batch); n > 0 && !schema.ClockOf(c.Consistency).Renumbers() {
			h.Buckets = []schema.BucketReport{bucketReport(h.Shard, n, 0.0042), bucketReport(c.Shards+h.Shard, n, 0.0061)}
			h.Buckets[1].Sparse = true
		}
		if s.Idle {
			h = schema.ShardReport{Job: h.Job, Shard: h.Shard, Ready: h.Ready, StagedBytesMax: h.StagedBytesMax,
				MemoryBytes: mib}
		} else if b := c.blocking(); len(b) > 0 && schema.ClockOf(c.Consistency).Waits() && c.Phase == "running" {
			h.Waiting = &schema.Waiting{Batch: schema.Batch(c.batch)}
			for _, t := range b {
				h.Waiting.Members = append(h.Waiting.Members, schema.TrainerMember(t.index))
			}
			h.Waiting.First = h.Waiting.Members
		}
		p.Shards = append(p.Shards, h)
	}
}

// bucketReport is a bucket with so many rounds, of which each waited so many seconds for its last gradient.
func bucketReport(bucket int, rounds uint64, straggler schema.Real) schema.BucketReport {
	n := schema.Real(rounds)
	return schema.BucketReport{Bucket: schema.Bucket(bucket), Rounds: rounds, StragglerSeconds: n * straggler,
		StragglerMaxSeconds: 3 * straggler, BatchSeconds: n * (straggler + 0.002), BatchMaxSeconds: 3*straggler + 0.004,
		ArrivalSeconds: n * 0.0009, AverageSeconds: n * 0.0006}
}

func (c *Cluster) jobReport() schema.JobReport {
	j := schema.JobReport{
		Name: schema.JobName(c.Job), Workload: c.Workload, RunID: c.RunID, Phase: c.Phase, Consistency: c.Consistency,
		Apply: c.Apply, Reduce: "shards",
		Trainers: len(c.Trainers), Shards: c.Shards, Lanes: 2 * len(c.Trainers), Ahead: c.Ahead, Batch: schema.Batch(c.batch),
		Parameters: 4_300_000, Failed: c.Failed, Follows: c.follows, Durability: c.durability(), Replica: c.replica(),
	}
	if c.Phase != "gathering" {
		j.StartedMS = c.began.UnixMilli()
	}
	if c.Phase == "ended" {
		j.EndedMS, j.End = c.ended.UnixMilli(), schema.EndCompleted
		if c.Failed != nil {
			j.End = cmp.Or(c.Failed.End, schema.EndFailed)
		}
	}
	for _, s := range c.Servers {
		if s.last == nil {
			j.Keepers = append(j.Keepers, s.id)
		}
	}
	for i, t := range c.Trainers {
		m := schema.MemberReport{Member: schema.TrainerMember(i), Batch: schema.Batch(t.batch), SilentMS: 200, Left: t.Left,
			Gone: t.Gone, Lost: t.Dropped}
		if !t.Away {
			m.Host = fmt.Sprintf("%s (pid %d)", t.Host, t.life.pid)
		}
		if t.Stopped || t.Gone {
			m.SilentMS = 0
			if !t.stopped.IsZero() {
				m.SilentMS = c.Now.Sub(t.stopped).Milliseconds() + 1000
			}
		}
		if schema.ClockOf(c.Consistency).Waits() && (t.Stopped || t.Gone || t.Stuck) && c.Phase == "running" {
			m.Waited, m.First, m.WaitedBatch, m.WaitedMS = true, true, schema.Batch(c.batch), int64(c.frozen*1000)
			m.LimitMS = 30_000
		}
		j.Members = append(j.Members, m)
	}
	return j
}

// Checkpoints is the writing of versions of the job; the zero value reports none.
type Checkpoints struct {
	Off     string       // why none is
	Every   int          // seconds between two that become durable
	Batches schema.Batch // told in place of Every
	Failure string       // none has become durable since it was set

	version  schema.Version
	at       time.Time
	late     time.Time
	failures uint64
}

// write lets a second pass: a version becomes durable, or is due and does not.
func (c *Cluster) write() {
	d := &c.Durable
	if d.Every == 0 || c.Phase != "running" || int(c.second)%d.Every != 0 {
		return
	}
	if d.Failure == "" {
		d.version, d.at, d.late = schema.Version(c.batch), c.Now, time.Time{}
		return
	}
	d.failures++
	if d.late.IsZero() {
		d.late = c.Now
	}
}

// durability returns the coordinator's report on checkpoints.
func (c *Cluster) durability() *schema.DurabilityReport {
	d := &c.Durable
	if d.Off != "" {
		return &schema.DurabilityReport{Off: d.Off}
	}
	if d.Every == 0 {
		return nil
	}
	p := &schema.DurabilityReport{EveryMS: int64(d.Every) * 1000, Failure: d.Failure, Failures: d.failures,
		Version: d.version}
	if d.Batches > 0 {
		p.EveryMS, p.EveryBatches = 0, d.Batches
	}
	if d.version > 0 {
		p.DurableMS, p.Bytes, p.TookSeconds = d.at.UnixMilli(), 87*mib, 3.1
	}
	if !d.late.IsZero() {
		p.LateMS = c.Now.Sub(d.late).Milliseconds()
	}
	return p
}

// Replica is the replica of the job; the zero value means that there has never been one.
type Replica struct {
	Server  string // id of the ps, or of several (Peers) with commas; empty: none does, where one has before
	Failure string // why it cannot take the job, or is gone
	Off     string // why the job can have no replica
	Stuck   bool   // it takes no version
	Peers   bool   // several hold replicas for each other, of which the last fails, or is stuck

	known   bool
	version schema.Version
	at      time.Time
	bytes   uint64
	late    time.Time
	since   time.Time
}

// tell lets a second pass: a version is told, or is not.
func (c *Cluster) tell() {
	b := &c.Replica
	b.known = b.known || b.Server != "" || b.Peers
	ready := b.Server != "" && b.Failure == "" && b.Off == ""
	switch {
	case !b.known || c.Phase != schema.PhaseRunning:
	case !ready:
		b.version, b.late = 0, time.Time{}
		if b.since.IsZero() && b.Off == "" {
			b.since = c.Now
		}
	case b.Stuck:
		if b.late.IsZero() {
			b.late = c.Now
		}
	default:
		b.version, b.at, b.late, b.since = schema.Version(c.batch), c.Now, time.Time{}, time.Time{}
		b.bytes += 3 * mib
	}
}

// replica returns the coordinator's report on the replica.
func (c *Cluster) replica() *schema.ReplicaReport {
	b := &c.Replica
	if !b.known || c.Phase == schema.PhaseEnded {
		return nil
	}
	p := &schema.ReplicaReport{Off: b.Off, Failure: b.Failure, Version: b.version, Bytes: b.bytes, Ready: b.version > 0,
		Peers: b.Peers}
	switch {
	case b.Peers && b.Server != "":
		p.Kept = b.kept(schema.Version(c.batch))
	case b.Server != "":
		p.Server, p.URL = b.Server, "nats://10.0.0.2:4222"
	}
	if b.version > 0 {
		p.ToldMS, p.TookSeconds = b.at.UnixMilli(), 0.018
	}
	if !b.since.IsZero() {
		p.UnreadyMS = c.Now.Sub(b.since).Milliseconds()
	}
	if !b.late.IsZero() {
		p.LateMS = c.Now.Sub(b.late).Milliseconds()
	}
	return p
}

// kept returns the replicas of each of several ps, of itself and of the one before.
func (b *Replica) kept(newest schema.Version) (all []schema.KeptReport) {
	ids := strings.Split(b.Server, ",")
	for i, id := range ids {
		k := schema.KeptReport{Server: id, Of: []string{id, ids[(i+len(ids)-1)%len(ids)]}, Ready: true, Version: newest}
		switch last := i == len(ids)-1; {
		case last && b.Failure != "":
			k.Failure, k.Ready, k.Version = b.Failure, false, 0
		case last && b.Stuck:
			k.Version = b.version
		}
		all = append(all, k)
	}
	return all
}
