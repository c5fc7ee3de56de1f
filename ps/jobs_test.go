package ps

import (
	"context"
	"errors"
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// gather joins trainers and waits for the start.
func gather(t testing.TB, s *Server, p *shardtest.Problem, joiners ...string) []*miniTrainer {
	t.Helper()
	var all []*miniTrainer
	for _, j := range joiners {
		m := newMiniTrainer(t, s, p, j)
		m.join()
		all = append(all, m)
	}
	for _, m := range all {
		m.start()
	}
	return all
}

// Two jobs at once, with tensors of the same names, do not see each other.
func TestTwoJobsAtOnce(t *testing.T) {
	s := startServer(t, Config{Shards: 2})
	const batches = 6
	var wg sync.WaitGroup
	for i, name := range []string{"one", "two"} {
		job := shardtest.SmallJob(name, 2, 3+i)
		job.Seed = uint64(100 + i)
		p := shardtest.New(t, job)
		want := p.Model(t)
		for b := range schema.Batch(batches) {
			want.Step(t, b)
		}
		for _, m := range gather(t, s, p, "j-a", "j-b") {
			wg.Go(func() {
				for b := range schema.Batch(batches) {
					m.batch(b)
				}
				for i := range job.Parameters {
					if d := shardtest.FirstDifference(m.params[i], want.Params[i]); d != "" {
						t.Errorf("job %s, %s, parameter %s: %s", name, m.member(), job.Parameters[i].Name, d)
					}
				}
				if d := shardtest.FirstDifference(m.table(batches, 0), want.Tables[0]); d != "" {
					t.Errorf("job %s, %s, table 0: %s", name, m.member(), d)
				}
				m.leave("")
			})
		}
	}
	wg.Wait()
	eventually(t, "both jobs are freed", func() bool { return len(s.Stats().Jobs) == 0 })
	if r := s.Stats().Reasons; r[schema.ReasonForeignJob]+r[schema.ReasonJobUnknown] > 0 {
		t.Errorf("frames without a job: %v", r)
	}
}

// When a job has ended, in whatever way, its name is free for another manifest, and all its memory is returned.
func TestNameIsFreeAgain(t *testing.T) {
	s := startServer(t, Config{Shards: 2})
	for i, end := range []func(*miniTrainer, *miniTrainer){
		func(a, b *miniTrainer) { a.leave(""); b.leave("") },
		func(a, b *miniTrainer) {
			a.leave("loss is NaN")
			if f := b.failure(); f.Member != "t0" || !strings.Contains(f.Text, "loss is NaN") {
				t.Errorf("told %+v, want t0 and its reason", f)
			}
		},
	} {
		for round := range 2 {
			job := shardtest.SmallJob("again", 2, 2)
			job.Seed = uint64(10*i + round) // another manifest every time
			trainers := gather(t, s, shardtest.New(t, job), "j-a"+string(rune('a'+2*i+round)), "j-b"+string(rune('a'+2*i+round)))
			eventually(t, "the statistics show the job and its memory", func() bool {
				got := s.Stats()
				return len(got.Jobs) == 1 && got.Memory == JobBytes(s.config, job, 2) &&
					got.Jobs[0].State == coordinator.Running.String()
			})
			end(trainers[0], trainers[1])
			eventually(t, "the job is freed", func() bool { return s.Stats().Memory == 0 })
		}
	}
}

// A trainer that missed the end of its job is told when it next speaks, and so is one whose server was restarted.
func TestLateTrainerIsTold(t *testing.T) {
	s := startServer(t, Config{})
	m := gather(t, s, shardtest.New(t, shardtest.SmallJob("late", 1, 1)), "j-a")[0]
	m.control(schema.Control{Leave: &schema.Leave{Reason: "enough"}})
	m.failure() // told to all, when it happens
	eventually(t, "the job is freed", func() bool { return len(s.Stats().Jobs) == 0 })
	heartbeat := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindHeartbeat})
	heartbeat.SetHead(schema.Head{Job: m.joined.RunID, Generation: 1})
	at := fabric.At("late", "t0", fabric.KindHeartbeat, "all").String()
	must(t, m.conn.Publish(at, heartbeat.Seal()))
	if f := m.failure(); !strings.Contains(f.Text, "enough") {
		t.Errorf("a late heartbeat is answered by %+v, want the reason of the end", f)
	}
	m.control(schema.Control{Leave: &schema.Leave{}})
	if f := m.failure(); !strings.Contains(f.Text, "enough") {
		t.Errorf("a late leave is answered by %+v, want the reason of the end", f)
	}
	m.control2(schema.Control{Join: &schema.Join{Job: m.p.Job, Host: "test"}})
	if f := m.failure(); !strings.Contains(f.Text, "enough") || len(s.Stats().Jobs) > 0 {
		t.Errorf("a late join is answered by %+v, want the reason of the end and no new job", f)
	}
	heartbeat.SetHead(schema.Head{Job: m.joined.RunID + 1, Generation: 1})
	must(t, m.conn.Publish(at, heartbeat.Seal()))
	if r := refusalFor(t, m.mail); r.Reason != schema.ReasonJobUnknown.String() {
		t.Errorf("a heartbeat of a run that never was gets %+v", r)
	}
}

