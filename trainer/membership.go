package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
)

// membership is a trainer's place in one run of a job. Its methods may be called from one goroutine at a time, but for
// Stats, Member, Job and the like, which any may call. One that has ended stays so: every call gives the first error.
type membership struct {
	config Config
	job    *schema.Job
	joined schema.Joined
	place  *schema.Placement

	control *fabric.Control // to the coordinator
	servers []*dataServer   // of the shards, and of other trainers where those reduce among themselves
	own     *ownServer      // this trainer's, in such a job; else nil

	compute  *compute
	links    []*shardLink
	owners   map[string]int // of links, by member name
	flat     *flatSpace
	sender   *sender
	exchange *exchanging
	lookups  *lookups
	results  *results
	replicas *replicas
	modules  []*hostedModule // that shards host, by index of the manifest
	share    share           // of the parameters, that is asked for
	reducer  *reducer        // what this trainer adds up for all, in a job that reduces between trainers; else nil

	// ctx ends with the session; its cause is the error that every later call gives.
	ctx  context.Context
	fail context.CancelCauseFunc
	// trainable ends with ctx, or before it where the session is readable and trains no more; its cause is the error of
	// every later call that trains.
	trainable context.Context

	run      *run                   // the run of batches under way; nil between two
	training atomic.Bool            // one is
	complete atomic.Bool            // the last Run went well, and no other has begun
	speaks   atomic.Bool            // a heartbeat is due at once
	clock    sync.WaitGroup         // the goroutines of keepTime and of links
	standby  atomic.Pointer[string] // where the job goes on when its ps is lost; nil: nobody stands by
	asking   atomic.Bool            // whoever stands by is being asked
	ending   sync.Mutex             // of the end of ctx by close, after which no goroutine is started. A leaf
	controls chan schema.Control
	leaveNow chan struct{} // has room for one: the coordinator does not ask to wait any more
	batch    atomic.Uint64 // under way; also the version that is whole here
	durable  atomic.Uint64 // newest durable version that this trainer knows of; 0: none
	savedAt  atomic.Uint64 // version that Config.SavePath has; 0: none
	watch    watch
	faults   atomic.Uint64 // frames that did not verify
	epoch    time.Time     // when it was made
	retry    *time.Timer
	left     bool
	// others may compute its lanes when it has left: it was interrupted, and has not failed
	handsOver   bool
	interrupted bool // the program was told to end, and joins no more
	// forgotten is set when the coordinator has said that it does not know this run: its ps was started anew.
	forgotten atomic.Bool

	evaluation *evaluation // made when first needed
	takeovers  takeovers

	connMu  sync.Mutex // guards the setting of servers' conn: reports are sent while peers are still dialed. A leaf
	statsMu sync.Mutex
	stats   Stats
	loss    schema.TrainLoss
	norm    struct { // of the gradient, of the batch that was measured last; nil before the first
		value *schema.Real
		batch schema.Batch
	}
	lr           *learningRates
	fingerprints fingerprints // of the goroutine that calls Run, but for the digests

	activity activity
	passes   passClock
	planned  atomic.Uint64 // batch before which the Run under way ends; 0 between runs
	reports  *reports      // nil where none are sent
}

