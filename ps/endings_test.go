package ps

import (
	"context"
	"fmt"
	"log/slog"
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
		e, err := r.jobs.Get(ctx, "swept")
		must(t, err)
		must(t, r.records.Reach(ctx, e.Revision)) // a sweep reads what the watch has seen
		r.sweep(ctx)
	}
	if got := acquire("j-a"); got.record == nil || got.record.Ended != nil {
		t.Errorf("after %d sweeps: %+v", goneLooks, got)
	}
}