// What the trainers of an earlier run of a name still say does not touch the run of today.
func TestEarlierRunDoesNotSpeakForThisOne(t *testing.T) {
	s := startServer(t, Config{})
	p := shardtest.New(t, shardtest.SmallJob("twice", 1, 1))
	old := gather(t, s, p, "j-a")[0]
	old.leave("")
	eventually(t, "the first run is freed", func() bool { return len(s.Stats().Jobs) == 0 })
	m := gather(t, s, p, "j-b")[0]
	old.control(schema.Control{Leave: &schema.Leave{Reason: "late"}})
	for c := old.answer(); c.Ended == nil || c.Ended.End != schema.EndCompleted; c = old.answer() {
		if c.Ended != nil {
			t.Fatalf("the earlier run's late leave ended this one: %+v", c.Ended)
		}
	}
	c := p.Frames(t, m.place, old.joined.RunID, 0, lane.Root(1))[0]
	old.send(fabric.KindDense, 0, schema.Head{Batch: 0, Bucket: c.Bucket}, c.Frame)
	if r := refusalFor(t, old.mail); r.Reason != schema.ReasonForeignJob.String() {
		t.Errorf("a gradient of the earlier run is answered by %+v", r)
	}
	refusalFor(t, m.mail) // it goes by the same name; the head says that it is not meant
	m.batch(0)
	if st := s.Stats().Jobs; len(st) != 1 || st[0].RunID != m.joined.RunID || st[0].Members[0].State == "done" {
		t.Errorf("after the earlier run has spoken: %+v", st)
	}
	m.leave("")
}

func drain(mail chan *schema.View) {
	for {
		select {
		case <-mail:
		default:
			return
		}
	}
}

// What jobs are promised follows from what the process may take, of which GOMEMLIMIT is one limit; the control groups
// are in process.TestReadGroup.
func TestPromisesFollowWhatTheProcessMayTake(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	debug.SetMemoryLimit(300 << 20)
	s := startServer(t, Config{})
	if got, want := s.config.MemoryBytesMax, int64(225<<20); got != want {
		t.Errorf("jobs may hold %d bytes, want %d, three quarters of the limit", got, want)
	}
}

