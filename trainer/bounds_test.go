package trainer

import (
	"context"
	"errors"
	"testing"

	"gradbus/ps"
	"gradbus/schema"
)

// Gradients of one batch that a shard has no room for can never be aggregated: the trainer is told at once, and by
// which setting, rather than wait for room until the deadline. Here two contributions exceed together what each would
// not.
func TestSparseGradientsBeyondTheBudgetAreRefused(t *testing.T) {
	zeros := schema.Init{Kind: schema.InitZeros}
	server := startServerWith(t, ps.Config{Shards: 1, StagedBytesMax: 16 << 20})
	job := toyJob("too-much", 2, 3, schema.ApplyUpdate)
	job.Parameters, job.ChunkBytes = nil, schema.ChunkBytes
	// 5 MB a node, 8 MiB a trainer
	job.Tables = []schema.TableSpec{{Name: "t", Rows: 5000, Dim: 256, Partitions: 7, Init: zeros}}
	sessions := joinAll(t, testConfig(t, server), job)
	failed := make(chan error, 1)
	go func() { failed <- sessions[0].Run(testContext(t), plain{job}, 1, nil) }()
	err := sessions[1].Run(testContext(t), plain{job}, 1, nil) // lanes 1 and 2, two nodes of the tree
	checkError(t, err, &Refused{}, "over_budget", "--staged-mib")
	_ = sessions[1].Abort(err)
	checkError(t, <-failed, ErrJobFailed, "t1", "--staged-mib")
}

// Large chunks times many nodes of the tree need more room than a trainer's usual share, and get it.
func TestLargeChunksOfManyNodes(t *testing.T) {
	server := startServerWith(t, ps.Config{Shards: 1, StagedBytesMax: 16 << 20})
	job := toyJob("large-chunks", 2, 7, schema.ApplyUpdate)
	job.Parameters = []schema.Parameter{{Name: "w", Shape: []int{2 << 20}, Init: schema.Init{Kind: schema.InitZeros}}}
	job.Tables, job.ChunkBytes = nil, schema.ChunkBytesMax // lanes 0 to 2 are two nodes, 3 to 6 another two
	sessions := joinAll(t, testConfig(t, server), job)
	for _, err := range runAll(testContext(t), sessions, plain{job}, 2) {
		if err != nil {
			t.Error(err)
		}
	}
}

// Windows that hold one message, and less than two, still move a job, whose weights are what they are with any.
func TestWindowsOfOneMessage(t *testing.T) {
	const shards, batches = 8, 4
	job := func(name string) *schema.Job {
		j := toyJob(name, 2, 4, schema.ApplyUpdate)
		j.ChunkBytes = schema.ChunkBytes
		j.Parameters[0].Shape = []int{3*schema.ChunkBytes/4 + 100}
		return j
	}
	want := digestOnOne(t, shards, job("wide"), batches)
	config := testConfig(t, startServerWith(t, ps.Config{Shards: shards, PendingBytesMax: 32 << 20}))
	narrow := job("narrow")
	session := joinAll(t, config, narrow)
	window, message := session[0].joined.WindowBytes, int64(narrow.MessageBytesMax())
	leaveAll(t, session)
	if window < message || window >= 2*message {
		t.Fatalf("windows of %d bytes, want room for one message of %d and not for two", window, message)
	}
	for i, o := range trainAll(t, config, job("again"), batches) {
		if o.err != nil || o.digest != want {
			t.Errorf("trainer %d: %v, weights %x, want %x", i, o.err, o.digest[:6], want[:6])
		}
	}
}

// Whoever gives a join up while the model is drawn need not wait for that, and its place is free.
func TestDrawingEndsWithTheJoin(t *testing.T) {
	server, job := startServer(t, 1), toyJob("drawn", 2, 2, schema.ApplyUpdate)
	j, err := newJoiner(t.Context(), testConfig(t, server).withDefaults(), job)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	answer, err := j.finalAnswer(testContext(t))
	if err != nil || answer.Joined == nil {
		t.Fatalf("%+v, %v, want to be admitted", answer, err)
	}
	poll(t, "the job is made", func() bool { return server.Stats().Memory > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.session(ctx, answer.Joined); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context had ended", err)
	}
	poll(t, "the job, which nobody else was in, is free", func() bool { return server.Stats().Memory == 0 })
}

// Whoever gave up waiting for the answer, and asks anew, has the place that the first question got it: it is nobody's
// else, and the job does not wait for a trainer that there is not.
func TestAJoinWhoseAnswerCameTooLate(t *testing.T) {
	server, job := startServer(t, 1), toyJob("late", 2, 2, schema.ApplyUpdate)
	c := testConfig(t, server).withDefaults()
	j, err := newJoiner(t.Context(), c, job)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := j.finalAnswer(testContext(t))
	j.Close()
	if err != nil || answer.Joined == nil {
		t.Fatalf("%+v, %v, want to be admitted", answer, err)
	}
	other := make(chan error, 1)
	go func() {
		s, err := Join(testContext(t), testConfig(t, server), job)
		if err == nil {
			err = errors.Join(s.Run(testContext(t), newToy(t, job), 2, nil), s.Close())
		}
		other <- err
	}()
	s, err := joinWithRetry(testContext(t), c, job)
	if err != nil {
		t.Fatal(err)
	}
	if s.Member() != answer.Joined.Member {
		t.Errorf("member %s, want %s, whose place it had been given", s.Member(), answer.Joined.Member)
	}
	if err := errors.Join(s.Run(testContext(t), newToy(t, job), 2, nil), s.Close(), <-other); err != nil {
		t.Error(err)
	}
}
