package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// Progress describes one completed batch, as this trainer sees it.
type Progress struct {
	Batch       schema.Batch   // completed batch
	Batches     uint64         // number of batches that this Run was asked for
	Done        uint64         // number of them that are complete
	Samples     int            // samples of this trainer's lanes in the batch
	SamplesAll  float64        // samples of all trainers in the batch; in grouped, of the trainers of its group
	Version     schema.Version // version of the parameters after the batch: Batch+1; in grouped, the number of updates
	Loss        float64        // mean over this trainer's samples of the batch; 0 without samples
	Began       time.Time      // time at which this trainer began the batch
	BatchTime   time.Duration  // time from Began until the batch was complete
	ElapsedTime time.Duration  // time since Run began

	// Buckets has the times of the batch's buckets, dense ones first, if Config.Timeline is set. It is valid until report
	// returns.
	Buckets []BucketTimes
}

// Run is Session.Run in this run of the job.
func (s *membership) Run(ctx context.Context, w Workload, batches uint64, report func(Progress)) error {
	if err := s.trainingErr(); err != nil {
		return err
	}
	if w == nil {
		return fmt.Errorf("%w: it is nil", ErrWorkload)
	}
	if s.run != nil {
		return fmt.Errorf("%w: Run follows Next: want Finish before it", ErrOrder)
	}
	longer, end := s.untilDurable(ctx)
	defer end()
	both, stop := s.running(longer)
	defer stop()
	r := s.begin(batches, report)
	err := s.train(both, w, r.committed+schema.Version(batches))
	if err == nil {
		err = s.Finish(longer)
	}
	if err != nil && ctx.Err() != nil && longer != ctx { // takes precedence over errors of the others
		return fmt.Errorf("batch %d: %w", s.Version(), context.Cause(ctx))
	}
	return err
}

// fill lets a workload compute the next batch. It waits for earlier batches until wait ends; if its cause is ErrAgain,
// the next call continues.
func (s *membership) fill(ctx, wait context.Context, w Workload) error {
	r := s.run
	b := r.now
	if b == nil || b.stage == committed {
		var err error
		if b, err = s.Next(); err != nil {
			return err
		}
		if err := b.collect(w); err != nil {
			return b.failed(ctx, err)
		}
	}
	if err := b.fetchWithin(ctx, wait); err != nil {
		return err
	}
	for i, n := range s.compute.samples {
		if n == 0 {
			continue
		}
		step, err := b.lane(i)
		if err != nil {
			return err
		}
		if err := step.end(w.Lane(step)); err != nil {
			return err
		}
	}
	return b.commit(ctx)
}

// begin starts a run of batches. batches is their number, 0 if unknown.
func (s *membership) begin(batches uint64, report func(Progress)) *run {
	s.run = &run{batches: batches, report: report, began: time.Now(), committed: s.newest(),
		waiting: make([]batchDone, s.job.Ahead+1), first: s.job.StartVersion()}
	s.training.Store(true)
	s.complete.Store(false)
	s.planned.Store(uint64(s.newest()) + batches)
	return s.run
}

// endRun ends a run of batches, successful or not.
func (s *membership) endRun() {
	s.planned.Store(0)
	s.training.Store(false)
	s.activity.begin(elsewhere)
	s.run = nil
}

// Finish is Session.Finish in this run.
func (s *membership) Finish(ctx context.Context) error {
	if err := s.trainingErr(); err != nil {
		return err
	}
	r := s.run
	if r == nil {
		return nil
	}
	if r.now != nil && r.now.stage != committed {
		return fmt.Errorf("%w: Finish: batch %d is under way: want its Commit before, or Abort", ErrOrder, r.now.Number())
	}
	ctx, stop := s.running(ctx)
	defer stop()
	if err := s.settle(ctx, r.committed); err != nil { // ahead of what is complete
		return s.interrupted(ctx, s.newest(), err)
	}
	if err := s.checkSamples(r); err != nil {
		return s.failed(ctx, s.newest()-schema.Version(r.done), err)
	}
	s.endRun()
	s.takeovers.finish()
	if err := s.sendComplete(s.newest()); err != nil {
		return err
	}
	s.complete.Store(true)
	return nil
}

