package trainer

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"gradbus/schema"
)

// usualJob is the toy with the chunks that manifests have by default.
func usualJob(name string, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyUpdate)
	job.ChunkBytes = schema.ChunkBytes
	return job
}

// Many trainers and many shards are admitted by a ps as it comes, and have the bits of one trainer on one shard. Where
// the windows of all have no room for a message each, chunks are smaller.
func TestManyTrainersToManyShards(t *testing.T) {
	const batches = 2
	for _, c := range []struct{ trainers, lanes, shards int }{{11, 11, 5}, {11, 11, 7}, {64, 64, 8}} {
		want := digestOnOne(t, 1, usualJob("one", 1, c.lanes), batches)
		server := startServer(t, c.shards)
		job := usualJob("many", c.trainers, c.lanes)
		for i, o := range trainAll(t, testConfig(t, server), job, batches) {
			if o.err != nil || o.digest != want {
				t.Fatalf("%d trainers to %d shards, trainer %d: %v, weights %x, want %x", c.trainers, c.shards, i, o.err,
					o.digest[:6], want[:6])
			}
		}
		server.Close()
	}
}

// A session has the chunks that the coordinator gives, which are at most the manifest's.
func TestChunksThatFit(t *testing.T) {
	server := startServer(t, 8)
	config := testConfig(t, server)
	job := usualJob("wide", 64, 64)
	sessions := joinAll(t, config, job)
	for _, s := range sessions {
		if got := s.Job(); got.ChunkBytes >= schema.ChunkBytes || int64(got.MessageBytesMax()) > s.joined.WindowBytes ||
			got.ChunkBytes != s.joined.ChunkBytes {
			t.Fatalf("chunks of %d bytes, messages of %d, a window of %d; told %d", got.ChunkBytes, got.MessageBytesMax(),
				s.joined.WindowBytes, s.joined.ChunkBytes)
		}
	}
	if job.ChunkBytes != schema.ChunkBytes {
		t.Error("the caller's manifest was changed")
	}
	joined := sessions[0].joined
	for _, wrong := range []int{-1, 100, schema.ChunkBytes * 2} {
		joined.ChunkBytes = wrong
		_, err := newMembership(testContext(t), config.withDefaults(), job, joined)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("chunks of %d bytes", wrong)) {
			t.Errorf("chunks of %d bytes: %v", wrong, err)
		}
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// As many jobs train at once as a ps takes by default. One more is told which flag it wants.
func TestSixteenJobsAtOnce(t *testing.T) {
	const jobs, trainers, batches = 16, 2, 3
	server := startServer(t, 2)
	want := digestOnOne(t, 1, usualJob("one", 1, 2), batches)
	var all, gathered sync.WaitGroup
	gathered.Add(jobs)
	enough := make(chan struct{})
	for i := range jobs {
		all.Go(func() {
			c, job := testConfig(t, server), usualJob(fmt.Sprint("job-", i), trainers, 2)
			waits := c
			var once sync.Once
			waits.Member, waits.OnWaiting = "t0", func(int) { once.Do(gathered.Done) }
			var first outcome
			var other sync.WaitGroup
			other.Go(func() { first = train(testContext(t), waits, job, newToy(t, job), batches) })
			<-enough // all jobs are registered
			c.Member = "t1"
			second := train(testContext(t), c, job, newToy(t, job), batches)
			other.Wait()
			for _, o := range []outcome{first, second} {
				if o.err != nil || o.digest != want {
					t.Errorf("job %d: %v, weights %x, want %x", i, o.err, o.digest[:6], want[:6])
				}
			}
		})
	}
	gathered.Wait()
	_, err := Join(testContext(t), testConfig(t, server), usualJob("one-more", 1, 1))
	checkError(t, err, &Refused{}, "16 jobs are registered", "room for 16", "--jobs-max")
	close(enough)
	all.Wait()
	if s := server.Stats(); s.SlowReaders != 0 {
		t.Errorf("%d readers were cut off", s.SlowReaders)
	}
}
