package ps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/round"
	"gradbus/schema"
)

// graceOfCoordinator is added to the deadline for a coordinator's silence, so that it ends the job first.
const graceOfCoordinator = 5 * time.Second

// kept is what this ps keeps of a job, whoever coordinates it: some of its shards, with a worker each. The desk's
// goroutine owns it, but for routes, which workers read.
type kept struct {
	server   *Server
	manifest *schema.Job
	run      schema.RunID
	shards   int           // of the job
	own      []int         // those kept here
	workers  []*worker     // by shard of the job; nil where another ps keeps it
	memory   Memory        // that it is promised
	window   int64         // bytes that each trainer may have under way to each shard here
	deadline time.Duration // that the coordinator says, but no longer than our own

	ctx      context.Context
	cancel   context.CancelFunc
	asides   sync.WaitGroup // of what the desk does not wait for: ways to the cluster that are opened, contexts that expire
	building int            // shards that are not ready yet
	serial   int            // of the last assignment that was carried out
	wanted   int            // of the one that is being carried out
	heard    time.Time      // last sign of the coordinator
	routes   atomic.Pointer[routes]
	lives    *lives // of its trainers, where modules are hosted here; else nil
}

// routes are the ways to the trainers of a job.
type routes struct {
	direct    *fabric.Conn               // our own data server; nil where nobody is on it
	cluster   *fabric.Conn               // by way of the control cluster; nil where nobody is
	onCluster map[schema.Member]struct{} // whom it leads to; all others are direct
}

// newKept makes workers for our shards of a job, whose goroutines begin to draw version 0. news is told when they are
// done, or fail.
func newKept(ctx context.Context, s *Server, run schema.RunID, a *schema.Assign, window int64, news chan<- shardNews) (*kept, error) {
	k := &kept{
		server: s, manifest: a.Job, run: run, shards: a.Shards, own: a.Own, workers: make([]*worker, a.Shards), building: len(a.Own),
		memory: MemoryOf(s.config, a.Job, len(a.Own), a.Shards), window: window,
		deadline: time.Duration(min(a.DeadlineMS, s.config.Deadline.Milliseconds())) * time.Millisecond,
	}
	k.routes.Store(&routes{direct: s.conn})
	if len(a.Job.Modules) > 0 {
		k.lives = newLives(a.Job, k.deadline)
	}
	k.ctx, k.cancel = context.WithCancel(ctx)
	place, hosts := schema.NewPlacement(a.Job, a.Shards), round.HostsOf(a.Job)
	for _, i := range a.Own {
		config := ShardConfig{
			Job: a.Job, Placement: place, Index: i, RunID: run, Generation: generationFirst, Backend: s.backend, Hosts: hosts,
			Lent: s.bus != nil, StagedBytesMax: stagedBytes(a.Job, s.config.StagedBytesMax),
		}
		if tell := s.journal; tell != nil {
			config.Journal = func(e Journal) { tell(a.Job.Name, i, e) }
		}
		tell := func(err error) {
			select {
			case news <- shardNews{kept: k, member: schema.ShardMember(i), err: err}:
			case <-k.ctx.Done():
			}
		}
		w, err := newWorker(s, config, window, s.log.With("job", a.Job.Name, "shard", schema.ShardMember(i)), k.publish, tell)
		if err != nil {
			k.cancel()
			return nil, fmt.Errorf("keep shard %d of job %s: %w", i, a.Job.Name, err)
		}
		k.workers[i] = w
	}
	for _, i := range k.own {
		go k.workers[i].run(k.ctx)
	}
	return k, nil
}

// shardNews says that a shard is ready, or why it is not or no more; or that the routes to trainers are open; or that all is free.
type shardNews struct {
	kept   *kept
	member schema.Member
	err    error
	free   bool // the workers have ended, and their memory is free
}

// wait returns when the workers, which have been told to end, have done so and their memory is free. The desk must not call it: a
// worker may be at something long.
func (k *kept) wait() {
	for _, i := range k.own {
		<-k.workers[i].done
	}
	k.asides.Wait()
	if r := k.routes.Load(); r.cluster != nil {
		r.cluster.Close()
	}
}

