package coordinator

import (
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// votersOf are trainers t0, t1 and so on with numbers.
func votersOf(numbers ...uint64) (all []schema.Voter) {
	for i, n := range numbers {
		all = append(all, schema.Voter{Member: schema.TrainerMember(i), Number: n})
	}
	return all
}

// A run that continues one whose ps may still be running starts with more than half of that run's voters. Trainers that
// were started later, or again, join after that.
func TestRunStartsWithItsVoters(t *testing.T) {
	job := shardtest.SmallJob("continued", 3, 1)
	job.Policy = schema.PolicyRecover
	c := New(Config{Job: job, RunID: 9, Generation: 1, Deadline: time.Minute, Rejoining: []schema.RunID{7},
		Resume: &ResumeFrom{}, Voters: votersOf(10, 11, 12), ShardServers: []ShardServer{{Member: "p-a",
			Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	now := time.Now()
	c.Assign(now)
	join := func(name schema.Member, number uint64, run schema.RunID) *schema.Refused {
		t.Helper()
		for _, d := range c.Join(now, name, &schema.Join{Job: job, Host: "h", Number: number, Run: run, Resume: run != 0}) {
			if r := d.Control.Refused; r != nil {
				return r
			}
		}
		return nil
	}
	if r := join("j-new", 99, 0); r == nil || r.Reason != schema.RefusedBusy {
		t.Errorf("a newcomer before the voters: %+v, want busy", r)
	}
	if r := join("j-10", 10, 7); r != nil {
		t.Fatalf("the first voter: %+v", r)
	}
	if c.admission.mayStart(c.members) {
		t.Error("the run starts with one voter of three")
	}
	if r := join("j-12", 12, 7); r != nil || !c.admission.mayStart(c.members) {
		t.Errorf("with two voters of three: %+v, starts: %v", r, c.admission.mayStart(c.members))
	}
}

// Voters that are lost after they have joined cannot be waited for: once the earlier run is known to have ended, others
// take their slots.
func TestRunStartsWithoutVotersOnceTheEarlierHasEnded(t *testing.T) {
	job := shardtest.SmallJob("continued", 2, 1)
	job.Policy = schema.PolicyRecover
	c := New(Config{Job: job, RunID: 9, Generation: 1, Deadline: time.Minute, Rejoining: []schema.RunID{7},
		Resume: &ResumeFrom{}, Voters: votersOf(10, 11), ShardServers: []ShardServer{{Member: "p-a",
			Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	now := time.Now()
	c.Assign(now)
	newcomer := func() *schema.Refused {
		return c.Join(now, "j-new", &schema.Join{Job: job, Host: "h", Number: 99})[0].Control.Refused
	}
	if newcomer() == nil {
		t.Fatal("a newcomer is admitted before the voters")
	}
	c.EarlierRunEnded(now)
	if r := newcomer(); r != nil || !c.admission.mayStart(c.members) {
		t.Errorf("a newcomer after the end of the earlier run: %+v, want a slot", r)
	}
}

// The coordinator of a run reassigns no lane while fewer than half of the voters are here that its replica may know:
// those of the last list that it has confirmed, and of later ones.
func TestQuorumCountsWhatTheReplicaMayKnow(t *testing.T) {
	s := successor{url: "nats://b", silent: true, silentAt: 9}
	s.tell(1, votersOf(10, 11, 12))
	s.tell(2, votersOf(10, 11, 12))
	s.tell(3, votersOf(10, 11, 99)) // the slot of 12 has a newcomer
	for _, c := range []struct {
		heard int
		here  []schema.Voter
		lacks bool
	}{
		{0, votersOf(10, 11, 12), false},
		{0, votersOf(10, 11), false},
		{2, votersOf(10, 99), true}, // it may have 10, 11, 12, of which 11 and 12 may be there
		{3, votersOf(10, 99), false},
		{3, votersOf(99), true},
	} {
		s.heard(c.heard)
		if lacks := s.lacksQuorum(c.here); lacks != c.lacks {
			t.Errorf("the replica has confirmed %d, and %v are here: lacks %v", c.heard, c.here, lacks)
		}
	}
}

// A coordinator that has lost its replica from sight may be replaced until the replica confirms what it was told since.
func TestReplicaConfirmsThatItHearsTheCoordinator(t *testing.T) {
	var s successor
	s.becomesSilent(5)
	s.becomesSilent(8) // still
	for _, c := range []struct {
		confirmed int
		silent    bool
	}{{5, true}, {6, false}} {
		if s.heard(c.confirmed); s.silent != c.silent {
			t.Errorf("it confirms serial %d: silent %v", c.confirmed, s.silent)
		}
	}
}

// A trainer that has promised another ps to follow it comes back when its slot has a later generation.
func TestPromisedTrainerReturnsLater(t *testing.T) {
	c := keepingCoordinator(t, 1, 2)
	c.members[0].become(slotJoining, member{joiner: "t0", number: 10, generation: 3, by: -1})
	join := schema.Join{Run: 7, Number: 10, Promised: 3}
	if !c.members.hasPromised(&join) {
		t.Error("it returns to the slot in which it has promised")
	}
	if join.Promised = 2; c.members.hasPromised(&join) {
		t.Error("it does not return, though its slot has a later generation")
	}
	if join.Promised = 0; c.members.hasPromised(&join) {
		t.Error("it has promised nothing, and does not return")
	}
}

// Where a record decides who has the job, lanes are reassigned once it is known to name their trainer no more.
func TestRecordIsWrittenBeforeLanesAreReassigned(t *testing.T) {
	voters := []schema.Voter{{Member: "t0", Number: 10}, {Member: "t1", Number: 11}}
	for name, c := range map[string]struct {
		decides        bool
		asked, written []schema.Voter
		want           bool
	}{
		"no record decides":           {false, voters, voters, true},
		"nothing is written":          {true, voters[:1], nil, false},
		"it is named":                 {true, voters[:1], voters, false},
		"it is named no more":         {true, voters[:1], voters[:1], true},
		"another change is under way": {true, voters, voters[:1], false},
		"nobody is left":              {true, []schema.Voter{}, []schema.Voter{}, true},
	} {
		is := voterRecord{c.decides, c.asked, c.written}
		if got := is.mayReassign(1); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
