package ps

import (
	"context"
	"fmt"
	"sync/atomic"

	"gradbus/lane"
	"gradbus/schema"
)

// generationFirst is the generation of every job: policy fail ends a job rather than change its membership.
const generationFirst schema.Generation = 1

// job is one job on this server: its coordinator, which the desk runs, and a worker for each shard.
type job struct {
	manifest    *schema.Job
	run         schema.RunID
	coordinator *Coordinator
	workers     []*worker
	bytes       int64 // of memory promised to it

	building atomic.Int32 // shards that are not ready yet
	cancel   context.CancelFunc
}

// newJob makes a job's workers, whose goroutines begin to draw version 0. news is told when they are done, or fail.
func newJob(ctx context.Context, s *Server, manifest *schema.Job, run schema.RunID, news chan<- shardNews) (*job, error) {
	shards := s.config.Shards
	j := &job{manifest: manifest, run: run, bytes: JobBytes(manifest, shards, s.config.StagedBytesMax)}
	j.coordinator = NewCoordinator(CoordinatorConfig{
		Job: manifest, RunID: run, Generation: generationFirst, Shards: shards, Deadline: s.config.Deadline,
	})
	ctx, j.cancel = context.WithCancel(ctx)
	place := schema.NewPlacement(manifest, shards)
	hosts := hostsOf(manifest)
	for i := range shards {
		config := ShardConfig{
			Job: manifest, Placement: place, Index: i, RunID: run, Generation: generationFirst, Backend: s.backend, Hosts: hosts,
			StagedBytesMax: stagedBytes(manifest, s.config.StagedBytesMax),
		}
		tell := func(err error) {
			select {
			case news <- shardNews{j, schema.ShardMember(i), err}:
			case <-ctx.Done():
			}
		}
		w, err := newWorker(s, config, s.log.With("job", manifest.Name, "shard", schema.ShardMember(i)), tell)
		if err != nil {
			j.cancel()
			return nil, fmt.Errorf("register job %s: %w", manifest.Name, err)
		}
		j.workers = append(j.workers, w)
	}
	j.building.Store(int32(shards))
	for _, w := range j.workers {
		go w.run(ctx)
	}
	return j, nil
}

// hostsOf is which lanes each trainer of a job hosts.
func hostsOf(manifest *schema.Job) []Host {
	hosts := make([]Host, manifest.Trainers)
	for i := range hosts {
		first, count := lane.Share(i, manifest.Trainers, manifest.Lanes)
		hosts[i] = Host{Member: schema.TrainerMember(i), First: first, Count: count}
	}
	return hosts
}

// stop ends the workers and waits until their memory is free.
func (j *job) stop() {
	j.cancel()
	for _, w := range j.workers {
		<-w.done
	}
}

// shardNews says that a shard is ready, or why it is not or no more.
type shardNews struct {
	job    *job
	member schema.Member
	err    error
}
