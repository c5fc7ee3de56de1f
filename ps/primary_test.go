package ps

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A newcomer goes on from the run of the ps that is lost, unless it wants another job with that name.
func TestNewcomersGoOnFromTheLostRun(t *testing.T) {
	b := followsJob(t, &followedJob{run: 7})
	same, other := shardtest.SmallJob("followed", 1, 1), shardtest.SmallJob("followed", 1, 1)
	other.Seed++
	for name, c := range map[string]struct {
		job  *schema.Job
		want schema.RunID
	}{"the same job": {same, 7}, "another seed": {other, 0}, "another name": {shardtest.SmallJob("new", 1, 1), 0}} {
		if run := b.lostRun(c.job); run != c.want {
			t.Errorf("%s goes on from run %d, want %d", name, run, c.want)
		}
	}
}

// A job goes on here once, not where its ps is back, and with a majority of its trainers where that may still be there.
func TestJobsGoOnOnce(t *testing.T) {
	voters := []schema.Voter{{Member: "t0", Number: 1}, {Member: "t1", Number: 2}}
	for name, c := range map[string]struct {
		job    followedJob
		voters int
		ok     bool
	}{
		"its ps is back":         {followedJob{run: 7, voters: voters}, 0, false},
		"its ps is out of reach": {followedJob{run: 7, voters: voters, gone: "silent"}, 2, true},
		"its ps has ended":       {followedJob{run: 7, voters: voters, gone: "ended", ended: true}, 0, true},
		"another run":            {followedJob{run: 8, voters: voters, gone: "ended", ended: true}, 0, false},
	} {
		b := followsJob(t, &c.job)
		voters, ok := b.takeOver("followed", 7)
		if len(voters) != c.voters || ok != c.ok || b.isOver("followed", 7) != c.ok {
			t.Errorf("%s: it goes on %v, with voters %v, want %v and %d", name, ok, voters, c.ok, c.voters)
		}
		if _, again := b.takeOver("followed", 7); again {
			t.Errorf("%s: it goes on twice", name)
		}
	}
}

