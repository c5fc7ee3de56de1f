package schema

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func real(f float64) *Real { r := Real(f); return &r }

// testTrainerReport has a value in every field.
func testTrainerReport() *Telemetry {
	shard, used := 1, int64(3<<30)
	return &Telemetry{Serial: 12, StartedMS: 1700000000000, NowMS: 1700000012000, EveryMS: 1000, Host: "box", PID: 71,
		Trainer: &TrainerReport{
			RunID: sampleRun, Batch: 18, Batches: 18, Planned: 100, Samples: 576, Doing: DoingLookup, DoingMS: 17,
			AwaitedShard: &shard,
			Loss:         TrainLoss{Sum: 288.5, Samples: 544, Last: Real(math.NaN()), Bad: 1},
			GradientNorm: real(0.125), GradientBatch: 17,
			KeysSeconds: 0.25, LookupSeconds: 1.5, ComputeSeconds: 8, SendSeconds: 0.75, ResultSeconds: 1.25,
			Traffic: Traffic{BytesSent: 4096, BytesReceived: 8192, MessagesSent: 40, MessagesReceived: 80,
				Connected: true},
			GradientFrames: 36, Results: 54,
			Links: []LinkReport{{Shard: 0, WindowBytes: 4 << 20, Frames: 18, RoundTrip: 0.0005},
				{Shard: 1, PendingBytes: 65536, WindowBytes: 4 << 20, Frames: 18, Resent: 1, RoundTrip: 0.0015}},
			Replicas: []ReplicaDigest{{Version: 16, Digest: 0xe3069283}},
			Process:  ProcessReport{CPUSeconds: 9.5, ResidentBytes: 64 << 20, HeapBytes: 8 << 20, Goroutines: 14, CPUs: 2},
			Backend:  "cpu (avx2, 1 thread)",
			GPUs: []GPUReport{{Index: 0, UUID: "GPU-1", Name: "H100", State: GPUDegraded, Reason: "correctable errors rise",
				Code: "ecc-corrected", Action: "watch it", SinceMS: 1700000001000,
				SampleMS: 1700000011000, Temperature: real(41), MemoryUsed: &used, Throttled: []string{"hw_slowdown"},
				XIDs: map[string]uint64{"63": 1}}},
		}}
}

func testServerReport() *Telemetry {
	return &Telemetry{Serial: 3, StartedMS: 1700000000000, NowMS: 1700000003000, EveryMS: 1000, Host: "box", PID: 70,
		Server: &ServerReport{
			ID: "box-4222", Version: "0.1.0", URL: "nats://127.0.0.1:4222", Page: "http://127.0.0.1:8080",
			Backend: "cpu (avx2, 1 thread)", Deadline: 30,
			Frames: 10, Bytes: 1000, Reasons: map[string]uint64{"duplicate": 1},
			Memory: MemoryReport{PromisedBytes: 1 << 20, MaxBytes: 8 << 30},
			Disks:  []DiskReport{{Path: "/tmp", FreeBytes: 1 << 30, TotalBytes: 2 << 30}},
			Jobs: []JobReport{{Name: "demo", Workload: "example", RunID: sampleRun, Phase: PhaseRunning, Consistency: "sync",
				Apply: "update", Reduce: "shards", Trainers: 2, Shards: 1, Lanes: 4,
				Batch: 18, Parameters: 6, StartedMS: 1700000001000,
				Members: []MemberReport{{Member: "t0", Host: "box (pid 71)", Batch: 18, SilentMS: 400},
					{Member: "t1", Host: "box (pid 72)", Batch: 17, SilentMS: 2400, Gone: true, Waited: true, First: true,
						WaitedBatch: 17, WaitedMS: 1900}},
				Keepers: []string{"box-4222"}}},
			Shards: []ShardReport{{Job: "demo", Shard: 0, Ready: true, Version: 17, Frames: 9, Bytes: 900, Acks: 2, Lookups: 4,
				Rounds: 17, StagedBytesMax: 128 << 20,
				StepSeconds: 0.5, ApplySeconds: 0.25, ApplyBytes: 4096,
				Waiting: &Waiting{Batch: 17, Bucket: 0, Chunk: 2, Members: []Member{"t1"}, First: []Member{"t1"}}}},
			GPUs: []GPUReport{},
		}}
}

