package ps

import (
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil || c.Host != "127.0.0.1" || c.Port != 4222 || c.Deadline != 30*time.Second {
		t.Errorf("default %+v: %v", c, err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("zero configuration: %v", err)
	}
}

// Everything that is wrong is said at once: field, value and what would be right.
func TestValidateListsEveryError(t *testing.T) {
	err := Config{Host: "0.0.0.0", Port: 70000, Shards: 65, Token: "", Deadline: time.Millisecond, Backend: "gpu", Threads: 257, MemoryBytesMax: -1,
		StagedBytesMax: 5, JobsMax: -2, PayloadBytesMax: 100 << 20}.Validate()
	if err == nil {
		t.Fatal("passes")
	}
	for _, want := range []string{
		"port 70000: want 1 to 65535", "shards 65: want 1 to 64", "host 0.0.0.0: other machines can reach it, and there is no token",
		"deadline 1ms: want 1s to 1h0m0s", `backend "gpu": want one of auto, go, cpu, cuda`, "threads 257: want 1 to 256", "memory_bytes_max -1",
		"staged_bytes_max 5: want 16777216 to 1099511627776", "jobs_max -2: want 1 to 1024", "payload_bytes_max 104857600: want 1048576 to 8388608",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

func TestListeningBeyondLoopback(t *testing.T) {
	for _, c := range []struct {
		config Config
		ok     bool
	}{
		{Config{Host: "127.0.0.1"}, true},
		{Config{Host: "127.8.9.1"}, true},
		{Config{Host: "localhost"}, true},
		{Config{Host: "::1"}, true},
		{Config{Host: "0.0.0.0"}, false},
		{Config{Host: "::"}, false},
		{Config{Host: "10.0.0.1"}, false},
		{Config{Host: "trainers.example"}, false},
		{Config{Host: "10.0.0.1", Token: "0123456789abcdef"}, true},
		{Config{Host: "10.0.0.1", Token: "0123456789abcde"}, false},
		{Config{Token: "secret"}, false},
		{Config{Token: "0123456789abcdef\x1b"}, false},
		{Config{Host: "10.0.0.1", Token: "two words of a token"}, false},
		{Config{Host: "10.0.0.1", Insecure: true}, true},
	} {
		if err := c.config.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v, want ok %v", c.config, err, c.ok)
		}
	}
}

func TestJobBytes(t *testing.T) {
	job := smallJob("bytes", 2, 2)
	job.Parameters, job.Tables = job.Parameters[1:], job.Tables[:1] // 3 values; 400 rows of 5
	const shards, staged = 2, 16 << 20
	c := Config{Shards: shards, StagedBytesMax: staged}
	check := func(what string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d bytes, want %d", what, got, want)
		}
	}
	// rows and momentum 2*400*5*4, keys 400*4, slots 400*4 on each shard, flags 400; two versions of values and momentum 3*16.
	m := MemoryOf(c, job, shards, shards)
	check("tables with momentum", m.Tables, 16000+1600+3200+400)
	check("parameters with momentum", m.Parameters, 48)
	check("outside the heap", m.outside, 16000+24)
	// 12 bytes of values, 400 rows of 20 with keys of 8, and room beside for 7 frames; both nodes, in buffers a 16th larger.
	all := int64(12+400*28) + 7*frameBytesOver
	check("staged", m.Staged, 2*(all+all/16))
	check("scratch with momentum", m.Scratch, 4*2*(400*28+7*frameBytesOver))
	check("under way", m.UnderWay, 2*4*(4<<20))
	check("fan-out", m.FanOut, 2*all)
	check("all", JobBytes(c, job, shards), m.Tables+m.Parameters+m.Staged+m.Scratch+m.UnderWay+m.FanOut+m.Connections)
	check("connections", m.Connections, 2*4*(1<<20+64<<10+32*11<<10))
	check("process", ProcessBytes(c, job), JobBytes(c, job, shards)+baseBytes+garbageBytes+32<<20+fabric.GuestBytes(4096))
	// A module of 6 values, padded to 32, on 3 samples of 2 values that give 2; contexts 2*2.
	job.Modules = []schema.ModuleSpec{{Name: "m", In: []int{2}, Samples: 3, Contexts: 2, Module: `[{"linear":{"in":2,"out":2}}]`}}
	net := netBytesOf(t, job)
	check("modules with momentum", moduleBytes(job), (4+4+2+1)*32*4+(4+2)*net+(4+8)*(24+frameBytesOver)*17/16)
	job.Modules[0].Samples, job.Modules[0].Contexts, job.Trainers = 1<<16, 64, 4096
	job.Modules[0].Module = `[{"linear":{"in":2,"out":128}},` + strings.Repeat(`{"linear":{"in":128,"out":128}},`, 1000) + `{"relu":{}}]`
	if got := moduleBytes(job); got < 1<<50 {
		t.Errorf("the largest of modules: %d bytes", got)
	}
	job.Modules, job.Trainers = nil, 2
	job.Optimizer.Momentum = 0
	m = MemoryOf(c, job, shards, shards)
	check("tables", m.Tables, 8000+1600+3200)
	check("parameters", m.Parameters, 24)
	job.Consistency, job.Ahead = schema.ConsistencyBounded, 3 // five versions of three values
	check("parameters, three batches ahead", MemoryOf(c, job, shards, shards).Parameters, 60)
	job.Tables[0].Rows = 1 << 24
	m = MemoryOf(c, job, shards, shards)
	check("staged at the budget", m.Staged, shards*staged)
	check("fan-out at the limit", m.FanOut, 2*fabric.PendingBytesMaxDefault)
}

func TestMemTotal(t *testing.T) {
	if n := memTotal("MemTotal:       16318480 kB\nMemFree: 1 kB\n"); n != 16318480<<10 {
		t.Errorf("%d", n)
	}
	for _, text := range []string{"", "MemTotal: x kB\n", "MemTotal:\n"} {
		if n := memTotal(text); n != 0 {
			t.Errorf("%q gives %d", text, n)
		}
	}
}

// netBytesOf is what a net of a job's first module takes.
func netBytesOf(t *testing.T, job *schema.Job) int64 {
	t.Helper()
	module, _, err := buildModule(&job.Modules[0])
	if err != nil {
		t.Fatal(err)
	}
	return int64(netBytes(module, &job.Modules[0]))
}
