package terminal

import (
	"fmt"
	"strings"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// now is when all samples are of: 2026-11-22 08:00:00 UTC.
const now = 1795334400000

func real(x float64) *schema.Real { r := schema.Real(x); return &r }

// samples are statuses by name, made anew by every call.
func samples() map[string]*status.Status {
	return map[string]*status.Status{
		"idle":    idle(),
		"running": running(2),
		"stalled": stalled(),
		"many":    running(64),
		"gpus":    withGPUs(),
		"hostile": hostile(),
		"stoodby": withReplica(),
		"stands":  stands(),
		"peers":   peers(),
	}
}

func idle() *status.Status {
	return &status.Status{NowMS: now, Serial: 1, Server: "host-a-4222", Version: "0.1.0",
		Why: status.Why{Level: status.Info, Text: "no job is here; start one with ./bin/trainer packages"},
		Servers: []status.Server{{ID: "host-a-4222", Host: "host-a", Level: status.OK, Backend: "cpu avx2, 1 thread",
			ResidentBytes: 80 << 20, MemoryMaxBytes: 16 << 30}}}
}

// running is a job of n trainers that does well.
func running(n int) *status.Status {
	s := idle()
	s.Why = status.Why{Level: status.OK, Text: "packages trains at 48.2k samples/s", Job: "packages"}
	j := status.Job{Name: "packages", Series: "packages", RunID: "17", Phase: "running", Consistency: "sync",
		Apply: "update", Reduce: "shards", Lanes: n, Batch: 10432, Planned: 20000,
		LeftMS: 200_000, SamplesPerSecond: 48234, Loss: real(0.81234), GradientNorm: real(1.5), StartedMS: now - 60_000,
		Durability: &status.Durability{AgeMS: 6_400, DurabilityReport: schema.DurabilityReport{Version: 10_240,
			Bytes: 87 << 20, TookSeconds: 3.1, EveryMS: 10_000}},
		Why: status.Why{Level: status.OK}}
	for i := range n {
		j.Trainers = append(j.Trainers, status.Trainer{Member: fmt.Sprintf("t%d", i), Host: "host-b", PID: 70 + i,
			State: "running", Level: status.OK, AgeMS: 300, Batch: 10432,
			Doing: "compute", DoingMS: 2, SamplesPerSecond: schema.Real(24000 + i), Loss: real(0.8),
			Phases: status.Phases{Compute: 0.71}, SentPerSecond: 12 << 20,
			PendingBytes: 3 << 20, WindowBytes: 4 << 20, RoundTripSeconds: 0.00042, CPU: 0.98, Connected: true})
	}
	for i := range 2 {
		j.Shards = append(j.Shards, status.Shard{Member: fmt.Sprintf("s%d", i), Server: "host-a-4222", Level: status.OK,
			Ready: true, Version: 10432, Load: 0.31,
			BytesPerSecond: 24 << 20, RoundsPerSec: 120, StagedBytes: 1 << 20})
	}
	s.Jobs = []status.Job{j}
	return s
}

// stalled waits for a trainer, and is not the only job.
func stalled() *status.Status {
	s := running(3)
	text := "batch 10432 of packages waits 18 s for trainer t2 on host-b (pid 71), last seen 17 s ago"
	s.Why = status.Why{Level: status.Critical, Text: text,
		Action: "look at host-b: the process is gone, hangs, or cannot reach this ps; in 12 s the job fails",
		Code:   "trainer-silent", Job: "packages"}
	s.Problems = []status.Problem{{Code: "trainer-silent", Level: status.Critical, Text: text, SinceMS: now - 18_000,
		Job: "packages", Member: "t2", Runbook: "trainer-silent"},
		{Code: "shard-waits", Level: status.Warning, Text: "shard s1 waits for t2", SinceMS: now - 17_000},
		{Code: "disk-full", Level: status.Warning, Text: "4 % of /data is free on host-a", SinceMS: now - 400_000}}
	j := &s.Jobs[0]
	j.Why, j.SamplesPerSecond, j.LeftMS = s.Why, 0, 0
	shard := 1
	for i := range j.Trainers {
		j.Trainers[i].Doing, j.Trainers[i].DoingMS, j.Trainers[i].Shard, j.Trainers[i].State = "result", 18_000,
			&shard, "waiting"
	}
	j.Trainers[0].Disks = []status.Disk{{Path: "/curves", FreeBytes: 90 << 30, TotalBytes: 100 << 30},
		{Path: "/models", FreeBytes: 1 << 30, NeedBytes: 2 << 30, TotalBytes: 8 << 30}}
	j.Trainers[1].Disks = []status.Disk{{Path: "/curves", FreeBytes: 90 << 30, TotalBytes: 100 << 30, AgeMS: 95_000}}
	j.Trainers[1].LanesSkipped = 12
	last := &j.Trainers[2]
	last.State, last.Level, last.AgeMS, last.HeldMS, last.Batch, last.Shard, last.Doing = "silent",
		status.Critical, 17_000, 18_000, 10431, nil, "compute"
	j.Shards[1].WaitsFor, j.Shards[1].WaitsMS, j.Shards[1].WaitsBatch = []string{"t2"}, 18_000, 10432
	j.Shards[1].Level = status.Warning
	s.Jobs = append(s.Jobs, status.Job{Name: "digits", Series: "digits", Phase: "gathering", Missing: 1,
		Consistency: "sync", Apply: "mean", Why: status.Why{Level: status.Info},
		Durability: &status.Durability{DurabilityReport: schema.DurabilityReport{
			Off: "this ps keeps no checkpoints: start it with --checkpoint-dir"}}})
	*j.Durability = status.Durability{AgeMS: 95_000, DurabilityReport: schema.DurabilityReport{Version: 9_800,
		Bytes: 87 << 20, TookSeconds: 3.1, EveryBatches: 500,
		Failures: 3, LateMS: 61_000, Failure: "version 10400: shard s1 on ps host-a-4222: write checkpoint part: write " +
			"/data/checkpoints/packages/000001-5621e8410aace09a-000000010400/s1.safetensors.tmp: no space left on device"}}
	return s
}

// withReplica has jobs that would go on elsewhere, and one that has no room there.
func withReplica() *status.Status {
	s := running(1)
	s.Jobs[0].Replica = &status.Replica{AgeMS: 140, ReplicaReport: schema.ReplicaReport{Server: "host-b-4222",
		URL: "nats://host-b:4222", Ready: true, Version: 10_430, TookSeconds: 0.018, Bytes: 3 << 30}}
	large, policy := s.Jobs[0], s.Jobs[0]
	large.Name, large.Series, large.Replica = "large", "large", &status.Replica{ReplicaReport: schema.ReplicaReport{
		Server: "host-b-4222", UnreadyMS: 90_000,
		Failure: "job large needs 9000000000 bytes, and 4000000000 of this server's 8000000000 are free"}}
	policy.Name, policy.Series, policy.Replica = "strict", "strict", &status.Replica{
		ReplicaReport: schema.ReplicaReport{Off: "its policy is fail"}}
	s.Jobs = append(s.Jobs, large, policy)
	return s
}

// stands is a ps without jobs that holds replicas for another.
func stands() *status.Status {
	s := idle()
	s.Servers[0].Primary = &schema.PrimaryReport{URL: "nats://host-b:4222", SilentMS: 3_400, Jobs: []schema.HeldReport{
		{Job: "large", Failure: "job large needs 9000000000 bytes, and 4000000000 of this server's 8000000000 are free"},
		{Job: "packages", Version: 10_430, Lost: "nothing listens any more where its ps was"}}}
	alone := s.Servers[0]
	alone.ID, alone.Primary = "host-c-4222", &schema.PrimaryReport{URL: "nats://host-d:4222", Reached: true, SilentMS: 80,
		Refused: "ps host-e-4222 on host-e (pid 17) holds the replicas already", Jobs: []schema.HeldReport{}}
	s.Servers = append(s.Servers, alone)
	return s
}

// peers has jobs whose ps hold replicas for each other, and one of which a ps has no room for its part.
func peers() *status.Status {
	s := running(1)
	a, b, c := "host-a-4222", "host-b-4222", "host-c-4222"
	s.Jobs[0].Replica = &status.Replica{AgeMS: 140, ReplicaReport: schema.ReplicaReport{Peers: true, Ready: true,
		Version: 10_430, TookSeconds: 0.018, Bytes: 3 << 30,
		Kept: []schema.KeptReport{{Server: a, Of: []string{a, b}, Ready: true, Version: 10_430},
			{Server: b, Of: []string{b, a}, Ready: true, Version: 10_430}}}}
	room := "job large needs 9000000000 bytes, and 4000000000 of this server's 8000000000 are free"
	large, few := s.Jobs[0], s.Jobs[0]
	large.Name, large.Series, large.Replica = "large", "large", &status.Replica{ReplicaReport: schema.ReplicaReport{
		Peers: true, UnreadyMS: 90_000,
		Failure: "ps " + c + ": " + room, Kept: []schema.KeptReport{{Server: a, Of: []string{a}, Ready: true},
			{Server: c, Of: []string{a}, Failure: room}}}}
	few.Name, few.Series, few.Replica = "few", "few", &status.Replica{ReplicaReport: schema.ReplicaReport{
		Peers: true, Failure: "ps d, which has shards of it, is not there with --replicas 1", UnreadyMS: 90_000}}
	s.Jobs = append(s.Jobs, large, few)
	s.Servers[0].Primary = &schema.PrimaryReport{Peers: true, Reached: true, Jobs: []schema.HeldReport{
		{Job: "packages", Of: []string{b}, Version: 10_430}}}
	other := s.Servers[0]
	other.ID, other.Primary = c, &schema.PrimaryReport{Peers: true, Reached: true, Jobs: []schema.HeldReport{
		{Job: "large", Of: []string{a}, Failure: room},
		{Job: "quick", Of: []string{a, b}, Version: 7, Lost: "its run has ended, and its trainers are awaited"}}}
	none := s.Servers[0]
	none.ID, none.Primary = b, &schema.PrimaryReport{Peers: true, Jobs: []schema.HeldReport{}}
	s.Servers = append(s.Servers, other, none)
	return s
}

func withGPUs() *status.Status {
	s := running(1)
	s.Injected = true
	s.Why = status.Why{Level: status.Critical, Text: "GPU 0 of host-a fell off the bus (XID 79)",
		Action: "drain the machine and reset the GPU", Code: "gpu-unhealthy"}
	used, total := int64(3<<30), int64(80<<30)
	s.GPUs = []status.GPU{
		{Host: "host-a", Level: status.Critical, AgeMS: 500, Users: []string{"p-host-a-4222"},
			GPUReport: schema.GPUReport{Index: 0, Name: "NVIDIA H100", State: schema.GPUUnhealthy,
				Reason: "XID 79: it fell off the bus", Code: "xid-79", Action: "reset it", Injected: true}},
		{Host: "host-a", Level: status.OK, AgeMS: 16_000,
			GPUReport: schema.GPUReport{Index: 1, Name: "NVIDIA H100", State: schema.GPUHealthy, Temperature: real(41),
				PowerWatts: real(320.4), Utilisation: real(0.93), MemoryUsed: &used, MemoryTotal: &total}},
	}
	return s
}

// hostile has names that a terminal would act upon, and numbers that are none.
func hostile() *status.Status {
	s := running(1)
	j := &s.Jobs[0]
	s.Why.Text = "\x1b]0;owned\x07 a\u202eb \x1b[2J 日本語 " + strings.Repeat("long ", 100)
	s.Server = "\x1b[31mred\x9b"
	j.Trainers[0].Host, j.Trainers[0].Member = "evil\r\nline\x00", "t0\u200b"
	j.Replica = &status.Replica{ReplicaReport: schema.ReplicaReport{Server: "b\x1b[2J", URL: "x\r", Failure: "no\x07",
		Bytes: 1<<64 - 1}}
	s.Servers[0].Primary = &schema.PrimaryReport{URL: "u\x1b[1m", Jobs: []schema.HeldReport{{Job: "j\n", Failure: "f\u202e"}}}
	j.Trainers[0].Loss, j.Loss = real(nan()), real(-inf())
	j.Trainers[0].RoundTripSeconds, j.Trainers[0].SentPerSecond, j.SamplesPerSecond = schema.Real(inf()),
		schema.Real(nan()), schema.Real(nan())
	j.Trainers[0].Level = "strange"
	return s
}

func events() []status.Event {
	return []status.Event{
		{Serial: 1, AtMS: now - 70_000, Level: status.Info, Code: "job-started",
			Text: "job packages started with 2 trainers and 2 shards"},
		{Serial: 2, AtMS: now - 18_000, Level: status.Critical, Code: "trainer-silent",
			Text: "trainer t2 of packages is silent"},
	}
}