// testDurableReport tells of a job of which a version is durable, and a later one is not.
func testDurableReport() *Telemetry {
	p := testServerReport()
	p.Server.Jobs[0].Durability = &DurabilityReport{EveryMS: 10_000, Version: 12, DurableMS: 1700000002000, Bytes: 4096,
		TookSeconds: 0.75, Failures: 2, Failure: "version 15: shard s0 on ps box-4222: write x: no space left on device",
		LateMS: 500}
	return p
}

// testReplicaReport tells of a job that another ps holds replicas for, and of one that this ps holds replicas for.
func testReplicaReport() *Telemetry {
	p := testServerReport()
	p.Server.Jobs[0].Replica = &ReplicaReport{Server: "box-4223", URL: "nats://10.0.0.2:4222", Ready: true, Version: 16,
		ToldMS: 1700000002900, TookSeconds: 0.0625, Bytes: 65536, LateMS: 100}
	p.Server.Primary = &PrimaryReport{URL: "nats://10.0.0.2:4222", Reached: true, SilentMS: 200, Jobs: []HeldReport{
		{Job: "digits", RunID: sampleRun + 1, Version: 7, Lost: "its ps has ended"},
		{Job: "large", RunID: sampleRun + 2, Failure: "job large needs 9 bytes, and 8 of this server's 8 are free"}}}
	return p
}

// testPeersReport tells of a job whose ps hold replicas for each other, and of what this one keeps of others.
func testPeersReport() *Telemetry {
	p := testServerReport()
	p.Server.Jobs[0].Replica = &ReplicaReport{Peers: true, Ready: true, Version: 16, ToldMS: 1700000002900,
		TookSeconds: 0.0625, Bytes: 65536, Kept: []KeptReport{
			{Server: "box-4222", Of: []string{"box-4222", "box-4223"}, Ready: true, Version: 16},
			{Server: "box-4223", Of: []string{"box-4223", "box-4222"}, Failure: "no room"}}}
	p.Server.Primary = &PrimaryReport{Peers: true, Reached: true, Jobs: []HeldReport{
		{Job: "digits", RunID: sampleRun + 1, Of: []string{"box-4223"}, Version: 7}}}
	return p
}

// testBucketsReport tells of a bucket and of the rows of a shard.
func testBucketsReport() *Telemetry {
	p := testServerReport()
	p.Server.Shards[0].Buckets = []BucketReport{{Bucket: 0, Rounds: 17, StragglerSeconds: 0.5, StragglerMaxSeconds: 0.0625,
		BatchSeconds: 0.75, BatchMaxSeconds: 0.125, ArrivalSeconds: 0.03125, AverageSeconds: 0.015625},
		{Bucket: 1, Sparse: true, Rounds: 17, BatchSeconds: 0.25, BatchMaxSeconds: 0.125, AverageSeconds: 0.015625}}
	return p
}

// encodeReport is a heartbeat with a report.
func encodeReport(h Head, p *Telemetry) ([]byte, error) {
	report, err := EncodeTelemetry(p)
	if err != nil {
		return nil, err
	}
	return EncodeHeartbeat(h, report)
}

// tooLarge is a report within every bound but that of a body.
func tooLarge() *Telemetry {
	p, long := testServerReport(), strings.Repeat("x", TextBytesMax)
	for i := range bodyBytesMax / TextBytesMax {
		p.Server.Jobs[0].Members = append(p.Server.Jobs[0].Members, MemberReport{Member: TrainerMember(i), Host: long})
	}
	return p
}

