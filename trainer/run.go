package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/schema"
)

// Progress is one completed batch, as this trainer sees it.
type Progress struct {
	Batch       schema.Batch   // that was completed
	Batches     uint64         // that this Run is asked for
	Done        uint64         // of these
	Samples     int            // of this trainer's lanes in the batch
	SamplesRun  uint64         // of this trainer's lanes in this Run so far
	SamplesAll  float64        // of all trainers in the batch; in grouped, of those in its group
	Version     schema.Version // of the parameters that the batch made: Batch+1, and in grouped the number of updates by then
	Loss        float64        // mean over this trainer's samples of the batch; 0 where it had none
	Began       time.Time      // when this trainer began with the batch
	BatchTime   time.Duration  // from then until the batch was complete
	ElapsedTime time.Duration  // since Run began

	// Buckets are the times of the batch's buckets, dense ones first, where Config.Timeline asks for them. Valid until report
	// returns.
	Buckets []BucketTimes
}

// Run trains for a number of batches, from the current version on. report is called after each completed batch, from
// the goroutine that calls Run; nil for nothing. All trainers of a job must run the same number of batches. A batch may be
// without samples, all batches of a Run may not (ErrWorkload).
//
// Where an error ends a trainer after its last Run, the others go on: see Leave.
//
// Time spent in report, or between two calls of Run, is time that the others wait: beyond the server's deadline the job
// ends as it does for any slow trainer.
//
// After an error the session has failed, and Leave should be called with the error's text as reason. Errors: ErrWorkload,
// ErrFrameRefused, ErrServerLost, ErrJobFailed, ErrLeft, and the cause of ctx. In sync the weights that shards hold are
// those of a whole number of batches in any case.
//
// In bounded a batch is computed on a version up to ahead batches older, and report follows as batches are complete; Run
// returns when all are. In async the trainers of a job need not run the same number of batches, report tells of this
// trainer's alone, and afterwards Param and Digest give the dense parameters as this trainer saw them last.
func (s *Session) Run(ctx context.Context, w Workload, batches uint64, report func(Progress)) error {
	if err := s.Err(); err != nil {
		return err
	}
	if w == nil {
		return fmt.Errorf("%w: it is nil", ErrWorkload)
	}
	ctx, stop := s.running(ctx)
	defer stop()
	s.training.Store(true)
	s.complete.Store(false)
	defer s.training.Store(false)
	s.planned.Store(uint64(s.Version()) + batches)
	defer s.planned.Store(0)
	defer s.activity.begin(elsewhere)
	r := &run{Session: s, workload: w, batches: batches, report: report, began: time.Now()}
	r.waiting = make([]batchDone, s.job.Ahead+1)
	first := s.Version()
	for b := first; b < first+schema.Batch(batches); b++ {
		r.prepareNext = b+1 < first+schema.Batch(batches)
		if err := r.step(ctx, b); err != nil {
			return r.failed(ctx, b, err)
		}
	}
	if err := r.settle(ctx, first+schema.Batch(batches)); err != nil { // ahead of what is complete
		return r.failed(ctx, s.Version(), err)
	}
	if err := s.settleRows(ctx); err != nil {
		return r.failed(ctx, s.Version(), err)
	}
	if err := r.checkSamples(); err != nil {
		return r.failed(ctx, first, err)
	}
	if err := s.sayComplete(s.Version()); err != nil {
		return err
	}
	s.complete.Store(true)
	return nil
}

// checkSamples refuses batches of which none had a sample in any lane: a loss of 0 and weights that stay as they are would look like
// training. Where batches are not those of all trainers, only a trainer that is alone knows.
func (r *run) checkSamples() error {
	all := r.job.Trainers == 1 || r.job.Consistency == schema.ConsistencySync || r.job.Consistency == schema.ConsistencyBounded
	if !all || r.batches == 0 || r.samplesAll > 0 {
		return nil
	}
	return fmt.Errorf("%w: no lane of any trainer had a sample, neither here nor in any batch of this Run (%d): want Keys to return how many samples a lane has",
		ErrWorkload, r.batches)
}

