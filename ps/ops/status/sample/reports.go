package sample

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gradbus/schema"
)

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

// trainerReport is what a trainer says at this second.
func (c *Cluster) trainerReport(t *Trainer) *schema.Telemetry {
	t.report.Resent += t.Resends
	t.report.Traffic.Reconnects += t.Anew
	t.report.Traffic.Dropped, t.report.LanesSkipped = t.report.Traffic.Dropped+t.Lost, t.Skipped
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
	case float64(c.second%10) < c.stalls()*10:
		shard := 0
		for _, s := range c.Servers {
			if s.Stalls > 0 {
				shard = s.first
			}
		}
		said.Doing, said.DoingMS, said.AwaitedShard, said.Awaited = schema.DoingResult, 300, &shard, 1
	default:
		said.Doing, said.DoingMS = schema.DoingCompute, 40
	}
	pending := int64(96 << 10)
	if t.Full {
		pending = 4 * mib
	}
	for i := range c.Shards {
		said.Links = append(said.Links, schema.LinkReport{Shard: i, PendingBytes: pending, WindowBytes: 4 * mib,
			Frames: said.GradientFrames / uint64(c.Shards), RoundTrip: schema.Real(cmp.Or(t.Trip, 0.0021))})
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

// serverReport is what a ps says at this second.
func (c *Cluster) serverReport(s *Server) *schema.Telemetry {
	p := c.head(s.Host, &s.life)
	for reason, n := range s.Refused {
		s.reasons[reason] += n
	}
	s.cut, s.dropped = s.cut+s.Cut, s.dropped+s.Dropped
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
		Dropped: s.dropped, SlowReaders: s.cut,
		Traffic: schema.Traffic{BytesSent: uint64(c.batch * 180_000), BytesReceived: uint64(c.batch * 220_000),
			Connected: !s.ControlLost},
		Memory: schema.MemoryReport{PromisedBytes: promised, MaxBytes: 8192 * mib}, Process: c.process(0.8),
		Verification: schema.VerifyReport{OneIn: 1000, Blocks: uint64(c.batch / 100), Mismatches: s.Mismatches},
		Disks:        []schema.DiskReport{s.Disk}, GPUs: slices.Clone(s.GPUs),
	}
	p.Server.Refused, p.Server.StandsBy = slices.Clone(s.Joins), s.StandsBy
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
	load := 0.22
	if s.Busy > 0 {
		load = s.Busy
	}
	if c.Phase == "running" && len(c.blocking()) == 0 {
		s.busy += load
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
		for k, t := range c.Trainers {
			if float64(c.second%10) < t.Halting*10 && c.Phase == "running" {
				m := []schema.Member{schema.TrainerMember(k)}
				h.Waiting = &schema.Waiting{Batch: schema.Batch(c.batch), Members: m, First: m}
			}
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
		Parameters: 4_300_000, Failed: c.Failed, Follows: c.follows, Durability: c.durability(), Standby: c.standby(),
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