// reportSamples are heartbeats with a report, of trainers and ps.
func reportSamples(t testing.TB) []sample {
	t.Helper()
	trainer, err := encodeReport(Head{Job: sampleRun, Generation: 1, Batch: 18, Lanes: 4}, testTrainerReport())
	if err != nil {
		t.Fatal(err)
	}
	server, err := encodeReport(Head{}, testServerReport())
	if err != nil {
		t.Fatal(err)
	}
	saves := testTrainerReport()
	saves.Trainer.Disks = []DiskReport{{Path: "models/a.safetensors", FreeBytes: 1 << 30, TotalBytes: 8 << 30,
		Use: "models, curves", NeedBytes: 24, SampleMS: 1700000009000, Device: "8:1"}}
	disks, err := encodeReport(Head{Job: sampleRun, Generation: 1, Batch: 18, Lanes: 4}, saves)
	if err != nil {
		t.Fatal(err)
	}
	refuses := testServerReport()
	refuses.Server.Refused = []RefusedReport{{Job: "large", Reason: "invalid_job", Field: "tables", Text: "too large",
		Host: "box (pid 7)", Count: 3, FirstMS: 1700000001000, LastMS: 1700000002000}}
	refused, err := encodeReport(Head{}, refuses)
	if err != nil {
		t.Fatal(err)
	}
	durable, err := encodeReport(Head{}, testDurableReport())
	if err != nil {
		t.Fatal(err)
	}
	buckets, err := encodeReport(Head{}, testBucketsReport())
	if err != nil {
		t.Fatal(err)
	}
	replica, err := encodeReport(Head{}, testReplicaReport())
	if err != nil {
		t.Fatal(err)
	}
	peers, err := encodeReport(Head{}, testPeersReport())
	if err != nil {
		t.Fatal(err)
	}
	return []sample{{"beat-trainer", trainer}, {"beat-server", server}, {"beat-disks", disks}, {"beat-refused", refused},
		{"beat-durable", durable}, {"beat-buckets", buckets}, {"beat-standby", replica}, {"beat-peers", peers}}
}

func TestReportSurvives(t *testing.T) {
	for _, want := range []*Telemetry{testTrainerReport(), testServerReport(), testDurableReport(),
		testReplicaReport(), testPeersReport()} {
		frame, err := encodeReport(Head{Job: 9}, want)
		check(t, err)
		v, err := Verify(frame, Limits{})
		check(t, err)
		got, err := DecodeTelemetry(&v)
		check(t, err)
		if want.Trainer != nil {
			if !math.IsNaN(float64(got.Trainer.Loss.Last)) {
				t.Errorf("a loss that is no number became %v", got.Trainer.Loss.Last)
			}
			got.Trainer.Loss.Last, want.Trainer.Loss.Last = 0, 0
		} else {
			want.Server.GPUs = nil // absent where empty
		}
		if want.FrameBytes = len(frame); !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
	}
}

// changedReport is a report that no reader takes once it is changed, and why.
type changedReport struct {
	of     func() *Telemetry
	change func(*Telemetry)
	want   string
}

// refused has it refused by who writes it and by who reads it.
func (c changedReport) refused(t *testing.T, name string) {
	t.Helper()
	p := c.of()
	c.change(p)
	if _, err := EncodeTelemetry(p); err == nil || !strings.Contains(err.Error(), c.want) {
		t.Errorf("%s is encoded: %v, want %q", name, err, c.want)
	}
	body, err := json.Marshal(p)
	check(t, err)
	if _, err := DecodeTelemetry(controlView(t, KindHeartbeat, string(body))); ReasonOf(err) != ReasonMalformed ||
		!strings.Contains(err.Error(), c.want) {
		t.Errorf("%s is decoded: %v, want %q", name, err, c.want)
	}
}