// settled waits until all committed batches are complete, so that reads see one version. If the session can train no
// more, no further batch completes, and settled does not wait.
func (s *membership) settled(ctx context.Context) error {
	if err := s.Err(); err != nil || s.run == nil {
		return err
	}
	if s.trainingErr() != nil {
		err := s.settle(ctx, 0)
		s.endRun()
		return err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	if err := s.settle(ctx, s.run.committed); err != nil {
		return s.interrupted(ctx, s.newest(), err)
	}
	return nil
}

// checkSamples returns an error if no lane of any batch had a sample, since a loss of 0 and unchanged weights would
// look like training. If batches are not common to all trainers, only a trainer that is alone can check this. A trainer
// that joined later does not know the earlier batches. A program that looks up rows itself may skip batches, for
// example when gradients overflow.
func (s *membership) checkSamples(r *run) error {
	all := s.job.Trainers == 1 || s.place.Plan.Clock.Common() && !s.place.Plan.SkipNonfinite
	later := s.joined.Version > r.first // earlier batches had samples
	if !all || later || r.done == 0 || r.samplesAll > 0 || r.skipped > 0 || r.rowless {
		return nil
	}
	return fmt.Errorf("%w: no lane of any trainer had a sample, neither here nor in any batch of this Run (%d): "+
		"want Keys to return how many samples a lane has", ErrWorkload, r.done)
}

// interrupted is failed, except that ErrAgain does not end the session.
func (s *membership) interrupted(ctx context.Context, b schema.Batch, err error) error {
	if errors.Is(err, ErrAgain) {
		return err
	}
	return s.failed(ctx, b, err)
}

// failed ends the session with an error of batch b. If the session ended first, ctx follows soon, but not at once.
func (s *membership) failed(ctx context.Context, b schema.Batch, err error) error {
	err = fmt.Errorf("batch %d: %w", s.job.Counted(b), err)
	if errors.Is(err, ErrServerLost) || errors.Is(err, ErrJobFailed) {
		err = cmp.Or(context.Cause(ctx), s.trainingErr(), err) // the cause names the batch, or that of another trainer
	}
	s.fail(err)
	s.endRun()
	return err
}

// run is a series of batches, from the first Next to Finish.
type run struct {
	batches uint64 // number of planned batches; 0 if unknown
	report  func(Progress)
	first   schema.Batch // batch that the program knows as 0
	began   time.Time
	now     *Batch // batch that Next returned last

	committed  schema.Version // number of committed batches
	done       uint64
	skipped    uint64        // skipped lanes
	samplesAll float64       // samples of all trainers, if a batch has one weight
	rowless    bool          // a batch used rows that the program looked up itself (SkipFetch)
	waiting    []batchDone   // committed batches that wait for results: batch b at b % len
	waited     time.Duration // time spent waiting for results since the last complete batch
}

// batchDone is this trainer's part of a batch that is not complete yet.
type batchDone struct {
	samples int
	skipped int
	lossSum float64
	times   *batchTimes
}

// measured records the gradient norm of a batch that was sent, if it was measured.
func (s *membership) measured(b schema.Batch) {
	if !s.sender.norm.on {
		return
	}
	samples := 0
	for _, n := range s.compute.plan.weights {
		samples += n
	}
	if norm := s.sender.norm.end(time.Now(), samples); norm != nil {
		s.stats.mu.Lock()
		defer s.stats.mu.Unlock()
		s.stats.norm, s.stats.normOf = norm, b
	}
}

// settle waits until the version atLeast is complete, and makes the newest complete version the current one. A batch
// whose lanes have sent everything may be complete before its Commit; until Commit it keeps the version that it is
// computed on.
func (s *membership) settle(ctx context.Context, atLeast schema.Version) error {
	r := s.run
	for {
		for v := min(get(s.exchange, (*exchange.Exchange).Completed), r.committed); s.newest() < v; {
			if err := s.sender.awaitSent(ctx, s.newest()); err != nil {
				return err
			}
			s.completeBatch(r, s.newest())
		}
		if s.newest() >= atLeast {
			return nil
		}
		began := time.Now()
		s.activity.beginAt(awaitingResults, began)
		if err := s.exchange.awaitResults(ctx, s.newest()); err != nil {
			return fmt.Errorf("wait for results: %w", err)
		}
		r.waited += time.Since(began)
	}
}

// completeBatch makes version b+1 the current one.
func (s *membership) completeBatch(r *run, b schema.Batch) {
	w := &r.waiting[int(b)%len(r.waiting)]
	var weight float64
	var version schema.Version
	s.exchange.do(func(x *exchange.Exchange) { weight, version = x.Outcome(b) })
	s.compute.params.commit(b + 1)
	s.replicas.commit(weight)
	s.share.limit()
	s.share.copyAt(b + 1)
	s.batch.Store(uint64(b) + 1) // what was to be copied is
	if b < s.job.StartVersion() {
		return
	}
	s.fingerprint(b + 1)
	r.done++
	r.skipped += uint64(w.skipped)
	r.samplesAll += weight
	w.times.result, r.waited = r.waited, 0
	p := Progress{Batch: b - r.first, Batches: r.batches, Done: r.done, Samples: w.samples,
		SamplesAll: weight, Version: version - r.first, Began: w.times.begin,
		BatchTime: time.Since(w.times.begin), ElapsedTime: time.Since(r.began)}
	p.Buckets = s.results.timesOf(b).report()
	if w.samples > 0 {
		p.Loss = w.lossSum / float64(w.samples)
	}
	s.stats.count(func(t *counters) {
		t.add(w.samples, w.times)
		if w.skipped > 0 && t.lanesSkipped == 0 {
			s.config.Log.Warn("lane with non-finite gradient skipped",
				"batch", uint64(b))
		}
		t.lanesSkipped += uint64(w.skipped)
		addLoss(&s.stats.loss, w.lossSum, w.samples)
	})
	if r.report != nil {
		s.activity.begin(elsewhere)
		r.report(p)
	}
}

// Next is Session.Next in this run.
func (s *membership) Next() (*Batch, error) {
	if err := s.trainingErr(); err != nil {
		return nil, err
	}
	r := s.run
	if r == nil {
		r = s.begin(0, nil)
	}
	if r.now != nil && r.now.stage != committed {
		return nil, fmt.Errorf("%w: Next: batch %d is under way, %s: want its Commit before, or Abort", ErrOrder,
			r.now.Number(), r.now.stage)
	}
	if r.batches == 0 {
		s.planned.Store(uint64(r.committed) + 1)
	}
	s.compute.tables.reset()
	clear(s.compute.samples)
	r.now = &Batch{of: s, run: r, number: r.committed, times: startTimes(), open: -1, named: make([]int, len(s.job.Tables)),
		steps: make([]LaneStep, len(s.compute.samples))}
	s.activity.beginAt(seekingKeys, r.now.times.begin)
	return r.now, nil
}

// LookupInto is Session.LookupInto in this run.
func (s *membership) LookupInto(ctx context.Context, queries []Query) (err error) {
	for i := range queries {
		if err := s.reader.checkInto(&queries[i]); err != nil {
			return fmt.Errorf("lookup: ask %d: %w", i, err)
		}
	}
	e := s.reader.evaluating()
	defer func() { // also after a panic
		if !errors.Is(err, ErrAgain) {
			e.release()
		}
	}()
	both, stop := s.readable(ctx)
	defer stop()
	if s.trainingErr() != nil { // the batch whose keys are being named will never be computed
		err = s.settled(both)
	}
	if err := cmp.Or(err, s.Err()); err != nil {
		return err
	}
	if err := s.lookAhead(e, queries); err != nil {
		return err
	}
	b, err := s.awaitRows(both)
	if err != nil {
		return err
	}
	return s.reader.lookupInto(both, b, queries)
}

// lookAhead requests rows of the version that the committed batches produce.
func (s *membership) lookAhead(e *evaluation, queries []Query) error {
	r := s.run // a report may look up rows itself
	if e.asked || r == nil || r.report != nil || r.committed == s.newest() || s.job.Ahead > 0 && !r.naming() {
		return nil
	}
	if e.forget(); e.add(queries, &e.at) > 0 {
		b := r.committed
		if err := e.lookups.build(s.head(b)); err != nil {
			return err
		}
		if err := e.lookups.askAhead(); err != nil {
			return err
		}
		e.asked = e.lookups.sent
	}
	if !e.asked {
		e.at = place{}
	}
	return nil
}

// naming reports whether the program holds a batch that was not fetched yet.
func (r *run) naming() bool { return r.report == nil && r.now != nil && r.now.stage < fetched }

// awaitRows waits until rows can be answered, and returns the batch that they are for: the one whose keys are being
// named, or else the one after all committed batches.
func (s *membership) awaitRows(ctx context.Context) (schema.Batch, error) {
	if r := s.run; r != nil && r.naming() {
		return r.now.number, r.now.Wait(ctx)
	}
	err := s.settled(ctx)
	return s.newest(), err
}

// fingerprint computes the digest of version v, which has just become current, if one is due.
func (s *membership) fingerprint(v schema.Version) {
	f := s.fingerprints
	if s.heartbeats.reports == nil || s.place.Plan.Owner != schema.ByTrainers || len(s.job.Parameters) == 0 || !f.due(v) {
		return
	}
	began := time.Now()
	sum := uint32(0)
	for _, p := range s.job.Parameters {
		sum = schema.AddReplica(sum, s.compute.params.value(s.compute.params.index[p.Name]))
	}
	f.took(began, time.Since(began))
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	f.keep(schema.ReplicaDigest{Version: v, Digest: sum})
}
