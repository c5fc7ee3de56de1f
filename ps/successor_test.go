package ps

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// keptCoordinator returns the coordinator of a job that runs, and of which other ps may keep the shards.
func keptCoordinator() *coordinator.Coordinator {
	job, now := shardtest.SmallJob("kept", 1, 1), time.Unix(1000, 0)
	job.Policy = schema.PolicyRecover
	c := coordinator.New(coordinator.Config{Job: job, RunID: 7, Generation: 1, Deadline: time.Minute, RecordDecides: true,
		ShardServers: []coordinator.ShardServer{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	c.Assign(now)
	c.Report(now, "p-a", &schema.Report{Serial: 1, Ready: true})
	c.Join(now, "j-a", &schema.Join{Job: job, Host: "host"})
	return c
}

// What a ps with replicas is answered fits a message however many jobs there are, and names first what it has.
func TestHeardFitsAMessage(t *testing.T) {
	idle, kept := keptCoordinator(), keptCoordinator()
	kept.Peers(time.Unix(1001, 0), []coordinator.Peer{{ID: "a", Keeps: true}, {ID: "b", Keeps: true}})
	if len(kept.Replicas(time.Unix(1001, 0)).Members) == 0 {
		t.Fatal("nobody keeps shards of a job")
	}
	jobs := jobTable{}
	for i := range schema.FollowMax + 9 {
		j := &job{manifest: shardtest.SmallJob(fmt.Sprintf("job-%04d", i), 1, 1), run: schema.RunID(i + 1),
			coordinator: idle}
		jobs[j.manifest.Name] = j
		if i > 8 {
			j.coordinator = kept
		}
	}
	h := jobs.heard(&leaseRecord{}, nil, time.Unix(1001, 0))
	want := fmt.Sprintf("job-%04d", schema.FollowMax+8)
	if len(h.Jobs) != schema.FollowMax || !slices.Contains(h.Jobs, schema.JobProgress{Job: schema.JobName(want)}) {
		t.Errorf("%d jobs; want %d, %s among them", len(h.Jobs), schema.FollowMax, want)
	}
	if _, err := schema.EncodeControl(schema.Head{}, schema.Control{Jobs: h}); err != nil {
		t.Error(err)
	}
}

// While the ps that held the replicas is silent, and may have continued a job, no other one holds the replica, and a
// job that ended here for want of its trainers begins only once that very ps was heard again.
func TestSuccessorIsNotReplacedWhileSilent(t *testing.T) {
	c := keptCoordinator()
	jobs := jobTable{"kept": &job{name: "kept", run: 7, coordinator: c}}
	s := successor{last: "p-b", yielded: map[schema.JobName]yield{}}
	for _, from := range []schema.Member{"p-b", "p-c"} {
		if why := s.refuses(from, jobs); why != "" {
			t.Errorf("%s may not hold replicas: %s", from, why)
		}
	}
	c.SetSuccessor("nats://b:1")
	c.SuccessorSilent()
	if why := s.refuses("p-c", jobs); !strings.Contains(why, "takeover kept") {
		t.Error("another ps has a replica while the one that may have continued a job is silent")
	}
	if why := s.refuses("p-b", jobs); why != "" {
		t.Error("the ps that held the replicas may not again")
	}
	c.SetSuccessor("") // an operator decides
	if why := s.refuses("p-c", jobs); why != "" {
		t.Error("no other ps may hold a replica after an operator has decided")
	}

	at := time.Unix(1000, 0)
	s.yielded["kept"], s.yielded["other"] = yield{at, "p-b"}, yield{at.Add(time.Hour), "p-b"}
	s.is = &follower{member: "p-c"}
	if s.is.heard.Begin(at.Add(time.Minute)); !s.mayContinue("kept", false) {
		t.Error("another ps than the one that may have the job was heard, and the job begins")
	}
	if s.is.member = "p-b"; s.mayContinue("kept", false) {
		t.Error("the ps that may have continued the job was heard, and the job does not begin")
	}
	if !s.mayContinue("other", false) {
		t.Error("what one job knows of the other ps is taken for another job's")
	}
}

// A job is lost with its ps while a ps of another protocol would hold replicas, and only if it runs and is written
// nowhere.
func TestJobsThatNobodyTakesAreLost(t *testing.T) {
	j := &job{manifest: shardtest.SmallJob("kept", 1, 1), run: 7, coordinator: keptCoordinator(), notSaved: "no folder"}
	for name, c := range map[string]struct {
		foreign foreignPeer
		want    bool
	}{
		"nobody would hold replicas": {foreignPeer{}, false},
		"it is there":                {foreignPeer{"another protocol", time.Now()}, true},
		"it has not said so late":    {foreignPeer{"another protocol", time.Now().Add(-followedMax - time.Second)}, false},
	} {
		s := successor{foreign: c.foreign}
		if lost, is := s.loses(jobTable{"kept": j}, time.Now()); is != c.want || is && lost != "kept" {
			t.Errorf("%s: job %q is lost: %v, want %v", name, lost, is, c.want)
		}
	}
}

// A job of which most trainers are on the host of its ps stops with that host, unless the other ps is there, too.
func TestTrainersOnTheHostOfTheirPS(t *testing.T) {
	job := coordinator.Status{Name: "job", Members: []coordinator.MemberStatus{{Host: "box (pid 1)", Own: true},
		{Host: "box (pid 2)", Own: true}, {Host: "other (pid 1)", Own: true}, {Host: "other (pid 1)"}}}
	for _, c := range []struct{ host, other, want string }{
		{"box (pid 9)", "third (pid 1)", "2 of its 3 trainers are on box"},
		{"box (pid 9)", "box (pid 10)", ""},
		{"other (pid 9)", "third (pid 1)", ""},
	} {
		if text := lostTogether(&job, c.host, c.other); !strings.HasPrefix(text, c.want) || (text == "") != (c.want == "") {
			t.Errorf("on %s with %s: %q, want %q", c.host, c.other, text, c.want)
		}
	}
}
