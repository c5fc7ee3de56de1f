package schema

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

func real(f float64) *Real { r := Real(f); return &r }

// testTrainerPulse has a value in every field.
func testTrainerPulse() *Pulse {
	shard, used := 1, int64(3<<30)
	return &Pulse{Serial: 12, StartedMS: 1700000000000, NowMS: 1700000012000, EveryMS: 1000, Host: "box", PID: 71, Trainer: &TrainerPulse{
		RunID: sampleRun, Batch: 18, Batches: 18, Planned: 100, Samples: 576, Doing: DoingLookup, DoingMS: 17, AwaitedShard: &shard,
		Loss:         TrainLoss{Sum: 288.5, Samples: 544, Last: Real(math.NaN()), Bad: 1},
		GradientNorm: real(0.125), GradientBatch: 17,
		KeysSeconds: 0.25, LookupSeconds: 1.5, ComputeSeconds: 8, SendSeconds: 0.75, ResultSeconds: 1.25,
		Traffic:        Traffic{BytesSent: 4096, BytesReceived: 8192, MessagesSent: 40, MessagesReceived: 80, Connected: true},
		GradientFrames: 36, Results: 54,
		Links:    []LinkPulse{{Shard: 0, WindowBytes: 4 << 20, Frames: 18, RoundTrip: 0.0005}, {Shard: 1, PendingBytes: 65536, WindowBytes: 4 << 20, Frames: 18, Resent: 1, RoundTrip: 0.0015}},
		Replicas: []ReplicaDigest{{Version: 16, Digest: 0xe3069283}},
		Process:  ProcessPulse{CPUSeconds: 9.5, ResidentBytes: 64 << 20, HeapBytes: 8 << 20, Goroutines: 14, CPUs: 2},
		Backend:  "cpu (avx2, 1 thread)",
		GPUs: []GPUPulse{{Index: 0, UUID: "GPU-1", Name: "H100", State: GPUDegraded, Reason: "correctable errors rise", Code: "ecc-corrected", Action: "watch it", SinceMS: 1700000001000,
			SampleMS: 1700000011000, Temperature: real(41), MemoryUsed: &used, Throttled: []string{"hw_slowdown"}, XIDs: map[string]uint64{"63": 1}}},
	}}
}

func testServerPulse() *Pulse {
	return &Pulse{Serial: 3, StartedMS: 1700000000000, NowMS: 1700000003000, EveryMS: 1000, Host: "box", PID: 70, Server: &ServerPulse{
		ID: "box-4222", Version: "0.1.0", URL: "nats://127.0.0.1:4222", Page: "http://127.0.0.1:8080", Backend: "cpu (avx2, 1 thread)", Deadline: 30,
		Frames: 10, Bytes: 1000, Reasons: map[string]uint64{"duplicate": 1}, Memory: MemoryPulse{PromisedBytes: 1 << 20, MaxBytes: 8 << 30},
		Disks: []DiskPulse{{Path: "/tmp", FreeBytes: 1 << 30, TotalBytes: 2 << 30}},
		Jobs: []JobPulse{{Name: "demo", Workload: "example", RunID: sampleRun, Phase: PhaseRunning, Consistency: "sync", Apply: "update", Reduce: "shards", Trainers: 2, Shards: 1, Lanes: 4,
			Batch: 18, Parameters: 6, StartedMS: 1700000001000, Members: []MemberPulse{{Member: "t0", Host: "box (pid 71)", Batch: 18, SilentMS: 400},
				{Member: "t1", Host: "box (pid 72)", Batch: 17, SilentMS: 2400, Gone: true, Waited: true, First: true, WaitedBatch: 17, WaitedMS: 1900}},
			Keepers: []string{"box-4222"}}},
		Shards: []ShardPulse{{Job: "demo", Shard: 0, Ready: true, Version: 17, Frames: 9, Bytes: 900, Acks: 2, Lookups: 4, Rounds: 17, StagedBytesMax: 128 << 20,
			StepSeconds: 0.5, ApplySeconds: 0.25, ApplyBytes: 4096, Waiting: &Wait{Batch: 17, Bucket: 0, Chunk: 2, Members: []Member{"t1"}, First: []Member{"t1"}}}},
		GPUs: []GPUPulse{},
	}}
}

