package metrics

import (
	"math"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// moment is when the tests' scrapes take place.
var moment = time.UnixMilli(1_700_000_010_000)

func ptr[T any](v T) *T { return &v }

// cluster is what an Exporter reads, in a test.
type cluster struct {
	own    *schema.Telemetry // also that of status
	status *status.Status
	now    time.Time
}

func (c *cluster) exporter() *Exporter {
	return New(Config{
		Version: "1.2.3", Status: func() *status.Status {
			if c.status != nil {
				c.status.Own = c.own
			}
			return c.status
		},
		Now:   func() time.Time { return c.now },
		Age:   func() time.Duration { return c.now.Sub(moment) },
		Alive: func() time.Time { return moment.Add(-500 * time.Millisecond) },
		Ops:   func() Ops { return Ops{StreamClients: 2, UpdatesDropped: 3, Requests: 4} },
	})
}

// everything is a ps that coordinates a job of so many trainers and shards and has something to tell of every family.
func everything(trainers, shards int) *cluster {
	own := &schema.ServerReport{
		ID: "a-4222", Version: "1.2.3", Backend: "cpu avx2", Deadline: 30, Frames: 1000, Bytes: 1 << 20, Dropped: 1,
		SlowReaders: 2,
		Reasons:     map[string]uint64{"duplicate": 5, "damaged": 7},
		Calls:       map[string]uint64{"cpu": 40, "cuda": 50}, Traffic: traffic(),
		Memory:  schema.MemoryReport{PromisedBytes: 100, MaxBytes: 1000},
		Process: process(), Verification: schema.VerifyReport{OneIn: 64, Blocks: 10, Mismatches: 1},
		Disks: []schema.DiskReport{{Path: "/var/lib/gradbus", FreeBytes: 10, TotalBytes: 100, SampleMS: 1_700_000_008_000}},
		Jobs: []schema.JobReport{{Name: "words", RunID: 77, Phase: "running", Consistency: "sync", Apply: "mean",
			Reduce:   "shards",
			Trainers: trainers, Shards: shards, Lanes: trainers, Batch: 20, Parameters: 12345, StartedMS: 1_700_000_000_000}},
		GPUs: []schema.GPUReport{fullGPU(0)},
		Primary: &schema.PrimaryReport{URL: "nats://b:4222", Reached: true, Jobs: []schema.HeldReport{
			{Job: "digits", RunID: 78, Version: 7}, {Job: "large", RunID: 79, Failure: "too large"}}},
	}
	for i := range trainers {
		own.Jobs[0].Members = append(own.Jobs[0].Members, schema.MemberReport{
			Member: schema.TrainerMember(i), Host: "b", Batch: schema.Batch(20 - i%3), SilentMS: 250, Waited: i == 1,
			First: i == 1, WaitedMS: 1500 * int64(i&1),
		})
	}
	for i := range shards {
		own.Shards = append(own.Shards, schema.ShardReport{Job: "words", Shard: i, Ready: true, Version: 19, Frames: 10,
			Bytes: 1000, Acks: 10, Rounds: 20,
			StagedBytes: 5, StagedBytesMax: 50, Waiting: &schema.Waiting{Members: []schema.Member{"t1"}}, StepSeconds: 1.5,
			ApplySeconds: 0.5, ApplyBytes: 4096,
			Buckets: []schema.BucketReport{{Bucket: 2, Rounds: 4, StragglerSeconds: 2, StragglerMaxSeconds: 1, BatchSeconds: 3,
				BatchMaxSeconds: 2, ArrivalSeconds: 0.5, AverageSeconds: 0.25}}})
	}
	view := &status.Status{NowMS: moment.UnixMilli(),
		Jobs: []status.Job{{Name: "words", RunID: "77", Phase: "running", Loss: ptr(schema.Real(0.25)),
			Replicas: &status.Replicas{Version: 19, Equal: true, Digests: map[string]string{"t0": "1", "t1": "1"}},
			Durability: &status.Durability{AgeMS: 12_000, DurabilityReport: schema.DurabilityReport{Version: 15, Bytes: 4096,
				TookSeconds: 2.5, EveryMS: 10_000, Failures: 2, Failure: "write x: no space left on device", LateMS: 1500}},
			Replica: &status.Replica{AgeMS: 250, ReplicaReport: schema.ReplicaReport{Server: "b-4222", Ready: true,
				Version: 18, TookSeconds: 0.018, Bytes: 8192, LateMS: 500}}}},
		Problems: []status.Problem{
			{Code: "made-up", Level: status.Critical, Job: "words", Member: "t1"},
			{Code: "made-up", Level: status.Critical, Job: "words", Member: "t0"},
		},
	}
	for i := range trainers {
		view.Jobs[0].Trainers = append(view.Jobs[0].Trainers, status.Trainer{Member: string(schema.TrainerMember(i))})
	}
	return &cluster{
		own: &schema.Telemetry{Serial: 9, StartedMS: 1_699_999_000_000, NowMS: 1_700_000_009_500, EveryMS: 1000, Host: "a",
			PID: 1, Server: own},
		status: view, now: moment,
	}
}

// full is an exporter of everything that has heard all trainers.
func full(trainers, shards int) (*cluster, *Exporter) {
	c := everything(trainers, shards)
	e := c.exporter()
	for i := range trainers {
		c.heard(i, trainerReport(i, shards))
	}
	return c, e
}

// heard has the status tell of a trainer's report.
func (c *cluster) heard(i int, p *schema.Telemetry) {
	c.status.Jobs[0].Trainers[i].Report, c.status.Jobs[0].Trainers[i].HeardMS = p, c.now.UnixMilli()
}

func trainerReport(i, shards int) *schema.Telemetry {
	t := &schema.TrainerReport{
		RunID: 77, Batch: 20, Batches: 19, Planned: 100, Samples: 608, Behind: 2, Doing: schema.DoingResult, DoingMS: 40,
		Loss: schema.TrainLoss{Sum: 152, Samples: 608, Last: 0.5, Bad: 1}, GradientNorm: ptr(schema.Real(2)),
		KeysSeconds: 1, LookupSeconds: 2, ComputeSeconds: 3, SendSeconds: 4, ResultSeconds: 5, Traffic: traffic(),
		GradientFrames: 40, Resent: 3, Results: 39, Process: process(), Backend: "cpu avx2",
		Verification: schema.VerifyReport{OneIn: 10, Blocks: 20, Mismatches: 2},
	}
	if i < 2 { // one file system of one machine
		t.Disks = []schema.DiskReport{{Path: "/models", FreeBytes: 20, TotalBytes: 200, NeedBytes: 30,
			SampleMS: 1_700_000_009_000}}
	}
	if i == 1 {
		t.Loss.Last = schema.Real(math.NaN())
		t.GPUs = []schema.GPUReport{fullGPU(1)}
	}
	for s := range shards {
		t.Links = append(t.Links, schema.LinkReport{Shard: s, PendingBytes: 100, WindowBytes: 1000, Frames: 20, Resent: 1,
			RoundTrip: schema.Real(0.001 * float64(s+1))})
	}
	return &schema.Telemetry{Serial: 5, StartedMS: 1_699_999_900_000, NowMS: 1_700_000_009_900, EveryMS: 1000, Host: "b",
		PID: 2 + i, Trainer: t}
}

func traffic() schema.Traffic {
	return schema.Traffic{BytesSent: 11, BytesReceived: 12, MessagesSent: 13, MessagesReceived: 14, Reconnects: 15,
		Dropped: 16, Connected: true}
}

func process() schema.ProcessReport {
	return schema.ProcessReport{CPUSeconds: 7.5, ResidentBytes: 1 << 26, HeapBytes: 1 << 24, Goroutines: 30, CPUs: 2}
}

// fullGPU is a GPU whose driver tells all.
func fullGPU(i int) schema.GPUReport {
	return schema.GPUReport{
		Index: i, UUID: "GPU-" + string(rune('a'+i)), Name: "H100", PCI: "0000:01:00.0", Driver: "550", Used: true,
		State: schema.GPUDegraded, Reason: "hot", Code: "hw-slowdown", SinceMS: 1_700_000_000_000,
		SampleMS: 1_700_000_009_000, Injected: true,
		Temperature: ptr(schema.Real(71)), ThermalMargin: ptr(schema.Real(4)), PowerWatts: ptr(schema.Real(310)),
		PowerLimitWatts: ptr(schema.Real(700)),
		Utilisation:     ptr(schema.Real(0.75)), MemoryUsed: ptr(int64(1 << 30)), MemoryTotal: ptr(int64(80 << 30)),
		SMClockHz: ptr(int64(1_980_000_000)), MemoryClockHz: ptr(int64(2_619_000_000)), ECCCorrected: ptr(uint64(3)),
		ECCUncorrected: ptr(uint64(0)),
		RowsRemapped:   ptr(uint64(1)), RetiredPages: ptr(uint64(0)), PCIeReplays: ptr(uint64(2)), PCIeWidth: ptr(8),
		PCIeWidthMax: ptr(16), NVLinkErrors: ptr(uint64(0)),
		Throttled: []string{"hw_slowdown"}, XIDs: map[string]uint64{"63": 1},
	}
}
