package ps

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// The latest runs are remembered, by number and by the names in them.
func TestEndedRunsAreBounded(t *testing.T) {
	var runs []endedRun
	for i := range endedRunsMax + 5 {
		joiners := []schema.Member{schema.Member(fmt.Sprint("j-", i))}
		runs = withEnded(endedRun{RunID: schema.RunID(i + 1), Joiners: joiners}, runs)
	}
	if len(runs) != endedRunsMax || runs[0].RunID != endedRunsMax+5 || !tookPart(runs, "j-5") || tookPart(runs, "j-4") {
		t.Errorf("%+v", runs)
	}
	if again := withEnded(endedRun{RunID: 99}, runs); len(again) != len(runs) || again[0].RunID == 99 {
		t.Errorf("a run that nobody took part in is remembered: %+v", again)
	}
	large := endedRun{RunID: 7, Joiners: make([]schema.Member, endedJoinersMax+1)}
	if all := withEnded(large, runs); len(all) != 1 || all[0].RunID != 7 {
		t.Errorf("%d runs are remembered beside one of %d trainers", len(all), len(large.Joiners))
	}
	record := jobRecord{Job: shardtest.SmallJob("vast", 1, 1), Ended: runs}
	record.Job.Settings = map[string]string{"text": string(make([]byte, recordBytesMost))}
	if value, err := record.encode(); err != nil || record.Ended != nil || hasEnded(fabric.Entry{Value: value}) {
		t.Errorf("a record of %d bytes tells of earlier runs: %v", len(value), err)
	}
}

// What says that a job has ended stays for some sweeps; then the name is as if it had never been.
func TestEndedRunsAreSwept(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	c, err := fabric.DialControl(context.Background(), fabric.Config{URL: control.URL(), Name: "ps/a"})
	must(t, err)
	t.Cleanup(c.Close)
	self := leaseRecord{ID: "a", Incarnation: 1, Shards: 1}
	r := newRegistry(c, self, leaseTime, func() int64 { return 0 }, func(schema.JobName) schema.RunID { return 0 },
		slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, r.open(ctx))
	acquire := func(joiner schema.Member) acquisition {
		must(t, r.renew(ctx)) // it may have run out
		got := r.acquire(ctx, &acquireRequest{job: shardtest.SmallJob("swept", 1, 1), joiner: joiner})
		must(t, got.err)
		return got
	}
	if got := acquire("j-a"); got.record == nil {
		t.Fatal("a new job is not acquired")
	}
	r.end("swept", endedRun{RunID: 7, Joiners: []schema.Member{"j-a"}})
	for n := range goneLooks {
		if got := acquire("j-a"); got.record != nil || len(got.ended) != 1 || got.ended[0].RunID != 7 {
			t.Fatalf("a late join after %d sweeps: %+v", n, got)
		}
		r.sweep(ctx)
	}
	if got := acquire("j-a"); got.record == nil || got.record.Ended != nil {
		t.Errorf("after %d sweeps: %+v", goneLooks, got)
	}
}

// A job whose coordinator is gone goes on with what its trainers have, and with the learning rates that were decided
// in whichever of its runs: its record says so to whoever acquires it. A job with anything on shards is as ever.
func TestRunsGoOnByTheRegistry(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	open := func(incarnation uint64) *registry {
		c, err := fabric.DialControl(ctx, fabric.Config{URL: control.URL(), Name: "ps/a"})
		must(t, err)
		t.Cleanup(c.Close)
		r := newRegistry(c, leaseRecord{ID: "a", Incarnation: incarnation, Shards: 1}, leaseTime,
			func() int64 { return 0 }, func(schema.JobName) schema.RunID { return 0 }, slog.New(slog.DiscardHandler))
		must(t, r.open(ctx))
		return r
	}
	r := open(1)
	acquire := func(job *schema.Job) acquisition {
		must(t, r.renew(ctx))
		got := r.acquire(ctx, &acquireRequest{job: job, joiner: "j-a"})
		must(t, got.err)
		return got
	}
	carried, sharded := shardtest.SmallJob("carried", 2, 2), shardtest.SmallJob("sharded", 2, 2)
	carried.Reduce, carried.Apply, carried.Policy = schema.ReduceTrainers, schema.ApplyMean, schema.PolicyRecover
	for i := range carried.Tables {
		carried.Tables[i].Replicated = true
	}
	first := acquire(carried)
	acquire(sharded)
	lr := []schema.LRChange{{From: 3, Scale: 0.5}}
	r.end("carried", endedRun{RunID: first.record.RunID, Joiners: []schema.Member{"j-b"}, Next: &carriedRun{Server: "a",
		Incarnation: 1, Runs: []schema.RunID{first.record.RunID}, Here: 2, Trainers: 2, Least: 1, Begun: 7, LR: lr}})
	second := acquire(carried)
	if k := second.goesOn; k == nil || k.Begun != 7 || len(k.LR) != 1 {
		t.Fatalf("the run that has ended goes on from %+v", k)
	}
	r = open(2) // the ps is started again
	third := acquire(carried)
	want := []schema.RunID{second.record.RunID, first.record.RunID}
	if k := third.goesOn; k == nil || !slices.Equal(k.Runs, want) || !slices.Equal(k.LR, lr) || k.Trainers != 2 {
		t.Errorf("a run whose coordinator is gone goes on from %+v, want runs %v and %v", k, want, lr)
	}
	if k := acquire(sharded).goesOn; k != nil {
		t.Errorf("a job on shards goes on from %+v", k)
	}
}