// pulseSamples are a pulse of a trainer and one of a ps.
func pulseSamples(t testing.TB) []sample {
	t.Helper()
	trainer, err := EncodePulse(Head{Job: sampleRun, Generation: 1, Batch: 18, Lanes: 4}, testTrainerPulse())
	if err != nil {
		t.Fatal(err)
	}
	server, err := EncodePulse(Head{}, testServerPulse())
	if err != nil {
		t.Fatal(err)
	}
	saves := testTrainerPulse()
	saves.Trainer.Disks = []DiskPulse{{Path: "models/a.safetensors", FreeBytes: 1 << 30, TotalBytes: 8 << 30, Use: "models, curves", NeedBytes: 24, SampleMS: 1700000009000, Device: "8:1"}}
	disks, err := EncodePulse(Head{Job: sampleRun, Generation: 1, Batch: 18, Lanes: 4}, saves)
	if err != nil {
		t.Fatal(err)
	}
	refuses := testServerPulse()
	refuses.Server.Refused = []RefusedPulse{{Job: "large", Reason: "invalid_job", Field: "tables", Text: "too large", Host: "box (pid 7)", Count: 3, FirstMS: 1700000001000, LastMS: 1700000002000}}
	refused, err := EncodePulse(Head{}, refuses)
	if err != nil {
		t.Fatal(err)
	}
	return []sample{{"pulse-trainer", trainer}, {"pulse-server", server}, {"pulse-disks", disks}, {"pulse-refused", refused}}
}

