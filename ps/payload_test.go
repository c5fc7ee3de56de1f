package ps

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gradbus/round"
	"gradbus/schema"
)

// leases counts what becomes of the payloads that a shard was given.
type leases struct{ all []*lease }

// lease is the payload of one frame. What is released is overwritten, so that who reads it later gives wrong results.
type lease struct {
	frame    []byte
	released int
}

func (l *leases) of(frame []byte) *lease {
	p := &lease{frame: frame}
	l.all = append(l.all, p)
	return p
}

func (p *lease) Release() {
	p.released++
	for i := range p.frame {
		p.frame[i] = 0x55 // in every four bytes 1.46e13
	}
}

// check wants every payload to be released once, but for those that are held.
func (l *leases) check(t testing.TB, held int) {
	t.Helper()
	open := 0
	for i, p := range l.all {
		switch p.released {
		case 0:
			open++
		case 1:
		default:
			t.Errorf("payload %d was released %d times", i, p.released)
		}
	}
	if open != held {
		t.Errorf("%d of %d payloads are held, want %d", open, len(l.all), held)
	}
}

// Whatever becomes of a frame, its payload is released once: at once where nothing of it stays, in the end in any case.
func TestPayloadsAreReleasedOnce(t *testing.T) {
	stayed := 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			s.run(2)
			s.leases.check(t, 0) // run has begun batch 2, of which only a part comes
			s.sent = s.contributions()
			cut := rand.New(rand.NewPCG(seed, 2)).IntN(len(s.sent))
			for i, at := range s.r.Perm(len(s.sent))[:cut] {
				s.deliver(&s.sent[at], schema.ReasonOK)
				s.disturb(at, i)
			}
			stayed += s.held()
			s.leases.check(t, s.held())
			for _, shard := range s.shards {
				shard.Close()
			}
			s.leases.check(t, 0)
		})
	}
	if stayed == 0 {
		t.Error("no frame was held anywhere: the test sees less than it should")
	}
}

// held is how many payloads the shards keep.
func (s *simulation) held() int {
	n := 0
	for _, shard := range s.shards {
		for i := range shard.lines {
			l := &shard.lines[i]
			for b := l.batch - min(l.batch, l.ahead); b <= l.batch; b++ {
				for k := range l.dense.Chunks() {
					n += l.dense.Sums(k, b)
				}
				if l.sparse != nil {
					n += l.sparse.Chunks(b)
				}
			}
		}
	}
	return n
}

// A queue releases what it does not take, and on closing what nobody has taken.
func TestQueueReleases(t *testing.T) {
	f := newFrame(t, schema.Layout{Kind: schema.KindBeat})
	var l leases
	q := newQueue(64 << 20)
	for range queueItemsMax + 5 {
		q.put(item{from: "t0", view: *view(t, f.Seal()), payload: l.of(nil)})
	}
	l.check(t, queueItemsMax)
	for i, it := range q.swap(nil) { // the reader's now
		if i < 7 {
			round.Release(it.payload)
		}
	}
	q.put(item{from: "t0", view: *view(t, f.Seal()), payload: l.of(nil)})
	q.close()
	l.check(t, queueItemsMax-7)
	q.put(item{from: "t0", view: *view(t, f.Seal()), payload: l.of(nil)})
	l.check(t, queueItemsMax-7)
}
