package ps

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// forger speaks as coordinators on a control server that others use.
type forger struct {
	t    testing.TB
	conn *fabric.Control
	to   schema.Member
}

func newForger(t testing.TB, control *fabric.Server, s *Server) *forger {
	t.Helper()
	conn, err := fabric.DialControl(context.Background(), fabric.Config{URL: control.URL(), Name: "coordinator"})
	must(t, err)
	t.Cleanup(conn.Close)
	return &forger{t, conn, s.member}
}

func (f *forger) assign(run schema.RunID, assign *schema.Assign) {
	f.t.Helper()
	assign.Serial, assign.Cluster = max(assign.Serial, 1), []schema.Member{}
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, schema.Control{Assign: assign})
	must(f.t, err)
	must(f.t, f.conn.Send(fabric.At(string(assign.Job.Name), string(schema.Coordinator), fabric.KindCtl, string(f.to)),
		frame))
}

// record writes down that another ps coordinates a job, of which the shards are these.
func record(t testing.TB, jobs *fabric.Bucket, run schema.RunID, job *schema.Job, servers ...schema.DataServer) {
	t.Helper()
	value, err := json.Marshal(jobRecord{RunID: run, Generation: generationFirst, Coordinator: "other", Incarnation: 1,
		Servers: servers, Job: job})
	must(t, err)
	_, err = jobs.Put(context.Background(), string(job.Name), value)
	must(t, err)
}

// Assignments that the registry does not bear out make nothing: no shard, no subscription, no goroutine, and they end
// nothing.
func TestForgedAssignsMakeNothing(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStartFor(t, Config{NATS: control.URL(), ID: "a"}, longLease)
	_, jobs := buckets(t, control.URL(), longLease)
	f := newForger(t, control, s)
	real := shardtest.SmallJob("real", 1, 1)
	record(t, jobs, 7, real, schema.DataServer{ID: "a", Shards: []int{0}},
		schema.DataServer{ID: "other", Shards: []int{1}})
	f.assign(7, &schema.Assign{Job: real, Shards: 2, Own: []int{0}})
	// statistics are an iteration behind
	eventually(t, "the shard of the real job is here",
		func() bool { return s.runHere("real") == 7 && s.Stats().Memory > 0 })
	promised, goroutines := s.Stats().Memory, settled(runtime.NumGoroutine)
	wider := shardtest.SmallJob("real", 3, 3) // places that the shard does not have
	f.assign(7, &schema.Assign{Job: wider, Shards: 2, Own: []int{0}, Serial: 9,
		Since: []schema.Generation{1, 1, 9}})
	other := shardtest.SmallJob("real", 1, 1)
	other.Seed++
	forged := 0
	for _, a := range []struct {
		run schema.RunID
		schema.Assign
	}{
		{8, schema.Assign{Job: real, Shards: 2, Own: []int{0}}},
		{9, schema.Assign{Job: other, Shards: 2, Own: []int{0}}},
	} {
		f.assign(a.run, &a.Assign)
		forged++
		eventually(t, "a forged run is counted",
			func() bool { return s.Stats().Reasons[schema.ReasonWrongSender] == uint64(forged) })
	}
	record(t, jobs, 5, shardtest.SmallJob("elsewhere", 1, 1), schema.DataServer{ID: "other", Shards: []int{0}})
	f.assign(5, &schema.Assign{Job: shardtest.SmallJob("elsewhere", 1, 1), Shards: 1, Own: []int{0}})
	record(t, jobs, 6, shardtest.SmallJob("more", 1, 1), schema.DataServer{ID: "a", Shards: []int{0}})
	f.assign(6, &schema.Assign{Job: shardtest.SmallJob("more", 1, 1), Shards: 400, Own: []int{0, 100, 200, 300}})
	for i := range 30 {
		f.assign(7, &schema.Assign{Job: shardtest.SmallJob(fmt.Sprintf("forged-%d", i), 1, 1), Shards: 400,
			Own: []int{10 * i, 10*i + 5}})
	}
	eventually(t, "all are counted",
		func() bool { return s.Stats().Reasons[schema.ReasonWrongSender] == uint64(forged+32) })
	if got := s.Stats().Memory; got != promised || s.runHere("real") != 7 {
		t.Errorf("%d bytes are promised and run %d is here, want %d and 7", got, s.runHere("real"), promised)
	}
	if now := settled(runtime.NumGoroutine); now > goroutines+8 {
		t.Errorf("%d goroutines, want %d as before", now, goroutines)
	}
}

// What an assignment opens is closed when its job ends, also where the shards are such as only a job over several ps
// has.
func TestAssignsCloseWhatTheyOpen(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStartFor(t, Config{NATS: control.URL(), ID: "a"}, longLease)
	_, jobs := buckets(t, control.URL(), longLease)
	f := newForger(t, control, s)
	others := func() schema.DataServer {
		d := schema.DataServer{ID: "other"}
		for i := range 40 {
			d.Shards = append(d.Shards, i)
		}
		return d
	}()
	before := settled(runtime.NumGoroutine)
	job := shardtest.SmallJob("wide", 1, 1)
	ours := schema.DataServer{ID: "a", Shards: []int{40, 41, 42, 43, 44, 45, 46, 47}}
	record(t, jobs, 7, job, others, ours)
	f.assign(7, &schema.Assign{Job: job, Shards: 48, Own: ours.Shards})
	eventually(t, "the shards are here", func() bool { return s.runHere("wide") == 7 })
	frame, err := schema.EncodeControl(schema.Head{Job: 7, Generation: generationFirst},
		schema.Control{Ended: &schema.Ended{End: schema.EndCompleted}})
	must(t, err)
	must(t, f.conn.Send(fabric.At("wide", string(schema.Coordinator), fabric.KindCtl, string(s.member)), frame))
	eventually(t, "no shard is here, and all that was opened is closed",
		func() bool { return s.runHere("wide") == 0 && settled(runtime.NumGoroutine) <= before })
}
