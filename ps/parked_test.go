package ps

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// 64 parked requests take no goroutine and no thread of the server.
func TestParkedRequestsNeedNoGoroutines(t *testing.T) {
	const trainers = 64
	s := startServer(t, Config{Shards: 1})
	job := shardtest.SmallJob("parked", trainers, trainers)
	job.Consistency, job.Group, job.Apply, job.Tables = schema.ConsistencyGrouped, trainers, schema.ApplyUpdate, nil
	job.Parameters = job.Parameters[:1]
	p := shardtest.New(t, job)
	all := make([]*miniTrainer, trainers)
	for i := range all {
		all[i] = newMiniTrainer(t, s, p, fmt.Sprintf("j-%d", i))
		all[i].join()
	}
	for _, m := range all {
		m.start()
	}
	park := func(m *miniTrainer) {
		n := lane.Nodes(m.joined.FirstLane, m.joined.LaneCount, job.Lanes)[0]
		for _, c := range p.Frames(t, m.place, m.joined.RunID, 0, n) {
			m.send(fabric.KindDense, c.Shard, schema.Head{Batch: 0, Bucket: c.Bucket}, c.Frame)
		}
	}
	parked := func() int { return (*s.jobs.Load())[job.Name].workers[0].parked() }
	park(all[0])
	eventually(t, "the first request is parked", func() bool { return parked() == 1 })
	goroutines := settled(runtime.NumGoroutine)
	for _, m := range all[1 : trainers-1] {
		park(m)
	}
	eventually(t, "63 requests are parked", func() bool { return parked() == trainers-1 })
	eventually(t, "63 parked requests take no goroutine more than one",
		func() bool { return runtime.NumGoroutine() <= goroutines })
	park(all[trainers-1])
	for _, m := range all {
		m.results(0)
	}
}

// parked is how many requests wait for others.
func (w *worker) parked() int {
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	waiting := w.end.Waiting()
	if waiting.Rounds == 0 {
		return 0
	}
	return len(w.config.Contributors) - len(waiting.Members)
}

// settled is the least that a number is within a while: goroutines come and go.
func settled(of func() int) int {
	least := of()
	for range 50 {
		time.Sleep(2 * time.Millisecond)
		least = min(least, of())
	}
	return least
}
