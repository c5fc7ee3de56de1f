package ps

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// meeting is a backend whose calls wait until so many of them are inside, or it is given up.
type meeting struct {
	cuda.Backend
	missing atomic.Int64
	met     chan struct{}
	once    sync.Once
}

func newMeeting(b cuda.Backend, calls int64) *meeting {
	m := &meeting{Backend: b, met: make(chan struct{})}
	m.missing.Store(calls)
	return m
}

func (m *meeting) end() { m.once.Do(func() { close(m.met) }) }

func (m *meeting) FirstNonFinite(v cuda.Vector) int {
	if m.missing.Add(-1) == 0 {
		m.end()
	}
	<-m.met
	return m.Backend.FirstNonFinite(v)
}

// All shards of a ps step at once: none reads behind what another one computes. Over TCP one trainer sends a frame to
// each. Within a process a trainer's goroutines step the shards, so it has one for each.
func TestShardsStepAtOnce(t *testing.T) {
	for name, bus := range map[string]*fabric.Bus{"tcp": nil, "bus": fabric.NewBus()} {
		t.Run(name, func(t *testing.T) {
			const shards = 4
			job := shardtest.SmallJob("at-once", 1, 1)
			job.Tables, job.Parameters = nil, nil
			job.FirstBucketBytes, job.BucketBytes = job.ChunkBytes, job.ChunkBytes
			for i := range 4 * shards {
				job.Parameters = append(job.Parameters, schema.Parameter{
					Name: fmt.Sprint("w", i), Shape: []int{job.ChunkBytes / 4}, Init: schema.Init{Kind: schema.InitZeros},
				})
			}
			p := shardtest.New(t, job)
			at := newMeeting(p.Backend, shards)
			s, err := Start(context.Background(), Config{Shards: shards, Deadline: unhurried}, Options{Backend: at, Bus: bus})
			must(t, err)
			t.Cleanup(s.Close)
			t.Cleanup(at.end)
			m := newMiniTrainer(t, s, p, "j-a")
			m.join()
			m.start()
			var senders sync.WaitGroup
			seen := map[int]bool{}
			for _, c := range p.Frames(t, m.place, m.joined.RunID, 0, lane.Root(1)) {
				if seen[c.Shard] {
					continue
				}
				seen[c.Shard] = true
				send := func() { m.send(fabric.KindDense, c.Shard, schema.Head{Bucket: c.Bucket}, c.Frame) }
				if bus != nil {
					senders.Go(send)
				} else {
					send()
				}
			}
			if len(seen) != shards {
				t.Fatalf("frames for %d shards, want %d", len(seen), shards)
			}
			select {
			case <-at.met:
			case <-time.After(patience):
				t.Errorf("%d of %d shards never stepped while the others did", at.missing.Load(), shards)
				at.end()
			}
			senders.Wait()
		})
	}
}