func TestPulseSurvives(t *testing.T) {
	for _, want := range []*Pulse{testTrainerPulse(), testServerPulse()} {
		frame, err := EncodePulse(Head{Job: 9}, want)
		check(t, err)
		v, err := Verify(frame, Limits{})
		check(t, err)
		got, err := DecodePulse(&v)
		check(t, err)
		if want.Trainer != nil {
			if !math.IsNaN(float64(got.Trainer.Loss.Last)) {
				t.Errorf("a loss that is no number became %v", got.Trainer.Loss.Last)
			}
			got.Trainer.Loss.Last, want.Trainer.Loss.Last = 0, 0
		} else {
			want.Server.GPUs = nil // absent where empty
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
	}
}

// Every path of the two pulses, changed to what no reader takes.
func TestPulseRefused(t *testing.T) {
	far := ShardsMax
	for name, c := range map[string]struct {
		of     func() *Pulse
		change func(*Pulse)
		want   string
	}{
		"both":     {testTrainerPulse, func(p *Pulse) { p.Server = testServerPulse().Server }, "exactly one"},
		"neither":  {testTrainerPulse, func(p *Pulse) { p.Trainer = nil }, "exactly one"},
		"every":    {testTrainerPulse, func(p *Pulse) { p.EveryMS = 0 }, "every_ms 0"},
		"seldom":   {testTrainerPulse, func(p *Pulse) { p.EveryMS = PulseEveryMax + 1 }, "every_ms 3600001"},
		"pid":      {testTrainerPulse, func(p *Pulse) { p.PID = -1 }, "pid -1"},
		"doing":    {testTrainerPulse, func(p *Pulse) { p.Trainer.Doing = "sleeping" }, `doing "sleeping"`},
		"shard":    {testTrainerPulse, func(p *Pulse) { p.Trainer.AwaitedShard = &far }, "awaited_shard 4096"},
		"time":     {testTrainerPulse, func(p *Pulse) { p.Trainer.SendSeconds = -1 }, "send_seconds -1"},
		"no time":  {testTrainerPulse, func(p *Pulse) { p.Trainer.Links[1].RoundTrip = Real(math.Inf(1)) }, "round_trip_seconds"},
		"pending":  {testTrainerPulse, func(p *Pulse) { p.Trainer.Links[1].PendingBytes = -1 }, "pending_bytes -1"},
		"links":    {testTrainerPulse, func(p *Pulse) { p.Trainer.Links = make([]LinkPulse, LinksMax+1) }, "links of 257: want at most 256"},
		"replicas": {testTrainerPulse, func(p *Pulse) { p.Trainer.Replicas = make([]ReplicaDigest, ReplicasMax+1) }, "replicas of 9"},
		"backend":  {testTrainerPulse, func(p *Pulse) { p.Trainer.Backend = strings.Repeat("x", TextBytesMax+1) }, "backend of 4097 bytes"},
		"gpus":     {testTrainerPulse, func(p *Pulse) { p.Trainer.GPUs = make([]GPUPulse, PulseGPUsMax+1) }, "gpus of 65"},
		"state":    {testTrainerPulse, func(p *Pulse) { p.Trainer.GPUs[0].State = "fine" }, `state "fine"`},
		"code":     {testTrainerPulse, func(p *Pulse) { p.Trainer.GPUs[0].Code = `x"} 1` }, "code"},
		"xids":     {testTrainerPulse, func(p *Pulse) { p.Trainer.GPUs[0].XIDs = map[string]uint64{"": 1} }, "xids"},
		"id":       {testServerPulse, func(p *Pulse) { p.Server.ID = "Box" }, `id "Box"`},
		"phase":    {testServerPulse, func(p *Pulse) { p.Server.Jobs[0].Phase = "waiting" }, `phase "waiting"`},
		"job":      {testServerPulse, func(p *Pulse) { p.Server.Jobs[0].Name = "a.b" }, `name "a.b"`},
		"member":   {testServerPulse, func(p *Pulse) { p.Server.Jobs[0].Members[1].Member = "" }, `member ""`},
		"waited":   {testServerPulse, func(p *Pulse) { p.Server.Jobs[0].Members[1].WaitedMS = -1 }, "waited_ms -1"},
		"waiting":  {testServerPulse, func(p *Pulse) { p.Server.Shards[0].Waiting.First[0] = "T" }, `first "T"`},
		"shards":   {testServerPulse, func(p *Pulse) { p.Server.Shards = make([]ShardPulse, PulseShardsMax+1) }, "shards of 1025"},
		"refused":  {testServerPulse, func(p *Pulse) { p.Server.Refused = make([]RefusedPulse, PulseRefusedMax+1) }, "refused of 17"},
		"disks":    {testServerPulse, func(p *Pulse) { p.Server.Disks = make([]DiskPulse, PulseDisksMax+1) }, "disks of 17"},
		"reasons":  {testServerPulse, func(p *Pulse) { p.Server.Reasons["not a label"] = 1 }, "reasons"},
		"keepers":  {testServerPulse, func(p *Pulse) { p.Server.Jobs[0].Keepers = make([]string, PulseNamesMax+1) }, "keepers of 4097"},
	} {
		p := c.of()
		c.change(p)
		if _, err := EncodePulse(Head{}, p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s is encoded: %v, want %q", name, err, c.want)
		}
		body, err := json.Marshal(p)
		check(t, err)
		if _, err := DecodePulse(controlView(t, KindPulse, string(body))); ReasonOf(err) != ReasonMalformed || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s is decoded: %v, want %q", name, err, c.want)
		}
	}
	for body, want := range map[string]string{
		`null`: "exactly one", `[]`: "cannot unmarshal", `{}`: "exactly one", `{"every_ms":1,"trainer":{"doing":"keys"}}{}`: "exactly one",
		`{"every_ms":1,"trainer":{"doing":"keys","loss":{"last":"1"}}}`:            "want a number",
		`{"every_ms":1,"trainer":{"doing":"keys","loss":{"last":1e999}}}`:          "want a number",
		`{"every_ms":1e99,"trainer":{"doing":"keys"}}`:                             "cannot unmarshal",
		`{"every_ms":1,"trainer":{"doing":"keys","gpus":` + strings.Repeat("[", 9): "deeper",
	} {
		if _, err := DecodePulse(controlView(t, KindPulse, body)); ReasonOf(err) != ReasonMalformed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	if _, err := DecodePulse(controlView(t, KindBeat, `{}`)); ReasonOf(err) != ReasonUnknownKind {
		t.Errorf("a beat decodes as a pulse: %v", err)
	}
}

func TestPulseIsOfItsSender(t *testing.T) {
	trainer, server := testTrainerPulse(), testServerPulse()
	for _, c := range []struct {
		p    *Pulse
		job  JobName
		from Member
		ok   bool
	}{
		{trainer, "demo", "t3", true}, {trainer, PulseJob, "t3", true}, {trainer, "demo", "t", false}, {trainer, "demo", "t3x", false},
		{trainer, "demo", "s3", false}, {trainer, "demo", "coordinator", false}, {trainer, "demo", "t99999", false}, {trainer, PulseJob, "p-box-4222", false},
		{server, PulseJob, "p-box-4222", true}, {server, PulseJob, "p-box-4223", false}, {server, "demo", "p-box-4222", false}, {server, PulseJob, "t0", false},
	} {
		if err := c.p.CheckFrom(c.job, c.from); (err == nil) != c.ok {
			t.Errorf("from %s of %s: %v", c.from, c.job, err)
		}
	}
}

func TestRealSurvives(t *testing.T) {
	for _, f := range []float64{0, -0.5, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN()} {
		b, err := json.Marshal(Real(f))
		check(t, err)
		var got Real
		check(t, json.Unmarshal(b, &got))
		if float64(got) != f && !(math.IsNaN(f) && math.IsNaN(float64(got))) {
			t.Errorf("%v became %s and %v", f, b, got)
		}
	}
}

// What a newer member says beside what is known is passed over, wherever it stands, and nothing else is less checked for it.
func TestPulseOfANewerMember(t *testing.T) {
	const newer = `"era":{"of":[1e999,null]},"zone":"\u00e9"`
	for _, p := range []*Pulse{testTrainerPulse(), testServerPulse()} {
		body, err := json.Marshal(p)
		check(t, err)
		want, err := DecodePulse(controlView(t, KindPulse, string(body)))
		check(t, err)
		text := string(body)
		for at := 0; at < len(text); at++ {
			if text[at] != '{' || strings.HasSuffix(text[:at], `"reasons":`) || strings.HasSuffix(text[:at], `"xids":`) {
				continue
			}
			got, err := DecodePulse(controlView(t, KindPulse, text[:at+1]+newer+","+text[at+1:]))
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
		if _, err := DecodePulse(controlView(t, KindPulse, body)); ReasonOf(err) != ReasonMalformed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// FuzzDecodePulse: whatever decodes can be written again, and says the same.
func FuzzDecodePulse(f *testing.F) {
	for _, p := range []*Pulse{testTrainerPulse(), testServerPulse()} {
		body, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 || len(body) > BodyBytesMax {
			return
		}
		p, err := DecodePulse(controlView(t, KindPulse, string(body)))
		if err != nil {
			return
		}
		frame, err := EncodePulse(Head{}, p)
		if err != nil {
			if strings.Contains(err.Error(), "bytes of body") {
				return // escapes and numbers may be written longer than they were
			}
			t.Fatal(err)
		}
		v, err := Verify(frame, Limits{})
		check(t, err)
		again, err := DecodePulse(&v)
		check(t, err)
		first, _ := json.Marshal(p)
		second, _ := json.Marshal(again)
		if string(first) != string(second) {
			t.Fatalf("%s became %s", first, second)
		}
	})
}

func BenchmarkPulse(b *testing.B) {
	p := testTrainerPulse()
	frame, err := EncodePulse(Head{}, p)
	if err != nil {
		b.Fatal(err)
	}
	v, err := Verify(frame, Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = EncodePulse(Head{}, p)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = DecodePulse(&v)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = p.check()
		}
	})
	b.Run("names", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = checkNames(v.Body())
		}
	})
}