// Every path of the two reports, changed to what no reader takes.
func TestReportRefused(t *testing.T) {
	far := ShardsMax
	for name, c := range map[string]changedReport{
		"both":    {testTrainerReport, func(p *Telemetry) { p.Server = testServerReport().Server }, "exactly one"},
		"neither": {testTrainerReport, func(p *Telemetry) { p.Trainer = nil }, "exactly one"},
		"every":   {testTrainerReport, func(p *Telemetry) { p.EveryMS = 0 }, "every_ms 0"},
		"seldom":  {testTrainerReport, func(p *Telemetry) { p.EveryMS = TelemetryEveryMax + 1 }, "every_ms 3600001"},
		"pid":     {testTrainerReport, func(p *Telemetry) { p.PID = -1 }, "pid -1"},
		"doing":   {testTrainerReport, func(p *Telemetry) { p.Trainer.Doing = "sleeping" }, `doing "sleeping"`},
		"shard":   {testTrainerReport, func(p *Telemetry) { p.Trainer.AwaitedShard = &far }, "awaited_shard 4096"},
		"time":    {testTrainerReport, func(p *Telemetry) { p.Trainer.SendSeconds = -1 }, "send_seconds -1"},
		"no time": {testTrainerReport, func(p *Telemetry) { p.Trainer.Links[1].RoundTrip = Real(math.Inf(1)) },
			"round_trip_seconds"},
		"pending": {testTrainerReport, func(p *Telemetry) { p.Trainer.Links[1].PendingBytes = -1 }, "pending_bytes -1"},
		"links": {testTrainerReport, func(p *Telemetry) { p.Trainer.Links = make([]LinkReport, LinksMax+1) },
			"links of 257: want at most 256"},
		"replicas": {testTrainerReport, func(p *Telemetry) { p.Trainer.Replicas = make([]ReplicaDigest, ReplicasMax+1) },
			"replicas of 9"},
		"backend": {testTrainerReport, func(p *Telemetry) { p.Trainer.Backend = strings.Repeat("x", TextBytesMax+1) },
			"backend of 4097 bytes"},
		"gpus": {testTrainerReport, func(p *Telemetry) { p.Trainer.GPUs = make([]GPUReport, telemetryGPUsMax+1) },
			"gpus of 65"},
		"state":   {testTrainerReport, func(p *Telemetry) { p.Trainer.GPUs[0].State = "fine" }, `state "fine"`},
		"code":    {testTrainerReport, func(p *Telemetry) { p.Trainer.GPUs[0].Code = `x"} 1` }, "code"},
		"xids":    {testTrainerReport, func(p *Telemetry) { p.Trainer.GPUs[0].XIDs = map[string]uint64{"": 1} }, "xids"},
		"id":      {testServerReport, func(p *Telemetry) { p.Server.ID = "Box" }, `id "Box"`},
		"phase":   {testServerReport, func(p *Telemetry) { p.Server.Jobs[0].Phase = "waiting" }, `phase "waiting"`},
		"job":     {testServerReport, func(p *Telemetry) { p.Server.Jobs[0].Name = "a.b" }, `name "a.b"`},
		"member":  {testServerReport, func(p *Telemetry) { p.Server.Jobs[0].Members[1].Member = "" }, `member ""`},
		"waited":  {testServerReport, func(p *Telemetry) { p.Server.Jobs[0].Members[1].WaitedMS = -1 }, "waited_ms -1"},
		"waiting": {testServerReport, func(p *Telemetry) { p.Server.Shards[0].Waiting.First[0] = "T" }, `first "T"`},
		"shards": {testServerReport, func(p *Telemetry) { p.Server.Shards = make([]ShardReport, TelemetryShardsMax+1) },
			"shards of 1025"},
		"refused": {testServerReport, func(p *Telemetry) { p.Server.Refused = make([]RefusedReport, TelemetryRefusedMax+1) },
			"refused of 17"},
		"disks": {testServerReport, func(p *Telemetry) { p.Server.Disks = make([]DiskReport, TelemetryDisksMax+1) },
			"disks of 17"},
		"reasons": {testServerReport, func(p *Telemetry) { p.Server.Reasons["not a label"] = 1 }, "reasons"},
		"failure": {testDurableReport, func(p *Telemetry) {
			p.Server.Jobs[0].Durability.Failure = strings.Repeat("x", FailureBytesMax+1)
		}, "failure of 513 bytes"},
		"off": {testDurableReport, func(p *Telemetry) {
			p.Server.Jobs[0].Durability.Off = strings.Repeat("x", FailureBytesMax+1)
		}, "off of 513 bytes"},
		"durable": {testDurableReport, func(p *Telemetry) { p.Server.Jobs[0].Durability.DurableMS = -1 }, "durable_ms -1"},
		"took": {testDurableReport, func(p *Telemetry) { p.Server.Jobs[0].Durability.TookSeconds = Real(math.NaN()) },
			"took_seconds NaN"},
		"buckets": {testBucketsReport, func(p *Telemetry) { p.Server.Shards[0].Buckets = make([]BucketReport, 65) },
			"buckets of 65"},
		"keepers": {testServerReport, func(p *Telemetry) { p.Server.Jobs[0].Keepers = make([]string, telemetryNamesMax+1) },
			"keepers of 4097"},
	} {
		c.refused(t, name)
	}
}

