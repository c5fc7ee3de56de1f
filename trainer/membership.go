package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/trainer/internal/exchange"
)

// membership is a trainer's slot in one run of a job. Its methods must be called from one goroutine at a time. After it
// has ended, every call returns the first error.
type membership struct {
	*connection
	left bool

	compute  *compute
	flat     *flatSpace
	sender   *sender
	exchange *exchanging
	lookups  *lookups
	results  *results
	replicas *replicas
	reducer  *reducer // shard of this trainer's reduce range, in a job that reduces between trainers; else nil
	share    *share
	modules  *modules
	reader   *reader
	lr       *learningRates

	checkpoints *checkpoints

	run       *run // run of batches under way; nil if there is none
	takeovers takeovers

	receiver     *receiver
	heartbeats   *heartbeats
	stats        *statistics
	activity     *activity
	fingerprints *fingerprints
}

// newMembership builds the membership of a trainer that was admitted. It sends and subscribes to nothing.
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
	if joined.LaneCount < 1 || int(joined.FirstLane)+joined.LaneCount > job.Lanes {
		return nil, fmt.Errorf("coordinator gives lanes [%d,%d) of %d", joined.FirstLane,
			int(joined.FirstLane)+joined.LaneCount, job.Lanes)
	}
	conn, err := newConnection(c, job, joined)
	if err != nil {
		return nil, err
	}
	s := &membership{connection: conn, lr: newLearningRates(conn, joined.LR), checkpoints: newCheckpoints(conn),
		stats: &statistics{}, activity: &activity{epoch: conn.epoch}, fingerprints: &fingerprints{}}
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

// build makes the parts that one batch needs.
func (s *membership) build(params *parameters) (err error) {
	job, lanes := s.job, s.joined.LaneCount
	plan := newLanePlan(s.joined.FirstLane, lanes, job.Lanes)
	t := newTables(job.Tables, lanes)
	if s.replicas, err = newReplicas(s.ctx, job, s.config.Backend, &s.lr.applied, s.joined.Version > 0); err != nil {
		params.state.Close() // close would find it by compute, which is not set
		return err
	}
	owners := s.newRouting(t.dims(), s.replicas.replicated())
	s.compute = &compute{plan: plan, tables: t, params: params, samples: make([]int, lanes),
		dense: newDenseSums(s.config.Backend, job.Lanes, plan.slots(), s.flat.params, s.flat.chunks),
		rows: newRowSums(s.config.Backend, job.Lanes, newBagGrads(s.place.Plan.DType, plan, owners, t.specs),
			t.sumDims())}
	s.compute.rows.count = func(table int) int { return len(t.keys[table]) }
	s.compute.dense.afterLane = s.place.Plan.SkipNonfinite
	if slices.ContainsFunc(t.specs, func(spec schema.TableSpec) bool { return spec.PerRow }) {
		s.compute.rows.perRow = &rowCounts{tables: t}
	}
	if s.place.Plan.ErrorFeedback {
		s.compute.dense.keepResiduals(len(plan.nodes))
	}
	sparse := rowOwners(s.place)
	s.results = newResults(s.flat, params, job, sparse, s.config.RetryAfter)
	s.exchange = s.results.exchanging
	s.exchange.conn, s.exchange.stats = s.connection, s.stats
	s.lookups = newLookups(owners, t, s.place, s.exchange, rowsOfBatch)
	s.lookups.over, s.lookups.replicas = s.results.roundOver, s.replicas
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
		if s.reducer, err = newReducer(s.connection, s.results); err != nil {
			return err
		}
	}
	if s.sender, err = newSender(job, s.joined.Member, s.links, s.flat, s.compute, sparse, owners); err != nil {
		return err
	}
	s.sender.reducer, s.sender.results, s.sender.activity = s.reducer, s.results, s.activity
	return s.buildAround(params)
}

// buildAround makes the parts that a membership needs besides.
func (s *membership) buildAround(params *parameters) (err error) {
	if s.modules, err = newModules(s.connection, s.exchange, s.stats, s.activity); err != nil {
		return err
	}
	s.share = &share{connection: s.connection, exchange: s.exchange, results: s.results, flat: s.flat, params: params,
		replicas: s.replicas, pieces: shard.NewPieces(s.job)}
	s.reader = &reader{connection: s.connection, exchange: s.exchange, results: s.results, params: params,
		replicas: s.replicas, modules: s.modules}
	s.receiver = &receiver{connection: s.connection, exchange: s.exchange, results: s.results, share: s.share, lr: s.lr,
		modules: s.modules, takeovers: &s.takeovers, checkpoints: s.checkpoints}
	s.heartbeats = &heartbeats{connection: s.connection, exchange: s.exchange, stats: s.stats, activity: s.activity,
		modules: s.modules, reducer: s.reducer, fingerprints: s.fingerprints}
	if s.config.TelemetryEvery > 0 {
		s.heartbeats.reports = newReports(s.epoch, s.config.Backend)
	}
	return nil
}

