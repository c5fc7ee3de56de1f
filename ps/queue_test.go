package ps

import (
	"testing"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// A queue releases what it does not take, and on closing what nobody has taken.
func TestQueueReleases(t *testing.T) {
	f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindHeartbeat})
	var l shardtest.Leases
	q := newQueue(64 << 20)
	for range queueItemsMax + 5 {
		q.put(item{from: "t0", view: *shardtest.View(t, f.Seal()), payload: l.Of(nil)})
	}
	l.Check(t, queueItemsMax)
	for i, it := range q.swap(nil) { // the reader's now
		if i < 7 {
			round.Release(it.payload)
		}
	}
	q.put(item{from: "t0", view: *shardtest.View(t, f.Seal()), payload: l.Of(nil)})
	q.close()
	l.Check(t, queueItemsMax-7)
	q.put(item{from: "t0", view: *shardtest.View(t, f.Seal()), payload: l.Of(nil)})
	l.Check(t, queueItemsMax-7)
}