func TestReplicaReportRefused(t *testing.T) {
	for name, c := range map[string]changedReport{
		"told": {testReplicaReport, func(p *Telemetry) { p.Server.Jobs[0].Replica.ToldMS = -1 }, "told_ms -1"},
		"held": {testReplicaReport, func(p *Telemetry) {
			p.Server.Primary.Jobs = make([]HeldReport, TelemetryJobsMax+1)
		}, "jobs of 257"},
		"held job": {testReplicaReport, func(p *Telemetry) { p.Server.Primary.Jobs[0].Job = "a.b" }, `job "a.b"`},
		"lost": {testReplicaReport, func(p *Telemetry) {
			p.Server.Primary.Jobs[0].Lost = strings.Repeat("x", FailureBytesMax+1)
		}, "lost of 513 bytes"},
		"kept": {testPeersReport, func(p *Telemetry) {
			p.Server.Jobs[0].Replica.Kept = make([]KeptReport, TelemetryKeptMax+1)
		}, "kept of 257"},
		"kept failure": {testPeersReport, func(p *Telemetry) {
			p.Server.Jobs[0].Replica.Kept[1].Failure = strings.Repeat("x", FailureBytesMax+1)
		}, "failure of 513 bytes"},
	} {
		c.refused(t, name)
	}
}

// A failure that is too long loses of its middle, and never a part of a character.
func TestClipFailure(t *testing.T) {
	for _, c := range []struct{ text, begins, ends string }{
		{"write x: no space left", "write x: no space left", "write x: no space left"},
		{"write " + strings.Repeat("/folder", 600) + ": no space left on device", "write /folder/folder",
			"no space left on device"},
		{strings.Repeat("é", FailureBytesMax), "éé", "éé"},
		{"x" + strings.Repeat("é", FailureBytesMax), "xé", "éé"},
	} {
		got := ClipFailure(c.text)
		if len(got) > FailureBytesMax || !utf8.ValidString(got) || !strings.HasPrefix(got, c.begins) ||
			!strings.HasSuffix(got, c.ends) {
			t.Errorf("%d bytes %q", len(got), got)
		}
	}
}

func TestReportBodiesRefused(t *testing.T) {
	for body, want := range map[string]string{
		`null`: "exactly one", `[]`: "cannot unmarshal", `{}`: "exactly one",
		`{"every_ms":1,"trainer":{"doing":"keys"}}{}`:                              "exactly one",
		`{"every_ms":1,"trainer":{"doing":"keys","loss":{"last":"1"}}}`:            "want a number",
		`{"every_ms":1,"trainer":{"doing":"keys","loss":{"last":1e999}}}`:          "want a number",
		`{"every_ms":1e99,"trainer":{"doing":"keys"}}`:                             "cannot unmarshal",
		`{"every_ms":1,"trainer":{"doing":"keys","gpus":` + strings.Repeat("[", 9): "deeper",
	} {
		if _, err := DecodeTelemetry(controlView(t, KindHeartbeat, body)); ReasonOf(err) != ReasonMalformed ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	if _, err := DecodeTelemetry(controlView(t, KindControl, `{}`)); ReasonOf(err) != ReasonUnknownKind {
		t.Errorf("a control frame decodes as a report: %v", err)
	}
	if _, err := DecodeTelemetry(controlView(t, KindHeartbeat, "")); ReasonOf(err) != ReasonMalformed {
		t.Errorf("a heartbeat without a report decodes as one: %v", err)
	}
	if _, err := EncodeTelemetry(tooLarge()); err == nil || !strings.Contains(err.Error(), "bytes of JSON: want at most") {
		t.Errorf("a report that no frame has room for is encoded: %v", err)
	}
}

func TestReportIsOfItsSender(t *testing.T) {
	trainer, server := testTrainerReport(), testServerReport()
	for _, c := range []struct {
		p    *Telemetry
		job  JobName
		from Member
		ok   bool
	}{
		{trainer, "demo", "t3", true}, {trainer, TelemetryJob, "t3", true}, {trainer, "demo", "t", false},
		{trainer, "demo", "t3x", false},
		{trainer, "demo", "s3", false}, {trainer, "demo", "coordinator", false}, {trainer, "demo", "t99999", false},
		{trainer, TelemetryJob, "p-box-4222", false},
		{server, TelemetryJob, "p-box-4222", true}, {server, TelemetryJob, "p-box-4223", false},
		{server, "demo", "p-box-4222", false}, {server, TelemetryJob, "t0", false},
	} {
		if err := c.p.CheckFrom(c.job, c.from); (err == nil) != c.ok {
			t.Errorf("from %s of %s: %v", c.from, c.job, err)
		}
	}
}

func TestRealSurvives(t *testing.T) {
	for _, f := range []float64{0, -0.5, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1),
		math.NaN()} {
		b, err := json.Marshal(Real(f))
		check(t, err)
		var got Real
		check(t, json.Unmarshal(b, &got))
		if float64(got) != f && !(math.IsNaN(f) && math.IsNaN(float64(got))) {
			t.Errorf("%v became %s and %v", f, b, got)
		}
	}
}

