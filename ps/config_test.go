package ps

import (
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/shardtest"
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
	err := Config{Host: "0.0.0.0", Port: 70000, Shards: 65, Token: "", Deadline: time.Millisecond, Backend: "gpu",
		Threads: 257, MemoryBytesMax: -1,
		StagedBytesMax: 5, JobsMax: -2, PayloadBytesMax: 100 << 20}.Validate()
	if err == nil {
		t.Fatal("passes")
	}
	for _, want := range []string{
		"port 70000: want 1 to 65535", "shards 65: want 1 to 64",
		"host 0.0.0.0: other machines can reach it, and there is no token",
		"deadline 1ms: want 1s to 1h0m0s", `backend "gpu": want one of auto, go, cpu, cuda`, "threads 257: want 1 to 256",
		"memory_bytes_max -1",
		"staged_bytes_max 5: want 16777216 to 1099511627776", "jobs_max -2: want 1 to 1024",
		"payload_bytes_max 104857600: want 1048576 to 8388608",
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

// Replicas need to know where they are: in a pair, or among the ps of a NATS server of its own.
func TestWhereReplicasAre(t *testing.T) {
	const at, control = "nats://10.0.0.2:4222", "0123456789abcdef"
	for _, c := range []struct {
		config Config
		wrong  string
	}{
		{Config{Replicas: 1, Peer: at}, ""},
		{Config{Replicas: 1, NATS: at}, ""},
		{Config{Replicas: 1}, "want it with nats"},
		{Config{Replicas: 1, ControlToken: control}, "want it with nats"},
		{Config{Replicas: 2, NATS: at}, "replicas 2: want 0 or 1"},
		{Config{Peer: at}, "want replicas 1 with it"},
		{Config{Replicas: 1, Peer: at, NATS: at}, "want it without nats"},
	} {
		if err := c.config.Validate(); (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.wrong)
		}
	}
}

func TestJobBytes(t *testing.T) {
	job := shardtest.SmallJob("bytes", 2, 2)
	job.Parameters, job.Tables = job.Parameters[1:], job.Tables[:1] // 3 values; 400 rows of 5
	const shards, staged = 2, 16 << 20
	c := Config{Shards: shards, StagedBytesMax: staged}
	check := func(what string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d bytes, want %d", what, got, want)
		}
	}
	// rows and momentum 2*400*5*4, 8 partitions of 16 on each shard, flags 400; two versions of values in one frame, and
	// momentum 3*16.
	m := MemoryOf(c, job, shards, shards)
	check("tables with momentum", m.Tables, 16000+2*8*16+400)
	check("parameters with momentum", m.Parameters, 48+2*shard.FrameBytesOver)
	check("outside the heap", m.outside, 16000+400+24)
	// 12 bytes of values, 400 rows of 20 with keys of 8, and room beside for 7 frames; both nodes, in buffers a 16th
	// larger.
	all := int64(12+400*28) + 7*shard.FrameBytesOver
	check("staged", m.Staged, 2*(all+all/16))
	scratch := 2 * (400*28 + 7*shard.FrameBytesOver) // of all nodes
	check("scratch", m.Scratch, int64(3*scratch))
	job.Policy = schema.PolicyRecover
	check("scratch with an undo log of momentum", MemoryOf(c, job, shards, shards).Scratch, int64(5*scratch))
	job.Policy = schema.PolicyFail
	check("parked", m.Parked, 2*2*(400*8+(400*5*4/schema.ChunkBytesMin+2)*2*shard.FrameBytesOver)*17/16)
	check("under way", m.UnderWay, 2*4*(4<<20))
	check("fan-out", m.FanOut, 2*all)
	check("all", JobBytes(c, job, shards), m.Tables+m.Parameters+m.Staged+m.Scratch+m.Parked+
		m.UnderWay+m.FanOut+m.Connections)
	check("connections", m.Connections, 2*4*(1<<20+64<<10+32*11<<10))
	fixed := baseBytes + garbageBytes + 32<<20 + 2<<20 + fabric.AnonymousBytes(4096)
	check("process", ProcessBytes(c, job), JobBytes(c, job, shards)+fixed)
	check("links, where another ps has shards too", MemoryOf(c, job, 2, 3).Links, 2<<20)
	job.Modules = []schema.ModuleSpec{{Name: "m", In: []int{2}, Samples: 3, Contexts: 2,
		Module: `[{"linear":{"in":2,"out":2}}]`}}
	check("modules", MemoryOf(c, job, shards, shards).Modules, new(module.Sizes).Bytes(job))
	job.Modules = nil
	job.Optimizer.Momentum = 0
	m = MemoryOf(c, job, shards, shards)
	check("tables", m.Tables, 8000+2*8*16)
	check("parameters", m.Parameters, 24+2*shard.FrameBytesOver)
	for _, c := range []struct{ partitions, own, rows int64 }{{8, 1, 200}, {8, 2, 400}, {1, 1, 400}, {3, 1, 268},
		{3, 2, 400}, {7, 1, 232}} {
		job.Tables[0].Partitions = int(c.partitions)
		check("tables on some shards", MemoryOf(Config{StagedBytesMax: staged}, job, int(c.own), shards).Tables,
			c.rows*20+c.own*c.partitions*16)
	}
	job.Tables[0].Partitions = 8
	job.Consistency, job.Ahead = schema.ConsistencyBounded, 3 // eight versions of three values
	check("parameters, three batches ahead", MemoryOf(c, job, shards, shards).Parameters, 96+8*shard.FrameBytesOver)
	job.Tables, job.Parameters[0].Shape, job.ChunkBytes = job.Tables[:1], []int{1 << 20}, 4096
	check("parameters of one of two shards", MemoryOf(c, job, 1, shards).Parameters,
		8*(2<<20+4096+(1024+1)*shard.FrameBytesOver))
	job.Parameters[0].Shape = []int{3}
	job.Tables[0].Rows = 1 << 24
	m = MemoryOf(c, job, shards, shards)
	check("staged at the budget", m.Staged, shards*staged)
	check("fan-out at the limit", m.FanOut, 2*fabric.PendingBytesMaxDefault)
}