// Param is Session.Param in this run.
func (s *membership) Param(name string) []float32 { return s.compute.params.named(name) }

// Close is Session.Close in this run.
func (s *membership) Close() error {
	if s.left {
		return nil
	}
	if s.trainingErr() == nil {
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
	s.stopped = isInterrupt(err)
	s.handsOver = s.stopped
	return s.leave(err.Error())
}

// abortTraining is Abort, but ends the job for the others even if all committed batches are complete.
func (s *membership) abortTraining(err error) error {
	if err != nil && !s.left {
		s.complete.Store(false)
	}
	return s.Abort(err)
}

// leave ends the membership. Without a reason, this trainer is done, or its own error is the reason.
func (s *membership) leave(reason string) error {
	if s.left {
		return nil
	}
	s.left = true
	ctx := context.Background()
	if err := s.trainingErr(); err != nil && reason == "" {
		reason = err.Error()
	}
	s.takeovers.leaveAll(reason, s.handsOver || errors.Is(s.Err(), errReplaced) || errors.Is(s.Err(), ErrServerLost))
	if reason == "" || s.complete.Load() {
		if err := s.awaitOthers(ctx, reason != ""); err != nil && reason == "" {
			reason = err.Error()
		}
	}
	s.heartbeats.sendLastReport()
	err := s.sendLeave(ctx, reason)
	s.close()
	return err
}

func (s *membership) close() {
	s.ending.Lock()
	s.fail(ErrLeft)
	s.ending.Unlock()
	for _, d := range s.servers { // first, since a frame may be on its way to a server that does not read
		if d.conn != nil {
			d.conn.Close()
		}
	}
	s.clock.Wait()
	if s.heartbeats != nil && s.heartbeats.reports != nil {
		s.heartbeats.reports.meter.Close()
	}
	if s.control != nil {
		s.control.Close()
	}
	s.peer.close()
	s.reducer.close()
	if s.replicas != nil {
		s.replicas.close() // no message arrives any more
	}
	if s.compute != nil {
		s.compute.params.state.Close()
	}
}

// drainEvery is the interval at which a leaving trainer repeats that it has all results, which is not acknowledged.
const drainEvery = 100 * time.Millisecond

// sendComplete tells the other trainers, in a job that reduces between trainers, that this one has all results of the
// batches before b, so that they may leave. The message is a pull of batch b, which no trainer has begun and none
// answers.
func (s *membership) sendComplete(b schema.Batch) error {
	for owner, l := range s.links {
		if !l.reduce || l.outbox == nil || len(s.results.rounds[owner]) == 0 {
			continue // this trainer itself, or one without rounds
		}
		if err := s.sendPull(exchange.Pull{Owner: owner, Batch: b, Round: s.results.rounds[owner][0]}); err != nil {
			return err
		}
	}
	return nil
}

// awaitOthers waits until all other trainers have confirmed that they need no further results of this one, whose data
// server stops with the session. It does not wait for trainers whose connection is gone, and at most for the job's
// deadline, or with hurry for LeaveWithin.
func (s *membership) awaitOthers(ctx context.Context, hurry bool) error {
	if s.reducer == nil || s.Err() != nil {
		return nil
	}
	within := time.Duration(s.joined.DeadlineMS) * time.Millisecond
	if hurry {
		within = min(within, s.config.LeaveWithin)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	again := time.NewTicker(drainEvery)
	defer again.Stop()
	for !s.reducer.done(s.newest(), s.gone()) {
		if err := s.sendComplete(s.newest()); err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil // the coordinator reports the missing trainers
		case <-s.ctx.Done():
			return nil
		}
	}
	return nil
}

// connect dials under the member's name, subscribes, and starts heartbeats.
func (s *membership) connect(ctx context.Context, peer *peerServer) error {
	s.noteHeard(string(schema.Coordinator))
	s.reconnected = func() { s.exchange.do((*exchange.Exchange).Back) }
	var err error
	if s.control, err = fabric.DialControl(ctx, s.dialConfig(s.controlChanged)); err != nil {
		return err
	}
	for _, to := range []schema.Member{s.joined.Member, schema.All} {
		pattern := fabric.Pattern(string(s.job.Name), string(schema.Coordinator), fabric.Any, string(to), false)
		if err := s.control.Subscribe(pattern, s.receiver.receiveControl); err != nil {
			return err
		}
	}
	if peer != nil {
		if err := s.listenPeers(peer); err != nil {
			return err
		}
	}
	for _, d := range s.servers {
		if d.peer != "" {
			continue // connectPeers
		}
		if err := s.connectServer(ctx, d); err != nil {
			return err
		}
	}
	s.clock.Go(s.keepTime)
	if r := s.heartbeats.reports; r != nil {
		r.disks = process.WatchDisks(s.config.Writes)
		s.clock.Go(s.heartbeats.keepReports)
	}
	return nil
}

// listenPeers takes the contributions of other trainers to this one's reduce range.
func (s *membership) listenPeers(peer *peerServer) error {
	s.peer, peer.fail, s.reducer.peer = peer, s.fail, peer
	peer.opens(s.reducer.receive)
	if s.config.Bus != nil {
		return peer.listen(string(s.job.Name), string(s.joined.Member))
	}
	return nil
}

// connectPeers dials the data servers of all other trainers and subscribes there.
func (s *membership) connectPeers(ctx context.Context) error {
	at := map[schema.Member]string{}
	for i, url := range s.joined.Peers {
		at[schema.TrainerMember(i)] = url
	}
	for _, d := range s.servers {
		if d.peer == "" {
			continue
		}
		if d.url = at[d.peer]; d.url == "" {
			return fmt.Errorf("the coordinator does not say where trainer %s of job %s is", d.peer, s.job.Name)
		}
		if err := s.connectServer(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// connectServer dials a server of shards or of another trainer. The time that it took to answer is the first estimate
// of its round trip, unless the server only forwards to shards.
func (s *membership) connectServer(ctx context.Context, d *dataServer) error {
	trip, err := s.connectData(ctx, d, s.receiver.receive)
	if err != nil || s.config.Route == schema.DataCluster {
		return err
	}
	for _, l := range s.links {
		if l.server == d {
			l.outbox.Expect(trip)
		}
	}
	if d.peer == "" {
		s.exchange.do(func(x *exchange.Exchange) { x.Expect(trip) })
	}
	return nil
}

// tickEvery is the interval at which windows check for missing acks: often enough for their shortest timeout, 50 ms.
const tickEvery = 10 * time.Millisecond

// keepTime is a goroutine of the session, besides keepReports. It drives the windows, sends heartbeats, and ends the
// session when the server or the coordinator has been silent for too long.
func (s *membership) keepTime() {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var sent time.Time // time of the last heartbeat
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			now := time.Now() // the tick may be old, if this process was not scheduled
			s.excusePause(now)
			err := s.checkSilence(now)
			if err == nil {
				err = s.heartbeats.tickHeartbeat(now, &sent)
			}
			if s.reducer != nil {
				s.reducer.tick()
			}
			for _, l := range s.links {
				if err == nil && l.outbox != nil {
					err = l.outbox.Tick(now)
				}
			}
			if err != nil {
				s.fail(err)
			}
		}
	}
}

// enter begins at the version of the coordinator's answer.
func (s *membership) enter(ctx context.Context) error {
	if s.joined.Version > 0 {
		return s.resume(ctx)
	}
	return s.assign(ctx)
}

// resume gets the parameters of the version with which the trainer begins, in a resumed job, or in the slot of a lost
// trainer. Rows come with the first lookup.
func (s *membership) resume(ctx context.Context) (err error) {
	ctx, stop := s.running(ctx)
	defer stop()
	v := s.joined.Version
	if s.place.Plan.Owner == schema.ByTrainers {
		err = s.share.receiveVersion(ctx, v)
	} else {
		err = s.resumeResults(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("resume at version %d: %w", v, err)
	}
	s.compute.params.commit(v)
	s.batch.Store(uint64(v))
	return nil
}

// resumeResults gets the parameters as the results of the previous batch, which all shards store. It requests them like
// lost results.
func (s *membership) resumeResults(ctx context.Context, v schema.Version) error {
	last := schema.Batch(v) - 1
	s.compute.params.state.Begin(schema.Version(last))
	s.results.begin(last)
	for _, r := range s.results.sparse {
		if v != s.joined.Resumed {
			break // shards have the results of the batch before
		}
		if err := s.results.over(r.owner, last, round.ResumedWeight); err != nil {
			return err
		}
	}
	s.exchange.do((*exchange.Exchange).Back) // shards send them only on request
	return s.exchange.awaitResults(ctx, schema.Version(last))
}

// assign runs the batches that store the values of a model, if the job begins with one. All trainers take part; the one
// with lane 0 sends the values.
func (s *membership) assign(ctx context.Context) error {
	start := s.job.StartVersion()
	if start == 0 {
		return nil
	}
	if s.joined.FirstLane == 0 && s.config.From == nil {
		return fmt.Errorf("%w: job %s begins with the model whose digest is %s, and %s has lane 0: want it as Config.From",
			ErrConfig, s.job.Name, s.job.Start.Digest, s.Member())
	}
	ctx, stop := s.running(ctx)
	defer stop()
	r := s.begin(uint64(start), nil)
	r.first = 0
	w := &assigning{model: s.config.From, job: s.job}
	s.config.From = nil // it may be as large as all tables
	for range start {
		if err := s.fill(ctx, ctx, w); err != nil {
			return fmt.Errorf("begin with the values of a model: %w", err)
		}
	}
	if err := s.settle(ctx, r.committed); err != nil {
		return s.failed(ctx, s.newest(), fmt.Errorf("begin with the values of a model: %w", err))
	}
	s.endRun()
	s.heartbeatDue.Store(true) // the coordinator may replace trainers from now on
	return nil
}