// report says how our shards fare.
func (k *kept) report() *schema.Report {
	r := &schema.Report{Serial: k.serial, Ready: k.building == 0, Waiting: []schema.Waiting{}}
	for _, i := range k.own {
		w := k.workers[i].lately()
		k.workers[i].refresh()
		r.Waiting = mergeWaiting(r.Waiting, &w)
	}
	return r
}

// mergeWaiting adds what a shard waits for to what others of this ps wait for: one entry for each batch, so that a report
// is not larger for more shards.
func mergeWaiting(all []schema.Waiting, w *Waiting) []schema.Waiting {
	if len(w.Members) == 0 {
		return all
	}
	i, found := slices.BinarySearchFunc(all, w.Batch, func(e schema.Waiting, b schema.Batch) int { return int(int64(e.Batch) - int64(b)) })
	if !found {
		return slices.Insert(all, i, schema.Waiting{Batch: w.Batch, Bucket: w.Bucket, Chunk: w.Chunk, Members: w.Members, First: w.First})
	}
	e := &all[i]
	if !slices.Equal(e.Members, w.Members) {
		e.Members = slices.Concat(e.Members, w.Members)
		slices.Sort(e.Members)
		e.Members = slices.Compact(e.Members)
	}
	if w.Bucket < e.Bucket || w.Bucket == e.Bucket && w.Chunk < e.Chunk {
		e.Bucket, e.Chunk, e.First = w.Bucket, w.Chunk, w.First
	}
	return all
}

// publish sends a frame of one of our shards to a trainer, or to all of them by every route in use. It may be reused at
// once. What a lost server does not take is asked for again.
func (k *kept) publish(to schema.Member, subject fabric.Subject, frame []byte) {
	r := k.routes.Load()
	_, away := r.onCluster[to]
	if r.direct != nil && !away {
		k.server.publish(r.direct, subject, frame)
	}
	if r.cluster != nil && (away || to == schema.All) {
		k.server.publish(r.cluster, subject, frame)
	}
}

// route makes the ways to trainers as an assignment wants them, and tells news with an empty member. What may wait for the
// cluster is done on a goroutine, which ends with the job.
func (k *kept) route(a *schema.Assign, news chan<- shardNews) {
	old := k.routes.Load()
	next := &routes{cluster: old.cluster, onCluster: map[schema.Member]struct{}{}}
	for _, m := range a.Cluster {
		next.onCluster[m] = struct{}{}
	}
	if len(next.onCluster) < k.manifest.Trainers {
		next.direct = k.server.conn
	}
	k.wanted = a.Serial
	if len(next.onCluster) == 0 || next.cluster != nil || k.server.embedsControl() {
		if k.server.embedsControl() { // the control server is our own data server
			next.direct, next.onCluster = k.server.conn, nil
		}
		k.routes.Store(next)
		k.serial = a.Serial
		return
	}
	k.asides.Go(func() {
		conn, err := k.server.dialCluster(k)
		if err == nil {
			next.cluster = conn
			k.routes.Store(next) // wait closes it
		}
		select {
		case news <- shardNews{kept: k, err: err}:
		case <-k.ctx.Done():
		}
	})
}

// dialCluster connects a job's shards here to the control cluster, by which some of its trainers send.
func (s *Server) dialCluster(k *kept) (*fabric.Conn, error) {
	config := s.controlConfig(string(k.manifest.Name) + "/" + string(s.member))
	conn, err := fabric.Dial(k.ctx, config)
	if err != nil {
		return nil, err
	}
	if r := checkMessages(k.manifest, "the NATS server at "+s.control.Address(), conn.PayloadBytesMax()); r != nil {
		conn.Close()
		return nil, errors.New(r.Text)
	}
	for _, i := range k.own {
		for _, pattern := range fabric.ListenAt(string(k.manifest.Name), string(schema.ShardMember(i))) {
			if err := conn.Subscribe(pattern, func(m fabric.Message) { s.receive(conn, i, m) }); err != nil {
				conn.Close()
				return nil, err
			}
		}
	}
	return conn, nil
}