// More than half of the voters decide, by their numbers: not a trainer that was started again in a voter's slot, nor one
// that joined later. Without them an operator decides.
func TestMayStart(t *testing.T) {
	voters := []schema.Voter{{Member: "t0", Number: 10}, {Member: "t1", Number: 11}, {Member: "t2", Number: 12},
		{Member: "t3", Number: 13}}
	for name, c := range map[string]struct {
		promised []uint64
		want     bool
	}{"none": {nil, false}, "half": {[]uint64{10, 11}, false}, "more than half": {[]uint64{10, 11, 13}, true},
		"half and a newcomer": {[]uint64{10, 11, 99}, false}, "newcomers alone": {[]uint64{97, 98, 99}, false}} {
		promised := map[uint64]bool{}
		for _, n := range c.promised {
			promised[n] = true
		}
		if got := mayStart(voters, promised); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	b := followsJob(t, &followedJob{run: 7, voters: voters, gone: "cut off", since: time.Now(), promised: map[uint64]bool{}})
	if b.takeover("other") == "" {
		t.Error("a job that is not here continues")
	}
	if h := b.report(time.Now()).Jobs[0]; len(h.Missing) != 4 || h.Lost == "" {
		t.Errorf("told is %+v, want the four trainers", h)
	}
	if text := b.jobs["followed"].missing("followed"); !strings.Contains(text, "t0 t1 t2 t3") ||
		!strings.Contains(text, "takeover followed") {
		t.Errorf("it waits for: %s", text)
	}
}

// A job that there is no room for is put off with the reason, and its replica stays; it goes on once there is room, of
// which the memory that its replica was promised is a part.
func TestJobsWaitForRoom(t *testing.T) {
	b := followsJob(t, &followedJob{run: 7, gone: "ended", ended: true})
	s, job := b.server, shardtest.SmallJob("followed", 1, 1)
	s.primary, s.registry = b, &registry{self: leaseRecord{ID: "b"}}
	s.config = Config{JobsMax: 1}.withDefaults()
	kept := s.replicas.runs[7]
	kept.memory = MemoryOf(s.config, job, 1, 1)
	s.config.MemoryBytesMax = kept.memory.Bytes()
	own := &assignment{manifest: shardtest.SmallJob("own", 1, 1)}
	h := newShardHost(s, nil)
	h.jobs["own"] = own
	of := offer{run: 7, version: 3, shards: 1}
	f := &foundJob{acquisition: acquisition{job: job, servers: []leaseRecord{{ID: "b", Shards: 1}}}, offers: []offer{of},
		located: located{from: &choice{offer: of}}}
	_, refused := h.mayBegin(f, job)
	if refused == nil || refused.Reason != schema.RefusedBusy || !strings.Contains(refused.Text, "room for 1") {
		t.Errorf("with no room for it: %+v, want busy and why", refused)
	}
	if b.jobs["followed"] == nil || b.isOver("followed", 7) || s.replicas.promised() != s.config.MemoryBytesMax {
		t.Error("a job that is put off has no replica any more")
	}
	delete(h.jobs, "own")
	if _, refused = h.mayBegin(f, job); refused != nil || !b.isOver("followed", 7) {
		t.Errorf("with room for it: %+v, want that it goes on", refused)
	}
}

// A run that its ps hands over ends here with the first word of it, and no repetition has it go on.
func TestHandedOverRunsStayOver(t *testing.T) {
	b := followsJob(t, &followedJob{run: 7, promised: map[uint64]bool{}})
	b.server.registry, b.server.loop = &registry{}, &controlLoop{changed: make(chan struct{}, 1)}
	kept := b.server.replicas.runs[7]
	for serial := range 2 {
		b.keep("followed", 7, &schema.Keep{Serial: serial + 1, Last: true})
		if !kept.over.Lasts() {
			t.Errorf("after word %d of the end the run goes on", serial+1)
		}
	}
	if b.keep("followed", 7, &schema.Keep{Serial: 3}); kept.over.Lasts() {
		t.Error("the ps is back, and its run is still over")
	}
}

// A ps that was started again never had the run of the one before, so it does not say that the run has ended: the job
// stays here for its trainers. The ps that had it says so.
func TestRestartedPSEndsNoJob(t *testing.T) {
	lost := followsJob(t, &followedJob{run: 7, of: 1, gone: "ended", ended: true})
	for range 2 {
		if lost.heard(&schema.Jobs{Incarnation: 2}); lost.jobs["followed"] == nil {
			t.Fatal("the job is dropped")
		}
	}
	of := lost.server.replicas.runs[7]
	of.cancel, of.unwatch = func() {}, func() {}
	if lost.heard(&schema.Jobs{Incarnation: 2, Jobs: []schema.JobProgress{{Job: "followed"}}}); lost.jobs["followed"] != nil {
		t.Error("a job that its ps has again continues here, too")
	}
	running := followsJob(t, &followedJob{run: 7, of: 1})
	if running.heard(&schema.Jobs{Incarnation: 2}); running.jobs["followed"] == nil || running.jobs["followed"].gone == "" {
		t.Error("the job of a ps that was started again is not lost")
	}
	over := followsJob(t, &followedJob{run: 7, of: 1})
	kept := over.server.replicas.runs[7]
	kept.cancel, kept.unwatch = func() {}, func() {}
	if over.heard(&schema.Jobs{Incarnation: 1}); over.jobs["followed"] != nil {
		t.Error("a job that has ended stays")
	}
}

// A run that continues here waits for the voters of the one before, until the other ps is heard without that run, or an
// operator decides.
func TestEndOfContinuedRunIsNoted(t *testing.T) {
	heard := func(incarnation uint64, jobs ...schema.JobProgress) func(*primary) {
		return func(b *primary) { b.heard(&schema.Jobs{Incarnation: incarnation, Jobs: jobs}) }
	}
	for name, c := range map[string]struct {
		learn func(b *primary)
		want  bool
	}{
		"the other ps has it":         {heard(1, schema.JobProgress{Job: "followed"}), false},
		"the other ps has ended it":   {heard(1), true},
		"the other ps was restarted":  {heard(2, schema.JobProgress{Job: "followed"}), true},
		"its list is cut short":       {heard(1, make([]schema.JobProgress, schema.FollowMax)...), false},
		"an operator decides":         {func(b *primary) { b.takeover("followed") }, true},
		"an operator decides another": {func(b *primary) { b.takeover("other") }, false},
	} {
		b := followsJob(t, &followedJob{run: 7, of: 1, voters: []schema.Voter{{Member: "t0", Number: 1}}, gone: "silent"})
		if _, ok := b.takeOver("followed", 7); !ok || b.hasEnded("followed") {
			t.Fatal("the run does not continue, or is known to have ended")
		}
		if c.learn(b); b.hasEnded("followed") != c.want {
			t.Errorf("%s: ended %v, want %v", name, !c.want, c.want)
		}
	}
}

// Of two ps that both begin a job the one yields that drew the lower number, not one that continues a run of the other.
func TestOneOfTwoYields(t *testing.T) {
	both := &schema.Jobs{Incarnation: 5, Jobs: []schema.JobProgress{{Job: "followed"}}}
	for name, c := range map[string]struct {
		drawn     uint64
		continues bool
		want      bool
	}{"it drew less": {4, false, true}, "it drew more": {6, false, false}, "it continues the other's run": {4, true, false}} {
		b := followsJob(t, &followedJob{run: 7, of: 5, gone: "silent"})
		if b.drawn = c.drawn; c.continues {
			b.heard(both)
			b.takeOver("followed", 7)
		} else {
			delete(b.jobs, "followed")
		}
		if b.heard(both); b.yields("followed") != c.want {
			t.Errorf("%s: it yields: %v", name, !c.want)
		}
	}
	b := followsJob(t, &followedJob{run: 7, of: 5, gone: "ended", ended: true})
	b.drawn, b.there = 4, map[schema.JobName]bool{"followed": true}
	if b.takeOver("followed", 7); b.yields("followed") {
		t.Error("it yields to a ps that has ended")
	}
}

// A trainer of an earlier run, which this ps may have in its folder, begins no job that the other ps may still run.
func TestTrainersOfEarlierRunsWait(t *testing.T) {
	voters := []schema.Voter{{Member: "t0", Number: 1}}
	for name, c := range map[string]struct {
		there map[schema.JobName]bool
		job   *followedJob
		busy  bool
	}{
		"the other ps is silent and has the job":     {map[schema.JobName]bool{"followed": true}, nil, true},
		"the other ps is silent and never had it":    {map[schema.JobName]bool{}, nil, false},
		"the other ps was not heard since the start": {nil, nil, true},
		"the other ps may still run the job": {map[schema.JobName]bool{"followed": true},
			&followedJob{run: 7, voters: voters, gone: "silent", promised: map[uint64]bool{}}, true},
		"the other ps has ended": {map[schema.JobName]bool{}, &followedJob{run: 7, gone: "ended", ended: true}, false},
	} {
		b := followsJob(t, &followedJob{run: 7})
		if delete(b.jobs, "followed"); c.job != nil {
			b.jobs["followed"], c.job.since = c.job, time.Now()
		}
		b.silent.Begin(time.Now().Add(-time.Minute))
		b.there = c.there
		refused := func() *schema.Refused {
			_, refused := b.comes("followed", &schema.Join{Run: 3, Number: 9})
			return refused
		}()
		if busy := refused != nil && refused.Reason == schema.RefusedBusy; busy != c.busy {
			t.Errorf("%s: %+v, want busy %v", name, refused, c.busy)
		}
	}
}

// A ps whose process was seen to end, or that is out of reach, is not back with a message that it had sent before.
func TestMessagesOfALostPSDoNotReviveIt(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(b *primary)
		back bool
	}{
		"it was silent":     {func(b *primary) { b.lose("followed", b.jobs["followed"], "silent", false) }, true},
		"its process ended": {func(b *primary) { b.processEnded(7) }, false},
		"it is out of reach": {func(b *primary) {
			b.cut.Begin(time.Now())
			b.lose("followed", b.jobs["followed"], "out of reach", false)
		}, false},
	} {
		b := followsJob(t, &followedJob{run: 7, of: 5})
		b.server.registry, b.server.loop = &registry{}, &controlLoop{changed: make(chan struct{}, 1)}
		c.lose(b)
		b.keep("followed", 7, &schema.Keep{Serial: 1})
		if back := b.jobs["followed"].gone == ""; back != c.back {
			t.Errorf("%s: it is back: %v", name, back)
		}
	}
}

