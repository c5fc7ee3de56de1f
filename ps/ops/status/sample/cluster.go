// Package sample plays jobs that are not there: it makes the reports of trainers and ps, well or not, for tests of what
// shows them.
//
// It is a model of a job of its own and no part of one: a batch takes as long as its slowest trainer, everybody waits
// for who has stopped, and nothing is random. It knows no clock and no network.
package sample

import (
	"fmt"
	"math"
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
	Failed   *schema.Failed
	Trainers []*Trainer
	Servers  []*Server
	Digests  map[string]uint32 // in mean: of trainers that differ from the others
	NoJob    bool              // ps alone
	By       int               // the ps that coordinates the job
	Hung     bool              // nothing goes on, and nobody says why
	Far      float64           // seconds that every lookup and every result is longer on its way
	Deaf     bool              // the control server hangs: the first ps hears itself alone
	Durable  Checkpoints
	StoodBy  Standby

	before  []schema.JobReport // runs that have ended
	follows []schema.RunID     // earlier runs that this one goes on from
	began   time.Time
	ended   time.Time
	second  uint64
	batch   float64
	samples float64
	frozen  float64 // seconds for which no batch has been completed
}

// Trainer is what may be changed of a trainer.
type Trainer struct {
	Away    bool    // has not joined
	Stopped bool    // says nothing, does nothing: killed, or its machine is off
	After   float64 // part of a second that it goes on for after its last word, when it stops
	Gone    bool    // its connections are gone, too
	Left    bool    // said goodbye
	Dropped bool    // the job goes on without it
	Stuck   bool    // alive, and does not get on with its batch
	Slow    float64 // times as long as others to compute; 0 is 1
	Starved bool    // what it computes longer it does without its processors
	Halting float64 // share of the time in which its process does not run at all
	Resends uint64  // frames sent again every second
	Trip    float64 // seconds of a round trip; 0 is the one of the model
	Anew    uint64  // connections lost every second
	Skipped uint64  // lanes whose gradient was not finite, since it joined
	Lost    uint64  // messages lost every second
	Full    bool    // its windows are full, and it waits for results
	Samples float64 // times as many samples as the others have; 0 is 1
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

// Server is what may be changed of a ps.
type Server struct {
	Stopped     bool
	ControlLost bool
	Idle        bool    // its shards have nothing to do: the job has fewer buckets than shards
	Busy        float64 // load of each of its shards; 0 is the one of the model
	NotReady    bool
	Stalls      float64           // share of the time in which its process does not run
	Refused     map[string]uint64 // added every second
	Cut         uint64            // slow readers, every second
	Dropped     uint64            // frames, every second
	Promised    int64             // bytes of memory; 0 is the one of the model
	Host        string
	Disk        schema.DiskReport
	GPUs        []schema.GPUReport
	Mismatches  uint64
	Amnesic     bool                   // knows no job
	Joins       []schema.RefusedReport // that it refused
	StandsBy    *schema.StandsByReport // nil: for nobody

	last    *schema.JobReport // of its job, where it has been asked to end
	id      string
	life    life
	first   int // shards [first, first+count)
	count   int
	reasons map[string]uint64
	busy    float64
	cut     uint64
	dropped uint64
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
		MemoryUsed:  integer(21 << 30), MemoryTotal: integer(80 << 30), MemoryOthers: integer(0),
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
func (c *Cluster) End(failed *schema.Failed) {
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

// blocking are the trainers that nobody can go on without.
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
	period := (slowest*1.25 + c.waiting() + 2*c.Far) / (1 - c.stalls())
	for _, t := range c.Trainers {
		if t.Halting > 0 {
			period = math.Max(period, period/(1-t.Halting))
		}
		if t.Full {
			period = math.Max(period, slowest*1.25+c.waiting()+c.BatchSeconds)
		}
	}
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

// stalls is for which share of the time a ps does not run.
func (c *Cluster) stalls() (share float64) {
	for _, s := range c.Servers {
		share = math.Max(share, s.Stalls)
	}
	return share
}

// share is the part of this second in which batches are completed.
func (c *Cluster) share() float64 {
	share := 1.0
	for _, t := range c.blocking() {
		share, t.After = math.Min(share, t.After), 0
	}
	return share
}

// advanceAlone computes for a second where nobody waits for another.
func (c *Cluster) advanceAlone() {
	for _, t := range c.Trainers {
		if t.Stopped || t.Gone || t.Stuck || t.Left || c.deaf() >= 0 || c.Hung {
			continue
		}
		period := c.computes(t)*1.25 + c.waiting()
		n := 1 / period
		t.batch += n
		c.samples += n * float64(c.BatchSamples) / float64(len(c.Trainers))
		c.batch = math.Max(c.batch, t.batch)
		c.train(t, n, period)
	}
}

// computes is how long a trainer computes for a batch.
func (c *Cluster) computes(t *Trainer) float64 {
	if t.Slow > 0 {
		return c.BatchSeconds * t.Slow
	}
	return c.BatchSeconds
}

// waiting is what busy shards cost a batch.
func (c *Cluster) waiting() (seconds float64) {
	for _, s := range c.Servers {
		if s.Busy > 0.5 {
			seconds = math.Max(seconds, c.BatchSeconds*s.Busy*2)
		}
	}
	return seconds
}

// train adds n batches to what a trainer has done.
func (c *Cluster) train(t *Trainer, n, period float64) {
	p, own := &t.report, c.computes(t)
	part := func(to *schema.Real, seconds float64) { *to += schema.Real(n * seconds) }
	part(&p.KeysSeconds, c.BatchSeconds*0.03)
	part(&p.LookupSeconds, c.BatchSeconds*0.07+c.waiting()+c.Far)
	part(&p.ComputeSeconds, own)
	part(&p.SendSeconds, c.BatchSeconds*0.05)
	part(&p.ResultSeconds, period-own-c.BatchSeconds*0.15-c.waiting()-c.Far)
	uses := own
	if t.Starved {
		uses = c.BatchSeconds
	}
	part(&p.Process.CPUSeconds, uses*1.4)
	samples := n * float64(c.BatchSamples) / float64(len(c.Trainers))
	times := math.Max(t.Samples, 1)
	p.Samples += uint64(times) * (uint64(t.batch*float64(c.BatchSamples))/uint64(len(c.Trainers)) - uint64(
		(t.batch-n)*float64(c.BatchSamples))/uint64(len(c.Trainers)))
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
	j.Failed = &schema.Failed{Member: schema.Coordinator, Text: "the parameter server is shutting down", Back: true,
		End: schema.EndStopped}
	s.last, s.Stopped = &j, !heard
	c.By, c.follows, c.RunID, c.began = by, []schema.RunID{c.RunID}, c.RunID+1, c.Now
	t := c.Servers[by]
	t.first, t.count = min(t.first, s.first), t.count+s.count
}
