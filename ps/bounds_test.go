package ps

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// What waits for the control loop is bounded in bytes: control messages may have a body of 1 MiB where a ps says them,
// or where they are joins, which wait elsewhere. A heartbeat waits without its report, so that large ones keep nobody
// out.
func TestMessagesAreBounded(t *testing.T) {
	const sent = 200
	for _, c := range []struct {
		from              string
		kind              schema.Kind
		least, most, join int
	}{
		{"coordinator", schema.KindControl, 1, 32, 0}, {"p-a", schema.KindControl, 1, 32, 0},
		{"t0", schema.KindControl, 0, 0, 0}, {"j-a", schema.KindControl, 0, 0, 1},
		{"t0", schema.KindHeartbeat, sent, sent, 0},
	} {
		server := &Server{}
		server.reporter = &reporter{server: server}
		in := newInbox(server) // nothing reads it
		f := shardtest.NewFrame(t, schema.Layout{Kind: c.kind, Body: 1 << 20})
		sealed, subject := f.Seal(), fabric.At("job", c.from, kindToken(c.kind), string(schema.All)).String()
		for range sent {
			in.receive(fabric.NewMessage(subject, sealed))
		}
		n, joins := len(in.messages), len(in.manifests.waiting)
		if n < c.least || n > c.most || joins != c.join {
			t.Errorf("%d messages of %s and %d joins of 1 MiB wait, want at most %d and %d", n, c.from, joins, c.most, c.join)
		}
		lost := sent - n - joins
		if c.from == "t0" {
			lost = 0 // it was refused
		}
		if dropped := int(server.counters.dropped.Load()); dropped != lost {
			t.Errorf("%d of %s dropped, %d and %d wait", dropped, c.from, n, joins)
		}
	}
}

// A trainer that is turned away leaves no job behind, though its manifest was the first.
func TestRefusedFirstTrainerLeavesNoJob(t *testing.T) {
	s := startServer(t, Config{})
	m := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("wanted", 2, 2)), "j-a")
	m.control2(schema.Control{Join: &schema.Join{Job: m.p.Job, Wanted: "t7"}})
	if r := m.answer().Refused; r == nil || r.Field != "wanted" {
		t.Fatalf("%+v, want a refusal of t7", r)
	}
	eventually(t, "the job to be gone", func() bool { return len(s.Stats().Jobs) == 0 })
	other := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("wanted", 1, 3)), "j-b") // another manifest
	other.join()
	other.leave("")
}

// Rows of few values have keys of twice their size: a job whose rows and keys do not fit a message is refused when it
// is registered, since no answer to its lookups could be sent.
func TestChunksBeyondTheMessageAreRefused(t *testing.T) {
	for _, c := range []struct {
		name         string
		payload      int
		dim, chunk   int
		tables, fits bool
	}{
		{"rows of one value", 8 << 20, 1, 4 << 20, true, false},
		{"rows of one value, smaller chunks", 8 << 20, 1, 2 << 20, true, true},
		{"rows of 64", 8 << 20, 64, 4 << 20, true, true},
		{"small messages", 1 << 20, 64, 1 << 20, true, false},
		{"small messages and chunks", 1 << 20, 64, 256 << 10, true, true},
		{"small messages, dense alone", 1 << 20, 64, 1 << 20, false, false},
	} {
		job := shardtest.SmallJob("job", 1, 1)
		job.ChunkBytes, job.Tables[0].Dim = c.chunk, c.dim
		if !c.tables {
			job.Tables = nil
		}
		r := checkMessages(job, "the server", c.payload)
		if (r == nil) != c.fits {
			t.Errorf("%s: %+v", c.name, r)
		}
		if r != nil && (r.Field != "chunk_bytes" || !strings.Contains(r.Text, "chunk_bytes")) {
			t.Errorf("%s: %+v does not name chunk_bytes", c.name, r)
		}
	}
}

