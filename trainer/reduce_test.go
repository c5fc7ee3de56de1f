package trainer

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/schema"
)

// routes are the ways that a job's gradients may take where its trainers keep its parameters, and perhaps its tables.
var routes = []struct {
	name       string
	reduce     string
	replicated []bool // of the toy's tables
	tables     []string
	sum        string
}{
	{"shards, tables there", schema.ReduceShards, []bool{false, false}, nil, ""},
	{"shards, tables replicated", schema.ReduceShards, []bool{true, true}, nil, ""},
	{"shards, one table replicated", schema.ReduceShards, []bool{false, true}, nil, ""},
	{"trainers, tables on shards", schema.ReduceTrainers, []bool{false, false}, nil, ""},
	{"trainers, tables replicated", schema.ReduceTrainers, []bool{true, true}, nil, ""},
	{"trainers, one table replicated", schema.ReduceTrainers, []bool{true, false}, nil, ""},
	{"trainers, tables by shards", schema.ReduceTrainers, []bool{true, true},
		[]string{schema.ReduceShards, schema.ReduceShards}, ""},
	{"trainers, one table by either, at the end", schema.ReduceTrainers, []bool{true, true},
		[]string{"", schema.ReduceShards}, schema.SumClose},
	{"shards, tables replicated, at the end", schema.ReduceShards, []bool{true, true}, nil, schema.SumClose},
	{"shards, tables there, at the end", schema.ReduceShards, []bool{false, false}, nil, schema.SumClose},
}

func routeJob(name string, route, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyMean)
	job.Reduce, job.Sum = routes[route].reduce, routes[route].sum
	for i, replicated := range routes[route].replicated {
		job.Tables[i].Replicated = replicated
		if tables := routes[route].tables; tables != nil {
			job.Tables[i].Reduce = tables[i]
		}
	}
	return job
}

// Whichever way gradients take, a job has the same bits: those of the oracle, with momentum, uneven and empty lanes and
// a batch without any sample.
func TestEveryRouteGivesEqualBits(t *testing.T) {
	const lanes, batches = 6, 7
	want, losses := toyOutcome(t, lanes, batches)
	for shards := 1; shards <= 2; shards++ {
		server := startServer(t, shards)
		for route := range routes {
			for _, trainers := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/%d shards/%d trainers", routes[route].name, shards, trainers), func(t *testing.T) {
					job := routeJob(fmt.Sprintf("route-%d-%d", route, trainers), route, trainers, lanes)
					checkOutcomes(t, trainAll(t, testConfig(t, server), job, batches), want, losses)
				})
			}
		}
		server.Close()
	}
}

// Who is through first keeps its results until the others have them: one of two leaves at once, while what it published
// of the last batch never reached the other.
func TestLeaverKeepsTheLastResults(t *testing.T) {
	server := startServer(t, 1) // whose deadline is far
	sessions := joinAll(t, testConfig(t, server), routeJob("leaver", 4, 2, 4))
	w := newToy(t, sessions[0].Job())
	for _, err := range runAll(testContext(t), sessions, w, 1) {
		if err != nil {
			t.Fatal(err)
		}
	}
	g := sessions[0].reducer
	poll(t, "t1 says that it has everything", func() bool { return g.done(1, nil) })
	g.stepLock.Lock()
	g.begun[1] = 0 // as if that had been lost
	g.stepLock.Unlock()
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	if err := sessions[0].awaitOthers(ctx, false); err != nil || ctx.Err() == nil {
		t.Errorf("a trainer leaves while another may need its results: %v", err)
	}
	if err := sessions[1].sendComplete(1); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := sessions[0].Close(); err != nil || time.Since(begin) > testTimeout/2 {
		t.Errorf("it leaves after %v: %v", time.Since(begin), err)
	}
}

// That the others' data servers go with them is no news at a job's normal end, and is told while they are needed.
func TestNormalEndWarnsOfNothing(t *testing.T) {
	server := startServer(t, 1)
	c := testConfig(t, server)
	var log testkit.Text
	c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	c.ReconnectTimeout = 300 * time.Millisecond
	run := func(name string) []*Session {
		sessions := joinAll(t, c, routeJob(name, 4, 2, 4))
		for _, err := range runAll(testContext(t), sessions, newToy(t, sessions[0].Job()), 2) {
			if err != nil {
				t.Fatal(err)
			}
		}
		return sessions
	}
	lost := func(s *Session) func() bool { return func() bool { return len(s.gone()) == 1 } }
	sessions := run("normal-end")
	if err := sessions[0].Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "t1 sees that t0 is gone", lost(sessions[1]))
	if err := sessions[1].Close(); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Contains(text, "lost") {
		t.Errorf("a normal end is told as\n%s", text)
	}

	sessions = run("early-end")
	sessions[1].planned.Store(3) // as within the next Run
	sessions[0].peer.server.Close()
	poll(t, "t1 sees that t0 is gone", lost(sessions[1]))
	poll(t, "both warnings", func() bool {
		text := log.String()
		return strings.Contains(text, `level=WARN msg="server lost" server="trainer t0`) &&
			strings.Contains(text, `level=WARN msg="connection lost"`)
	})
}
