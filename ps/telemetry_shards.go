package ps

import (
	"maps"
	"slices"
	"time"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
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

// notePromised notes what each shard here was promised. A shard that has nothing to do is promised what may be under
// way to it alone.
func (a *assignment) notePromised() {
	is, busy := a.manifest.BusyShards(a.shards), 0
	for _, i := range a.own {
		if is[i] {
			busy++
		}
	}
	each := a.memory.UnderWay / int64(len(a.own))
	for _, i := range a.own {
		if a.workers[i].promised = each; is[i] {
			a.workers[i].promised += (a.memory.Bytes() - a.memory.UnderWay) / int64(busy)
		}
	}
}

// noteHeld notes what the shard holds of the job's state, or why it has nothing to do. It walks all chunks of the job,
// so the worker's goroutine calls it.
func (w *worker) noteHeld() {
	place, held := w.config.Placement, int64(0)
	idle := place.Idle(w.config.Index)
	if idle == "" {
		held = stateBytes(&w.server.config, w.config.Job, place, w.config.Index)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.held = idle, held
}

// stateBytes is what a shard holds of a job's rows and parameters, with what optimizers keep of them.
func stateBytes(c *Config, job *schema.Job, place *schema.Placement, shard int) (n int64) {
	for i := range job.Tables {
		t := &job.Tables[i]
		_, columns := place.Columns(schema.Table(i), shard)
		if columns == 0 || place.Plan.Tables[i].Owner == schema.ByTrainers {
			continue
		}
		slots, marks := slotBytes(c, job, schema.Table(i))
		all := (int64(t.Rows)*int64(t.Dim)*valueBytes+slots)*int64(columns)/int64(t.Dim) + marks
		n += all * int64(place.PartitionsOf(schema.Table(i), shard)) / int64(t.Partitions)
	}
	if place.Plan.Owner == schema.ByTrainers {
		return n
	}
	for _, ref := range place.OwnedChunks(shard) {
		_, elements := place.ChunkRange(ref.Bucket, ref.Chunk)
		slots, _ := state.SlotBytes(place.OptimizerOf(ref.Bucket), int64(elements), 1)
		n += int64(elements)*valueBytes*int64(round.Versions(job)) + 2*slots
	}
	return n
}

// report is what one shard has last said of itself, and what waits for it now.
func (w *worker) report(a *assignment) schema.ShardReport {
	w.mu.Lock()
	t, waiting, held, idle := w.told, w.waiting, w.held, w.idle
	w.mu.Unlock()
	p := schema.ShardReport{
		Job: w.config.Job.Name, Shard: w.config.Index, Ready: t.ready, Version: t.version, Frames: t.frames, Bytes: t.bytes,
		Acks:    t.acks,
		Lookups: t.lookups, Pulls: t.pulls, Repeats: t.repeats, Rounds: t.rounds, StagedBytes: t.staged,
		StagedBytesMax: w.config.StagedBytesMax,
		MemoryBytes:    w.promised, HeldBytes: held + t.staged, Idle: idle, StepSeconds: schema.Real(t.step.Seconds()),
		PublishSeconds: schema.Real(t.publish.Seconds()), ApplySeconds: schema.Real(t.apply.Seconds()),
		ApplyBytes: t.applyBytes, Buckets: w.watch.times.report(),
	}
	p.QueueFrames, p.QueueBytes = w.queue.load()
	if len(waiting.Members) > 0 {
		p.Waiting = &waiting.Waiting
	}
	return p
}
