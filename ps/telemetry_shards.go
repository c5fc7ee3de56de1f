package ps

import (
	"maps"
	"slices"
	"time"

	"gradbus/schema"
)

// shards is what the shards here have last said of themselves.
func (p *reporter) shards() []schema.ShardReport {
	jobs := *p.server.jobs.Load()
	var all []schema.ShardReport
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		a := jobs[name]
		for _, i := range a.own {
			if len(all) == schema.TelemetryShardsMax {
				return all
			}
			all = append(all, a.workers[i].report(a))
		}
	}
	return all
}

// ResetBuckets has the reports of this ps begin anew what they say of each bucket: of a job, or of all jobs where it is
// empty. Other ps keep what they say of theirs. It reports whether this ps has shards of the job, or
// figures of some that have ended.
func (s *Server) ResetBuckets(job schema.JobName) (found bool) {
	now := time.Now()
	for name, a := range *s.jobs.Load() {
		if job != "" && name != job {
			continue
		}
		for _, i := range a.own {
			a.workers[i].watch.times.reset(now)
			found = true
		}
	}
	return s.ended.forget(job) || found || job == ""
}

// stepped counts a frame that was stepped.
func (t *tally) stepped(h *schema.Head, reason schema.Reason, bytes int, began time.Time) {
	t.step += time.Since(began)
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
}

// report is what one shard has last said of itself, and what waits for it now.
func (w *worker) report(a *assignment) schema.ShardReport {
	w.mu.Lock()
	t, waiting := w.told, w.waiting
	w.mu.Unlock()
	p := schema.ShardReport{
		Job: w.config.Job.Name, Shard: w.config.Index, Ready: t.ready, Version: t.version, Frames: t.frames, Bytes: t.bytes,
		Acks:    t.acks,
		Lookups: t.lookups, Pulls: t.pulls, Repeats: t.repeats, Rounds: t.rounds, StagedBytes: t.staged,
		StagedBytesMax: w.config.StagedBytesMax,
		MemoryBytes:    a.memory.Bytes() / int64(len(a.own)), StepSeconds: schema.Real(t.step.Seconds()),
		PublishSeconds: schema.Real(t.publish.Seconds()), ApplySeconds: schema.Real(t.apply.Seconds()),
		ApplyBytes: t.applyBytes, Buckets: w.watch.times.report(),
	}
	p.QueueFrames, p.QueueBytes = w.queue.load()
	if len(waiting.Members) > 0 {
		p.Waiting = &waiting.Waiting
	}
	return p
}