// A job that the server cannot take is refused with the field and what would be right, and leaves nothing behind.
func TestJobsRefused(t *testing.T) {
	s := startServer(t, Config{JobsMax: 1, MemoryBytesMax: 1 << 30})
	for _, c := range []struct {
		name   string
		change func(*schema.Job)
		reason string
		field  string
		text   string
	}{
		{"no lanes", func(j *schema.Job) { j.Lanes = 0 }, "invalid_job", "lanes", "lanes: 0: want 1 to 4096"},
		{"another name", func(j *schema.Job) { j.Name = "other" }, "invalid_job", "name",
			"manifest of job other sent as job refused"},
		{"too much", func(j *schema.Job) { j.Tables[0].Rows = 1 << 28 }, "invalid_job", "tables",
			"raise the server's --memory-mib"},
		{"far too much", func(j *schema.Job) { j.Tables[0].Rows = 1 << 40 }, "invalid_job", "tables",
			"raise the server's --memory-mib"},
	} {
		p := &shardtest.Problem{Job: shardtest.SmallJob("refused", 1, 1)}
		m := newMiniTrainer(t, s, p, "j-"+strings.ReplaceAll(c.name, " ", ""))
		c.change(p.Job)
		frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Join: &schema.Join{Job: p.Job}})
		must(t, err)
		must(t, m.conn.Publish(fabric.At("refused", m.joiner, fabric.KindCtl, "coordinator").String(), frame))
		r := m.answer().Refused
		if r == nil || r.Reason != c.reason || r.Field != c.field || !strings.Contains(r.Text, c.text) {
			t.Errorf("%s: %+v, want %s of %s: %s", c.name, r, c.reason, c.field, c.text)
		}
	}
	if got := s.Stats(); len(got.Jobs) != 0 || got.Memory != 0 {
		t.Errorf("refused jobs left %+v", got)
	}
	m := gather(t, s, shardtest.New(t, shardtest.SmallJob("taken", 1, 1)), "j-a")[0]
	other := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("further", 1, 1)), "j-b")
	other.control2(schema.Control{Join: &schema.Join{Job: other.p.Job}})
	if r := other.answer().Refused; r == nil || r.Reason != "server_full" {
		t.Errorf("a second job of a server for one: %+v", r)
	}
	m.leave("")
}

// A server that shuts down says so to every trainer, and leaves nothing running (TestMain looks for goroutines).
func TestShutdownIsAnnounced(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Start(ctx, Config{Shards: 2}, Options{})
	must(t, err)
	a := gather(t, s, shardtest.New(t, shardtest.SmallJob("one", 2, 2)), "j-a", "j-b")
	waiting := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("two", 2, 2)), "j-c")
	waiting.join()
	for _, m := range a {
		drain(m.mail)
	}
	cancel() // as good as Close
	for _, m := range append(a, waiting) {
		if f := m.failure(); f.Member != schema.Coordinator || !strings.Contains(f.Text, "shutting down") {
			t.Errorf("%s is told %+v", m.member(), f)
		}
	}
	<-s.Done()
	s.Close()
}

// gatherBeating is gather for a server whose deadline is short: from its joining on each trainer gives signs of life,
// until the returned functions are called, or the test ends.
func gatherBeating(t testing.TB, s *Server, p *shardtest.Problem, joiners ...string) (all []*miniTrainer,
	silence []func()) {
	t.Helper()
	for _, j := range joiners {
		m := newMiniTrainer(t, s, p, j)
		m.join()
		ended, ending := make(chan struct{}), make(chan struct{})
		heartbeat := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindHeartbeat})
		heartbeat.SetHead(schema.Head{Job: m.joined.RunID, Generation: 1, Batch: 3})
		at := fabric.At(string(p.Job.Name), m.member(), fabric.KindHeartbeat, "all").String()
		go func() {
			defer close(ended)
			for every := time.NewTicker(20 * time.Millisecond); ; {
				select {
				case <-every.C:
					if err := m.conn.Publish(at, heartbeat.Seal()); err != nil {
						t.Error(err)
					}
				case <-ending:
					every.Stop()
					return
				}
			}
		}()
		stop := sync.OnceFunc(func() { close(ending); <-ended })
		t.Cleanup(stop)
		all, silence = append(all, m), append(silence, stop)
	}
	for _, m := range all {
		m.start()
	}
	return all, silence
}

// shortDeadline lets tests wait for its end. Who is to be heard meanwhile has a fair part of it for a stall of the
// machine.
const shortDeadline = 5 * time.Second

func TestPortTaken(t *testing.T) {
	s := startServer(t, Config{})
	port := s.nats.URL()[strings.LastIndex(s.nats.URL(), ":")+1:]
	var c Config
	for _, d := range port {
		c.Port = 10*c.Port + int(d-'0')
	}
	_, err := Start(context.Background(), c, Options{})
	if !errors.Is(err, fabric.ErrPortTaken) || !strings.Contains(err.Error(), "want another host or port") ||
		strings.Contains(err.Error(), "--") {
		t.Errorf("second server: %v, want %v in words of the Config, not of flags", err, fabric.ErrPortTaken)
	}
}
