package ps

import (
	"maps"
	"slices"
	"time"

	"gradbus/schema"
)

// shards is what the shards here have last said of themselves.
func (p *pulser) shards() []schema.ShardPulse {
	jobs := *p.server.jobs.Load()
	var all []schema.ShardPulse
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		k := jobs[name]
		for _, i := range k.own {
			if len(all) == schema.PulseShardsMax {
				return all
			}
			all = append(all, k.workers[i].pulse(k))
		}
	}
	return all
}

// stepped counts a frame that was stepped, and gives the time at which that was done.
func (t *tally) stepped(h *schema.Head, reason schema.Reason, bytes int, began time.Time) time.Time {
	now := time.Now()
	t.step += now.Sub(began)
	switch {
	case reason == schema.ReasonDuplicate:
		t.repeats++
	case reason != schema.ReasonOK:
	default:
		t.frames, t.bytes = t.frames+1, t.bytes+uint64(bytes)
		switch h.Kind {
		case schema.KindLookup:
			t.lookups++
		case schema.KindPull:
			t.pulls++
		}
	}
	return now
}

// pulse is what one shard has last said of itself, and what waits for it now.
func (w *worker) pulse(k *kept) schema.ShardPulse {
	w.mu.Lock()
	t, waiting := w.told, w.waiting
	w.mu.Unlock()
	p := schema.ShardPulse{
		Job: w.config.Job.Name, Shard: w.config.Index, Ready: t.ready, Version: t.version, Frames: t.frames, Bytes: t.bytes, Acks: t.acks,
		Lookups: t.lookups, Pulls: t.pulls, Repeats: t.repeats, Rounds: t.rounds, StagedBytes: t.staged, StagedBytesMax: w.config.StagedBytesMax,
		MemoryBytes: k.memory.Bytes() / int64(len(k.own)), StepSeconds: schema.Real(t.step.Seconds()), PublishSeconds: schema.Real(t.publish.Seconds()), ApplySeconds: schema.Real(t.apply.Seconds()), ApplyBytes: t.applyBytes,
	}
	p.QueueFrames, p.QueueBytes = w.queue.load()
	if len(waiting.Members) > 0 {
		p.Waiting = &schema.Wait{Batch: waiting.Batch, Bucket: waiting.Bucket, Chunk: waiting.Chunk, Members: waiting.Members, First: waiting.First}
	}
	return p
}