// failed ends the session with an error of batch b.
func (r *run) failed(ctx context.Context, b schema.Batch, err error) error {
	err = fmt.Errorf("batch %d: %w", b, err)
	if errors.Is(err, ErrServerLost) || errors.Is(err, ErrJobFailed) {
		err = context.Cause(ctx) // says the batch itself, or that of another trainer
	}
	r.fail(err)
	return err
}

// run is one call of Run.
type run struct {
	*Session
	workload Workload
	batches  uint64
	report   func(Progress)
	began    time.Time

	done        uint64
	samples     uint64
	samplesAll  float64       // of all trainers, where a batch has one weight
	prepareNext bool          // another batch follows the one under way
	prepared    bool          // keys and lookups of the next batch are there
	asked       bool          // these have been sent
	waiting     []batchDone   // for results: batch b at b % len
	waited      time.Duration // for results, since a batch was complete
}

// batchDone is what this trainer has done of a batch that is to be completed.
type batchDone struct {
	samples int
	lossSum float64
	times   *batchTimes
}

// step is this trainer's part of batch b, computed on the newest version that is complete when it begins: in sync that is
// b, else at most ahead batches behind. It returns when batch b+1 may begin.
func (r *run) step(ctx context.Context, b schema.Batch) error {
	times := startTimes()
	r.activity.beginAt(seekingKeys, times.begin)
	if !r.prepared {
		if err := r.prepare(b); err != nil {
			return err
		}
	}
	r.compute.begin()
	r.results.begin(b)
	if err := r.sender.begin(ctx, r.head(b)); err != nil {
		return err
	}
	times.keys = times.lap()
	r.activity.beginAt(lookingUp, times.last)
	if err := r.fetchNext(ctx, b); err != nil {
		return fmt.Errorf("wait for rows: %w", err)
	}
	times.lookup = times.lap()
	if r.pulses != nil {
		r.sender.norm.begin(times.last)
	}
	r.activity.beginAt(computing, times.last)
	lossSum, samples, err := r.lanes(ctx, b)
	if err != nil {
		return err
	}
	r.hold()
	err = r.sendAndPrepare(b, times)
	if e := r.letGo(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	times.keys += times.lap()
	r.waiting[int(b)%len(r.waiting)] = batchDone{samples, lossSum, times}
	if ahead := schema.Batch(r.job.Ahead); b+1 > ahead {
		return r.settle(ctx, b+1-ahead)
	}
	return r.settle(ctx, 0)
}

// sendAndPrepare sends the rows of a batch, whose lanes are computed, and prepares the next.
func (r *run) sendAndPrepare(b schema.Batch, times *batchTimes) error {
	if err := r.sender.sendRows(); err != nil {
		return err
	}
	r.measured(b)
	r.sender.end(b)
	times.send = r.sender.sendTime
	times.compute = times.lap() - times.send
	r.activity.beginAt(seekingKeys, times.last)
	r.count(func(t *Stats) { t.Behind += uint64(b) - uint64(r.Version()) })
	if r.prepared = r.prepareNext; !r.prepared {
		return nil
	}
	return r.prepareNextBatch(b + 1)
}

// measured notes the norm of the gradient of a batch that was sent, where it was measured.
func (r *run) measured(b schema.Batch) {
	if !r.sender.norm.on {
		return
	}
	samples := 0
	for _, n := range r.compute.plan.weights {
		samples += n
	}
	if norm := r.sender.norm.end(time.Now(), samples); norm != nil {
		r.statsMu.Lock()
		defer r.statsMu.Unlock()
		r.norm.value, r.norm.batch = norm, b
	}
}

// settle waits until the batches before a version are complete, and makes the newest complete version the current one.
func (r *run) settle(ctx context.Context, atLeast schema.Version) error {
	for {
		for v := r.results.completed(); r.Version() < v; {
			r.complete(r.Version())
		}
		if r.Version() >= atLeast {
			return nil
		}
		began := time.Now()
		r.activity.beginAt(awaitingResults, began)
		if err := r.wait(ctx, r.results.ready, r.probeTime(), r.pullLate); err != nil {
			return fmt.Errorf("wait for results: %w", err)
		}
		r.waited += time.Since(began)
	}
}

// prepare finds the keys of a batch and builds the lookups for their rows. It looks at no parameter, so that it can be
// done while the results of the batch before are under way.
func (r *run) prepare(b schema.Batch) error {
	if err := r.compute.collect(r.workload, b); err != nil {
		return err
	}
	return r.lookups.build(r.head(b))
}

// fetch sends lookups, all to all shards at once, and waits until every answer is in place.
func (s *Session) fetch(ctx context.Context, l *lookups, b schema.Batch) error {
	if err := s.askFor(l, b); err != nil {
		return err
	}
	return s.answered(ctx, l, b)
}

// askFor sends lookups. From here on until the last answer nothing else may use the rows.
func (s *Session) askFor(l *lookups, b schema.Batch) error {
	var taker rowsTaker = l
	s.rowsFor.Store(&taker)
	l.begin()
	if err := s.replicas.fill(l.tables); err != nil {
		return err
	}
	l.asked = time.Now()
	return l.unanswered(s.sendLookup(b))
}

func (s *Session) sendLookup(b schema.Batch) func(shard int, sealed []byte, kind string) error {
	return func(shard int, sealed []byte, kind string) error {
		l := s.links[shard]
		return l.publish(s.subject(kind, l.member).WithBatch(uint64(b)), sealed)
	}
}

// answered waits for the answers to lookups that were sent.
func (s *Session) answered(ctx context.Context, l *lookups, b schema.Batch) error {
	var taker rowsTaker = l
	s.rowsFor.Store(&taker) // an evaluation may have come between
	return s.answer(ctx, l.ready, &s.answers, s.answerTime(), l.asked, func() error {
		s.count(func(t *Stats) { t.LookupsRepeated++ })
		return l.unanswered(s.sendLookup(b))
	})
}

// lanes computes the lanes that have samples, one after the other; gradients leave meanwhile.
func (r *run) lanes(ctx context.Context, b schema.Batch) (lossSum float64, samples int, err error) {
	c := r.compute
	for i, n := range c.samples {
		if n == 0 {
			continue
		}
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		loss, err := c.lane(r.workload, b, i)
		if err != nil {
			return 0, 0, err
		}
		lossSum, samples = lossSum+loss, samples+n
	}
	if c.plan.last < 0 {
		err = r.sender.sendAbsent()
	}
	return lossSum, samples, err
}

// complete makes version b+1 the current one.
func (r *run) complete(b schema.Batch) {
	w := &r.waiting[int(b)%len(r.waiting)]
	weight, version := r.results.outcomeOf(b)
	r.compute.params.commit(b + 1)
	r.replicas.commit()
	r.batch.Store(uint64(b) + 1)
	r.fingerprint(b + 1)
	r.done++
	r.samples += uint64(w.samples)
	r.samplesAll += weight
	w.times.result, r.waited = r.waited, 0
	p := Progress{Batch: b, Batches: r.batches, Done: r.done, Samples: w.samples, SamplesRun: r.samples, SamplesAll: weight, Version: version,
		Began: w.times.begin, BatchTime: time.Since(w.times.begin), ElapsedTime: time.Since(r.began)}
	p.Buckets = r.results.of(b).times.report()
	if w.samples > 0 {
		p.Loss = w.lossSum / float64(w.samples)
	}
	r.count(func(t *Stats) {
		t.add(w.samples, w.times)
		addLoss(&r.loss, w.lossSum, w.samples)
	})
	if r.report != nil {
		r.activity.begin(elsewhere)
		r.report(p)
	}
}
