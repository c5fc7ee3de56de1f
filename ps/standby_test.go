package ps

import (
	"log/slog"
	"testing"

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
	for name, c := range map[string]struct {
		job   followedJob
		doubt int
		ok    bool
	}{
		"its ps is back":         {followedJob{run: 7, trainers: 5}, 0, false},
		"its ps is out of reach": {followedJob{run: 7, trainers: 5, gone: "silent"}, 5, true},
		"its ps has ended":       {followedJob{run: 7, trainers: 5, gone: "ended", ended: true}, 0, true},
		"another run":            {followedJob{run: 8, trainers: 5, gone: "ended", ended: true}, 0, false},
	} {
		b := followsJob(t, &c.job)
		doubt, ok := b.takeOver("followed", 7)
		if doubt != c.doubt || ok != c.ok || b.isOver("followed", 7) != c.ok {
			t.Errorf("%s: it goes on %v, in doubt of %d trainers, want %v and %d", name, ok, doubt, c.ok, c.doubt)
		}
		if _, again := b.takeOver("followed", 7); again {
			t.Errorf("%s: it goes on twice", name)
		}
	}
}

// followsJob is a ps that stands by for a job of another one.
func followsJob(t *testing.T, j *followedJob) *standby {
	s := &Server{log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s.keeper = newKeeper(s)
	s.keeper.runs[j.run] = &replicaJob{job: shardtest.SmallJob("followed", 1, 1), run: j.run}
	return &standby{server: s, jobs: map[schema.JobName]*followedJob{"followed": j}}
}
