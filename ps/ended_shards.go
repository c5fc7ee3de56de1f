package ps

import (
	"slices"
	"sync"
	"time"

	"gradbus/schema"
)

// endedShards keeps the last figures of buckets of shards that have ended, for as long as jobs may wait for trainers
// (Config.StartTimeout): a program that has trained, and a scrape, come after the end of the job.
type endedShards struct {
	mu  sync.Mutex // a leaf
	all []endedShard
}

type endedShard struct {
	at time.Time
	schema.EndedShard
}

// endedShardsMax bounds the shards that are kept: beyond, the first to end is forgotten.
const endedShardsMax = 256

// add keeps the figures of a job's shards here, in the place of those of an earlier run.
func (e *endedShards) add(now time.Time, a *assignment) {
	e.forget(a.manifest.Name)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range a.own {
		w := a.workers[i]
		e.all = append(e.all, endedShard{now, schema.EndedShard{Job: a.manifest.Name, Run: a.run, Shard: w.config.Index,
			Buckets: w.watch.times.report()}})
	}
	e.all = slices.Delete(e.all, 0, max(0, len(e.all)-endedShardsMax))
}

// forget drops the figures of a job, of all jobs where it is empty. It reports whether there were any.
func (e *endedShards) forget(job schema.JobName) (found bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.all)
	e.all = slices.DeleteFunc(e.all, func(s endedShard) bool { return job == "" || s.Job == job })
	return len(e.all) < before
}

// report lists the figures that are kept, but those of jobs that have shards here again.
func (e *endedShards) report(now time.Time, within time.Duration,
	jobs map[schema.JobName]*assignment) (all []schema.EndedShard) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.DeleteFunc(e.all, func(s endedShard) bool { return now.Sub(s.at) > within })
	for i := range e.all {
		if jobs[e.all[i].Job] == nil {
			all = append(all, e.all[i].EndedShard)
		}
	}
	return all
}