// newMembership builds the membership of a trainer that was admitted. Nothing is sent or subscribed to yet.
func newMembership(ctx context.Context, c Config, job *schema.Job, joined schema.Joined) (*membership, error) {
	if joined.Shards < 1 && job.NeedsShards() {
		return nil, fmt.Errorf("coordinator has %d shards for a job that needs one", joined.Shards)
	}
	if n := joined.ChunkBytes; n != 0 {
		if n < 0 || n > job.ChunkBytes {
			return nil, fmt.Errorf("coordinator gives chunks of %d bytes, and the manifest at most %d", n, job.ChunkBytes)
		}
		if job = job.WithChunkBytes(n); job.Validate() != nil {
			return nil, fmt.Errorf("coordinator gives chunks of %d bytes: %w", n, job.Validate())
		}
	}
	if n := joined.Trainers; n != 0 {
		if n > job.Trainers {
			return nil, fmt.Errorf("coordinator has %d trainers, and the manifest %d", n, job.Trainers)
		}
		job = job.WithTrainers(n)
	}
	s := &membership{config: c, job: job, joined: joined, place: schema.NewPlacement(job, joined.Shards),
		owners:   map[string]int{},
		controls: make(chan schema.Control, 8), leaveNow: make(chan struct{}, 1), epoch: time.Now(),
		retry: time.NewTimer(time.Hour), lr: newLearningRates(joined.LR)}
	s.setStandby(joined.Standby)
	s.setFail()
	s.retry.Stop()
	s.activity.epoch = s.epoch
	if c.TelemetryEvery > 0 {
		s.reports = newReports(s.epoch, c.Backend)
	}
	if joined.LaneCount < 1 || int(joined.FirstLane)+joined.LaneCount > job.Lanes {
		return nil, fmt.Errorf("coordinator gives lanes [%d,%d) of %d", joined.FirstLane,
			int(joined.FirstLane)+joined.LaneCount, job.Lanes)
	}
	var err error
	if err = s.findServers(); err != nil {
		return nil, err
	}
	if err = s.findModules(); err != nil {
		return nil, err
	}
	if s.flat, err = newFlatSpace(job, s.place); err != nil {
		return nil, err
	}
	params, err := newParameters(ctx, job, c.Backend, s.flat, &s.lr.applied)
	if err != nil {
		return nil, err
	}
	if err := s.build(params); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// build makes what one batch needs.
func (s *membership) build(params *parameters) (err error) {
	job, lanes := s.job, s.joined.LaneCount
	s.share.pieces = shard.NewPieces(job)
	plan := newLanePlan(s.joined.FirstLane, lanes, job.Lanes)
	t := newTables(job.Tables, lanes)
	if s.replicas, err = newReplicas(s.ctx, job, s.config.Backend, &s.lr.applied, s.joined.Version > 0); err != nil {
		return err
	}
	owners := s.newRouting(t.dims())
	s.compute = &compute{plan: plan, tables: t, params: params, samples: make([]int, lanes),
		dense: newDenseSums(s.config.Backend, job.Lanes, plan.slots(), s.flat.params, s.flat.chunks),
		rows: newRowSums(s.config.Backend, job.Lanes, newBagGrads(s.place.Plan.DType, plan, owners, t.specs),
			t.sumDims())}
	s.compute.rows.count = func(table int) int { return len(t.keys[table]) }
	s.compute.dense.held = s.place.Plan.SkipNonfinite
	if slices.ContainsFunc(t.specs, func(spec schema.TableSpec) bool { return spec.PerRow }) {
		s.compute.rows.perRow = &rowCounts{tables: t}
	}
	if s.place.Plan.ErrorFeedback {
		s.compute.dense.keepResiduals(len(plan.nodes))
	}
	sparse := rowOwners(s.place)
	s.results = newResults(s.flat, params, job, sparse, s.config.RetryAfter)
	s.exchange = s.results.exchanging
	s.lookups = newLookups(owners, t, s.place, s.exchange, rowsOfBatch)
	s.lookups.over = s.roundOver
	s.results.replicas, s.results.clipped = s.replicas, newClipped(job, params)
	s.results.first = schema.Batch(s.joined.Version)
	if s.results.clipped != nil {
		s.results.clipped.replicas = s.replicas
	}
	if s.config.Timeline {
		for i := range s.results.times {
			s.results.times[i] = newBucketTrace(s.place, sparse)
		}
	}
	if s.place.Trainers > 0 {
		if s.reducer, err = newReducer(s); err != nil {
			return err
		}
	}
	if s.sender, err = newSender(job, s.joined.Member, s.links, s.flat, s.compute, sparse, owners); err != nil {
		return err
	}
	s.sender.own, s.sender.results, s.sender.activity = s.reducer, s.results, &s.activity
	return nil
}

func (s *membership) newRouting(dims []int) *routing {
	routing := newRouting(dims, len(s.links), s.job.ChunkBytes/4, func(table int, key uint64) int {
		return s.place.OwnerOfKey(schema.Table(table), key)
	})
	routing.quiet = s.replicas.replicated()
	return routing
}

// Member is the trainer's id within the job.
func (s *membership) Member() schema.Member { return s.joined.Member }

// Job is the manifest, with chunks as the server has room for them. It is not to be changed.
func (s *membership) Job() *schema.Job { return s.job }

// Backend is what does the session's arithmetic, for a workload that wants it too. It ends with the session where the
// Config had none.
func (s *membership) Backend() cuda.Backend { return s.config.Backend }

// RunID tells this run of the job from others of its name.
func (s *membership) RunID() schema.RunID { return s.joined.RunID }

// Shards is the number of shards that hold the job.
func (s *membership) Shards() int { return s.joined.Shards }

// Lanes is the range of lanes that this trainer hosts.
func (s *membership) Lanes() (first lane.Lane, count int) {
	return s.joined.FirstLane, s.joined.LaneCount
}

// Version is the number of batches applied: the next batch's number. Where the job begins with the values of a model,
// it counts from them.
func (s *membership) Version() schema.Version { return s.job.Counted(s.newest()) }

// newest is the version that is whole here, as frames number it.
func (s *membership) newest() schema.Version { return schema.Version(s.batch.Load()) }

// Param is Session.Param in this run.
func (s *membership) Param(name string) []float32 {
	i, ok := s.compute.params.index[name]
	if !ok {
		return nil
	}
	return s.compute.params.value(i)
}

// Err is nil while the membership lasts, and then why it does not.
func (s *membership) Err() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// TrainingErr is nil while the membership can train, and then why it cannot: see Session.TrainingErr.
func (s *membership) TrainingErr() error {
	if s.trainable.Err() == nil {
		return nil
	}
	return context.Cause(s.trainable)
}

// head is what all frames of a batch have in common.
func (s *membership) head(b schema.Batch) schema.Head {
	return schema.Head{Job: s.joined.RunID, Generation: s.joined.Generation, Batch: b, Lanes: uint16(s.job.Lanes)}
}

// signHead is the head of a sign of life.
func (s *membership) signHead() schema.Head {
	h := s.head(s.newest())
	if s.complete.Load() {
		h.Flags = schema.FlagComplete
	}
	return h
}

func (s *membership) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(s.job.Name), string(s.joined.Member), kind, string(to))
}