// A trainer's share of the budget holds a dense chunk of each of its nodes, which wait for each other.
func TestStagedBytesHoldOneChunkOfEveryNode(t *testing.T) {
	job := shardtest.SmallJob("job", 3, 4096)
	job.ChunkBytes = 4 << 20
	nodes := 0
	for _, h := range round.ContributorsOf(job) {
		nodes = max(nodes, len(lane.Nodes(h.First, h.Count, job.Lanes)))
	}
	if share, need := stagedBytes(job, stagedDefault)/3, int64(nodes)*(4<<20); nodes < 10 || share < need {
		t.Errorf("share of %d bytes, and %d nodes take %d", share, nodes, need)
	}
	job.ChunkBytes = schema.ChunkBytes
	if n := stagedBytes(job, stagedDefault); n != stagedDefault {
		t.Errorf("%d bytes with usual chunks, want what was configured", n)
	}
}

// Members have names of their own: a join from one of those would be taken for the member.
func TestJoinComesFromADrawnName(t *testing.T) {
	s := startServer(t, Config{})
	m := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("named", 1, 2)), "t5")
	m.control2(schema.Control{Join: &schema.Join{Job: m.p.Job}})
	eventually(t, "the join to be refused", func() bool { return s.Stats().Reasons[schema.ReasonUnknownSender] == 1 })
	if n := len(s.Stats().Jobs); n != 0 {
		t.Errorf("%d jobs, want none", n)
	}
}

// Windows are 4 MiB where there is room, and together no more than the job's share, or what one message each takes
// where there is that much, nor any more than half of a trainer's share of the budget. A job that they would be too
// small for is refused.
func TestWindowsFollowFromTheBudgets(t *testing.T) {
	message := int64(windowJob(1).MessageBytesMax())
	for _, c := range []struct {
		name                string
		trainers, own       int
		staged, share, most int64
		want                int64
		refused             bool
	}{
		{"usual", 2, 2, stagedDefault, 64 << 20, 68 << 20, 4 << 20, false},
		{"16 windows", 8, 2, stagedDefault, 64 << 20, 68 << 20, 4 << 20, false},
		{"64 windows", 32, 2, stagedDefault, 64 << 20, 68 << 20, 1 << 20, false},
		{"budget for rounds", 32, 1, 32 << 20, 1 << 40, 1 << 40, 1 << 19, false},
		{"other jobs", 2, 1, stagedDefault, 2 << 20, 4 << 20, 1 << 20, false},
		{"messages are more than its share", 64, 2, stagedDefault, 4 << 20, 128*message + 127, message, false},
		{"messages are more than there is", 64, 2, stagedDefault, 4 << 20, 8 << 20, 1 << 16, true},
		{"nothing left", 1, 1, stagedDefault, 0, 0, 0, true},
		{"less than nothing", 1, 1, stagedDefault, -1 << 19, -1 << 20, 0, true},
	} {
		job := windowJob(c.trainers)
		got := windowBytes(job, c.own, c.staged, c.share, c.most)
		if got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
		if r := new(Config).checkWindows(job, c.own, got); (r != nil) != c.refused ||
			r != nil && !strings.Contains(r.Text, "--pending-mib") {
			t.Errorf("%s: refused %+v", c.name, r)
		}
	}
}

func windowJob(trainers int) *schema.Job {
	job := shardtest.SmallJob("job", trainers, trainers)
	job.ChunkBytes, job.Tables = 64<<10, nil
	return job
}

// keyedJob has messages of the usual size, as large as keys of rows of one value make them.
func keyedJob(name string, trainers int) *schema.Job {
	job := shardtest.SmallJob(name, trainers, trainers)
	job.ChunkBytes = schema.ChunkBytes
	job.Tables = []schema.TableSpec{{Name: "t", Rows: 100, Dim: 1, Partitions: 64,
		Init: schema.Init{Kind: schema.InitZeros}}}
	return job
}

// However many jobs gather, and whatever they take, as many as may be have windows that they can run with, and all
// windows are within half of the server's queues.
func TestEveryJobHasAWindow(t *testing.T) {
	for _, c := range []struct{ trainers, shards int }{{2, 2}, {1, 4}, {1, 5}} {
		s := startServer(t, Config{Shards: c.shards, MemoryBytesMax: 1 << 40})
		sum := int64(0)
		for i := range s.config.JobsMax {
			job := keyedJob(fmt.Sprint("job-", i), c.trainers)
			m := newMiniTrainer(t, s, shardtest.New(t, job), "j-"+string(job.Name))
			m.join()
			if window := m.joined.WindowBytes; window > 4<<20 || window < int64(job.MessageBytesMax()) {
				t.Errorf("job %d has a window of %d bytes, and messages of %d", i, window, job.MessageBytesMax())
			}
			sum += int64(job.Trainers*c.shards) * m.joined.WindowBytes
		}
		if sum > s.config.PendingBytesMax/2 {
			t.Errorf("windows of %d bytes, want at most %d", sum, s.config.PendingBytesMax/2)
		}
		s.Close()
	}
}