// A job whose ps has ended, and that no trainer has joined in time, begins here with trainers that join later.
func TestExpiredJobsBeginAgain(t *testing.T) {
	b := followsJob(t, &followedJob{run: 7, of: 5, gone: "ended", ended: true})
	of := b.server.replicas.runs[7]
	of.cancel, of.unwatch = func() {}, func() {}
	b.there["followed"] = true
	b.expire(time.Now().Add(resumeWindow))
	if mine, refused := b.comes("followed", &schema.Join{}); mine || refused != nil {
		t.Errorf("a newcomer is answered %v, %+v", mine, refused)
	}
}

// Promises of trainers that are no voters are not kept, and a voter without a number is none.
func TestPromisesOfOthersAreNotKept(t *testing.T) {
	j := &followedJob{promised: map[uint64]bool{}, voters: []schema.Voter{{Member: "t0"}, {Member: "t1"}, {Member: "t2", Number: 12}}}
	for number := range uint64(1000) {
		j.promise(number)
	}
	if len(j.promised) != 1 || mayStart(j.voters, j.promised) {
		t.Errorf("%d promises of one voter, it may start: %v", len(j.promised), mayStart(j.voters, j.promised))
	}
}

// followsJob is the primary of a ps that holds a replica of a job.
func followsJob(t *testing.T, j *followedJob) *primary {
	s := &Server{log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s.replicas = newReplicaStore(s)
	s.replicas.runs[j.run] = &replicaJob{job: shardtest.SmallJob("followed", 1, 1), run: j.run}
	return &primary{server: s, jobs: map[schema.JobName]*followedJob{"followed": j}, there: map[schema.JobName]bool{}}
}