// What a newer member says beside what is known is passed over, wherever it stands, and nothing else is less checked
// for it.
func TestReportOfANewerMember(t *testing.T) {
	const newer = `"era":{"of":[1e999,null]},"zone":"\u00e9"`
	for _, p := range []*Telemetry{testTrainerReport(), testServerReport()} {
		body, err := json.Marshal(p)
		check(t, err)
		want, err := DecodeTelemetry(controlView(t, KindHeartbeat, string(body)))
		check(t, err)
		text := string(body)
		for at := 0; at < len(text); at++ {
			if text[at] != '{' || strings.HasSuffix(text[:at], `"reasons":`) || strings.HasSuffix(text[:at], `"xids":`) {
				continue
			}
			got, err := DecodeTelemetry(controlView(t, KindHeartbeat, text[:at+1]+newer+","+text[at+1:]))
			if err != nil {
				t.Fatalf("a field more at %.60s: %v", text[at:], err)
			}
			first, _ := json.Marshal(want)
			second, _ := json.Marshal(got)
			if string(first) != string(second) {
				t.Errorf("with a field more at %.60s it says\n%s\nwant\n%s", text[at:], second, first)
			}
		}
	}
	for body, want := range map[string]string{
		`{"every_ms":1,"era":1,"era":2,"trainer":{"doing":"keys"}}`:                                               "twice",
		`{"every_ms":1,"Era":1,"trainer":{"doing":"keys"}}`:                                                       "lower case",
		`{"every_ms":1,"era":` + strings.Repeat("[", 9) + strings.Repeat("]", 9) + `,"trainer":{"doing":"keys"}}`: "deeper",
		`{"every_ms":1,"era":1,"trainer":{"doing":"keys","era":1,"batches":-1}}`:                                  "cannot unmarshal",
		`{"every_ms":1,"era":1,"trainer":{"doing":"dreaming"}}`:                                                   `doing "dreaming"`,
	} {
		if _, err := DecodeTelemetry(controlView(t, KindHeartbeat, body)); ReasonOf(err) != ReasonMalformed ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// FuzzDecodeTelemetry: whatever decodes can be written again, and says the same.
func FuzzDecodeTelemetry(f *testing.F) {
	for _, p := range []*Telemetry{testTrainerReport(), testServerReport()} {
		body, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 || len(body) > bodyBytesMax {
			return
		}
		p, err := DecodeTelemetry(controlView(t, KindHeartbeat, string(body)))
		if err != nil {
			return
		}
		frame, err := encodeReport(Head{}, p)
		if err != nil {
			if strings.Contains(err.Error(), "bytes of body") {
				return // escapes and numbers may be written longer than they were
			}
			t.Fatal(err)
		}
		v, err := Verify(frame, Limits{})
		check(t, err)
		again, err := DecodeTelemetry(&v)
		check(t, err)
		first, _ := json.Marshal(p)
		second, _ := json.Marshal(again)
		if string(first) != string(second) {
			t.Fatalf("%s became %s", first, second)
		}
	})
}