// A large job that comes first is not refused for those that may come.
func TestLargeJobHasWindows(t *testing.T) {
	h := &shardHost{server: &Server{config: Config{}.withDefaults()}}
	for _, c := range []struct{ trainers, shards int }{{11, 5}, {11, 7}} {
		job := keyedJob("large", c.trainers)
		if r := h.server.config.checkWindows(job, c.shards, h.window(job, c.shards, nil)); r != nil {
			t.Errorf("%d trainers to %d shards: %s", c.trainers, c.shards, r.Text)
		}
	}
}

// A job whose other trainers do not come ends, and who waits is told.
func TestJobsGatherForABoundedTime(t *testing.T) { testkit.Waits(t, jobsGatherForABoundedTime) }

func jobsGatherForABoundedTime(t *testing.T) {
	s := startServer(t, Config{StartTimeout: time.Second})
	m := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("alone", 2, 2)), "j-a")
	m.join()
	f := m.failure()
	if !strings.Contains(f.Text, "for 1 of its 2 trainers") || !strings.Contains(f.Text, "--start-timeout") {
		t.Errorf("told %+v", f)
	}
	eventually(t, "its memory is free", func() bool { return s.Stats().Memory == 0 })
}

// What trainers are told is what the server counts on: the windows of all jobs stay below half of its queues.
func TestTrainersAreToldTheirWindow(t *testing.T) {
	s := startServer(t, Config{Shards: 2, PendingBytesMax: 64 << 20})
	sum, last := int64(0), int64(4<<20)
	for _, name := range []string{"one", "two", "three"} {
		job := shardtest.SmallJob(name, 2, 2)
		for _, m := range gather(t, s, shardtest.New(t, job), "j-"+name+"a", "j-"+name+"b") {
			window := m.joined.WindowBytes
			if window <= 0 || window > last {
				t.Errorf("job %s: window of %d bytes after one of %d", name, window, last)
			}
			sum, last = sum+2*window, window
		}
	}
	if sum > 32<<20 {
		t.Errorf("windows of %d bytes in all, want at most half of 64 MiB", sum)
	}
}

// Every ps of a job counts on the window that trainers were told, whatever it would have granted itself: a trainer may
// send as much to each shard, and its share of the open rounds there holds it twice.
func TestServersShareTheWindow(t *testing.T) {
	const trainers = 4
	narrow := startServer(t, Config{ID: "narrow", ControlToken: "the-token-of-peers", StagedBytesMax: stagedBytesMin,
		PendingBytesMax: 128 << 20})
	wide := mustStart(t, Config{ID: "wide", Shards: 2, ControlToken: "the-token-of-peers", NATS: narrow.URL()})
	c := newControlClient(t, narrow.URL(), shardtest.SmallJob("both", trainers, trainers), "j-a")
	told := c.join().WindowBytes
	owner, _ := whoCoordinates(t, narrow, wide)
	t.Logf("coordinated by ps %s, window of %d bytes", owner.ID(), told)
	if told <= 0 {
		t.Fatal("trainers are told no window")
	}
	for _, s := range []*Server{narrow, wide} {
		a := (*s.jobs.Load())["both"]
		if a == nil || len(a.own) == 0 {
			t.Fatalf("ps %s has no shard of the job", s.ID())
		}
		for _, i := range a.own {
			w := a.workers[i]
			if w.window != told || w.config.StagedBytesMax < 2*trainers*told {
				t.Errorf("shard %d of ps %s counts on a window of %d bytes, and has %d for open rounds; %d trainers were told %d",
					i, s.ID(), w.window, w.config.StagedBytesMax, trainers, told)
			}
		}
		if own, least := int64(len(a.own)), queueBytes(trainers, told); a.memory.UnderWay < own*least {
			t.Errorf("ps %s has promised %d bytes for windows, want %d for each of %d shards", s.ID(), a.memory.UnderWay, least,
				own)
		}
	}
}