// running gives a context that ends with ctx or when the session trains no more, whichever is first, with the cause.
func (s *membership) running(ctx context.Context) (context.Context, func()) {
	return endingWith(ctx, s.trainable)
}

// readable gives a context that ends with ctx or with the session, whichever is first, with the cause.
func (s *membership) readable(ctx context.Context) (context.Context, func()) {
	return endingWith(ctx, s.ctx)
}

func endingWith(ctx, other context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return both, func() {
		stop()
		cancel(nil)
	}
}

// Close is Session.Close in this run.
func (s *membership) Close() error {
	if s.left {
		return nil
	}
	if s.TrainingErr() == nil {
		if err := s.Finish(context.Background()); err != nil {
			return errors.Join(err, s.leave(err.Error()))
		}
	}
	return s.leave("")
}

// Abort is Session.Abort in this run.
func (s *membership) Abort(err error) error {
	if err == nil {
		return s.Close()
	}
	s.interrupted = isInterrupt(err)
	s.handsOver = s.interrupted
	return s.leave(err.Error())
}

// isInterrupt reports that a program was told to end, and has not failed.
func isInterrupt(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, ErrInterrupted)
}

// AbortTraining is Session.AbortTraining in this run.
func (s *membership) AbortTraining(err error) error {
	if err != nil && !s.left {
		s.complete.Store(false)
	}
	return s.Abort(err)
}

// leave ends the membership; without a reason this trainer is done, or has failed.
func (s *membership) leave(reason string) error {
	if s.left {
		return nil
	}
	s.left = true
	ctx := context.Background()
	if err := s.TrainingErr(); err != nil && reason == "" {
		reason = err.Error()
	}
	s.takeovers.leaveAll(reason, s.handsOver || errors.Is(s.Err(), errReplaced) || errors.Is(s.Err(), ErrServerLost))
	if reason == "" || s.complete.Load() {
		if err := s.awaitOthers(ctx, reason != ""); err != nil && reason == "" {
			reason = err.Error()
		}
	}
	s.sendLastReport()
	err := s.sayLeave(ctx, reason)
	s.close()
	return err
}

func (s *membership) close() {
	s.ending.Lock()
	s.fail(ErrLeft)
	s.ending.Unlock()
	for _, d := range s.servers { // first, since a frame may be on its way to one that does not read
		if d.conn != nil {
			d.conn.Close()
		}
	}
	s.clock.Wait()
	if s.reports != nil {
		s.reports.meter.Close()
	}
	if s.control != nil {
		s.control.Close()
	}
	s.own.close()
	s.reducer.close()
	if s.replicas != nil {
		s.replicas.close() // nobody receives any more
	}
	if s.compute != nil {
		s.compute.params.state.Close()
	}
}

func (s *membership) sayLeave(ctx context.Context, reason string) error {
	if err := s.Err(); errors.Is(err, ErrServerLost) || errors.Is(err, ErrJobFailed) || errors.Is(err, errReplaced) {
		return nil // there is nobody to tell, or nobody who does not know
	}
	leave := &schema.Leave{Reason: schema.Clip(reason), HandOver: s.handsOver}
	if s.interrupted {
		leave.End = schema.EndStopped
	}
	frame, err := schema.EncodeControl(s.signHead(), schema.Control{Leave: leave})
	if err != nil {
		return fmt.Errorf("leave job %s: %w", s.job.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.LeaveWithin)
	defer cancel()
	subject := s.subject(fabric.KindCtl, schema.Coordinator).String()
	ask := func() error {
		if s.forgotten.Load() {
			return ErrServerLost
		}
		return s.control.Publish(subject, frame)
	}
	for answered := false; !answered; {
		c, err := fabric.Ask(ctx, s.config.RetryAfter, ask, s.controls)
		if errors.Is(err, ErrServerLost) {
			return nil // there is nobody to tell, either
		}
		if err != nil {
			return fmt.Errorf("leave job %s as %s: %w", s.job.Name, s.joined.Member, err)
		}
		answered = c.Left != nil || c.Failed != nil
	}
	return nil
}
