package ps

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// vastJob is a job whose manifest has 846 KB, in modules that take a check of some time.
func vastJob(name string) *schema.Job {
	job := shardtest.SmallJob(name, 1, 1)
	for i := range 60 {
		job.Modules = append(job.Modules, schema.ModuleSpec{Name: fmt.Sprint("m-", i), In: []int{8}, Samples: 1, Contexts: 1,
			Module: "[" + strings.Repeat(`{"relu":{}},`, 999) + `{"relu":{}}]`})
	}
	return job
}

func joinOf(job *schema.Job, from string) *message {
	return &message{job: job.Name, from: schema.Member(from), bytes: 846 << 10,
		control: &schema.Control{Join: &schema.Join{Job: job}}}
}

// Each manifest is checked once, one join of a sender is in work at a time, and all together have a bound.
func TestManifestsAreCheckedOnce(t *testing.T) {
	var asked []schema.JobName
	f := newManifests(func(job *schema.Job) *schema.Refused {
		asked = append(asked, job.Name)
		return nil
	})
	taken := 0
	for i := range 76 {
		name := []string{"one", "two"}[i%2]
		for range 3 {
			if f.offer(joinOf(shardtest.SmallJob(name, 1, 1), fmt.Sprint("j-", i))) {
				taken++
			}
		}
	}
	if want := largeBytesMax / (846 << 10); taken != want {
		t.Errorf("%d joins wait to be checked, want the %d that have room", taken, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		f.run(ctx)
		close(ended)
	}()
	for range taken {
		m := <-f.results
		f.taken(m)
		if !m.checked || m.refused != nil {
			t.Errorf("a join of %s: %+v, want that it is checked", m.job, m)
		}
	}
	if !f.offer(joinOf(shardtest.SmallJob("one", 1, 1), "j-0")) {
		t.Error("a sender whose join was checked may send no other")
	}
	f.taken(<-f.results)
	cancel()
	<-ended
	if len(asked) != 2 || f.bytes != 0 || len(f.inWork) != 0 {
		t.Errorf("%v were checked, %d bytes of %d senders are in work; want two manifests, and nothing", asked, f.bytes,
			len(f.inWork))
	}
}

// Small joins find room beside large ones, and small ones and those whose manifest is known are not behind the checks
// of others; the oldest has its turn all the same.
func TestManifestsOfOneDoNotHoldUpOthers(t *testing.T) {
	var asked []schema.JobName
	f := newManifests(func(job *schema.Job) *schema.Refused {
		asked = append(asked, job.Name)
		return nil
	})
	small := joinOf(shardtest.SmallJob("small", 1, 1), "j-small")
	small.bytes = 1 << 10
	if !f.offer(joinOf(shardtest.SmallJob("known", 1, 1), "j-known")) {
		t.Fatal("no room for one")
	}
	w := f.next()
	for !f.read(w) {
	}
	f.taken(w.message)
	for i := range 3 * oldestTurn {
		f.offer(joinOf(shardtest.SmallJob(fmt.Sprint("large-", i), 1, 1), fmt.Sprint("j-", i)))
	}
	f.taken(&message{job: "large-0", from: "j-0", bytes: 846 << 10}) // makes room for one
	if !f.offer(joinOf(shardtest.SmallJob("known", 1, 1), "j-late")) || !f.offer(small) {
		t.Fatal("large joins leave no room for others")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() {
		cancel()
		<-ended
	}()
	go func() {
		f.run(ctx)
		close(ended)
	}()
	var order []schema.JobName
	for range 3 {
		order = append(order, (<-f.results).job)
	}
	if !slices.Contains(order, "small") || !slices.Contains(order, "known") || !slices.Contains(order, "large-0") {
		t.Errorf("%v come first; want the small one, the known one and the oldest", order)
	}
}

// While manifests are checked, however long that takes, the control loop serves other jobs: many large joins of one
// connection hold up nobody.
func TestVastJoinsHoldUpNoJob(t *testing.T) {
	s := startServer(t, Config{})
	p := shardtest.New(t, shardtest.SmallJob("victim", 2, 2))
	a, b := newMiniTrainer(t, s, p, "j-a"), newMiniTrainer(t, s, p, "j-b")
	a.join()
	f := s.loop.inbox.manifests
	eventually(t, "the manifest of the job is checked", func() bool { return f.checks.Load() == 1 })
	gate, check := make(chan struct{}), f.check
	f.check = func(job *schema.Job) *schema.Refused {
		<-gate
		return check(job)
	}
	const joins = 76
	stranger := newPublisher(t, s, "vast")
	var frames [4][]byte
	for i := range frames {
		c := schema.Control{Join: &schema.Join{Job: vastJob(fmt.Sprint("vast-", i))}}
		frame, err := schema.EncodeControl(schema.Head{}, c)
		must(t, err)
		frames[i] = frame
	}
	for i := range joins {
		at := fabric.At(fmt.Sprint("vast-", i%4), fmt.Sprint("j-", i), fabric.KindCtl, "coordinator")
		stranger.send(at.String(), frames[i%4])
	}
	eventually(t, "all have arrived, and those for which there is no room are dropped", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.inWork)+int(s.Stats().Dropped) == joins
	})
	b.join()
	a.start()
	b.start()
	a.leave("")
	b.leave("")
	close(gate)
	eventually(t, "all are checked", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.inWork) == 0
	})
	if n := f.checks.Load(); n != 1+4 {
		t.Errorf("%d manifests were checked, want that of the job and the 4 that are different", n)
	}
	if s.Stats().Dropped == 0 {
		t.Error("all joins found room")
	}
}

// A control loop that stood for longer than every deadline takes no member for lost: neither a trainer nor a ps that
// holds the replica, all of which have given signs of life in the meantime.
func TestLateLoopLosesNobody(t *testing.T) {
	t.Run("fake time", func(t *testing.T) { synctest.Test(t, lateLoopLosesNobody) })
}

func lateLoopLosesNobody(t *testing.T) {
	var late atomic.Bool
	var s *Server
	var err error
	log := &testkit.Text{}
	ctx := context.WithoutCancel(t.Context()) // which ends before cleanups, in which trainers still beat
	s, err = Start(ctx, Config{Deadline: 10 * time.Second, ID: "a"}, Options{Bus: network(t),
		Log: slog.New(slog.NewTextHandler(log, nil)), Fit: func() error {
			if late.CompareAndSwap(true, false) {
				time.Sleep(45 * time.Second)
				// what may come to the loop before all that waits for it
				s.loop.tellSuccessor(s.now(), false)
				s.loop.follow(&message{job: "ps", from: "p-other"}, &schema.Follow{Host: "other"})
			}
			return nil
		}})
	must(t, err)
	t.Cleanup(s.Close)
	startServer(t, Config{ID: "b", Replicas: 1, Peer: s.URL()})
	p := shardtest.New(t, shardtest.SmallJob("goes-on", 1, 2))
	all, _ := gatherBeating(t, s, p, "j-a")
	eventually(t, "replica available", func() bool { return strings.Contains(log.String(), "replica available") })
	late.Store(true)
	time.Sleep(60 * time.Second)
	if jobs := s.Stats().Jobs; len(jobs) != 1 || jobs[0].State != coordinator.Running.String() {
		t.Errorf("jobs %+v, want that it goes on", jobs)
	}
	if text := log.String(); late.Load() || strings.Contains(text, "replica unavailable") || strings.Contains(text, "other") {
		t.Errorf("late: %v; the log: %s", late.Load(), text)
	}
	all[0].leave("")
}
