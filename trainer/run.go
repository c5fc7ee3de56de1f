package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// Progress is one completed batch, as this trainer sees it.
type Progress struct {
	Batch       schema.Batch // that was completed
	Batches     uint64       // that this Run is asked for
	Done        uint64       // of these
	Samples     int          // of this trainer's lanes in the batch
	SamplesRun  uint64       // of this trainer's lanes in this Run so far
	SamplesAll  float64      // of all trainers in the batch
	Loss        float64      // mean over this trainer's samples of the batch; 0 where it had none
	BatchTime   time.Duration
	ElapsedTime time.Duration // since Run began
}

// Run trains for a number of batches, from the current version on. report is called after each completed batch, from
// the goroutine that calls Run; nil for nothing. All trainers of a job must run the same number of batches.
//
// Time spent in report, or between two calls of Run, is time that the others wait: beyond the server's deadline the job
// ends as it does for any slow trainer.
//
// After an error the session has failed, and Leave should be called with the error's text as reason. Errors: ErrWorkload,
// ErrFrameRefused, ErrServerLost, ErrJobFailed, ErrLeft, and the cause of ctx. The weights that shards hold are those of
// a whole number of batches in any case.
func (s *Session) Run(ctx context.Context, w Workload, batches uint64, report func(Progress)) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, stop := s.running(ctx)
	defer stop()
	s.training.Store(true)
	defer s.training.Store(false)
	r := &run{Session: s, workload: w, batches: batches, report: report, began: time.Now()}
	for r.done < batches {
		b := s.Version()
		if err := r.step(ctx, b); err != nil {
			err = fmt.Errorf("batch %d: %w", b, err)
			if errors.Is(err, ErrServerLost) || errors.Is(err, ErrJobFailed) {
				err = context.Cause(ctx) // says the batch itself, or that of another trainer
			}
			s.fail(err)
			return err
		}
	}
	return nil
}

// run is one call of Run.
type run struct {
	*Session
	workload Workload
	batches  uint64
	report   func(Progress)
	began    time.Time

	done     uint64
	samples  uint64
	prepared bool // keys and lookups of the next batch are there
}

// step is one batch.
func (r *run) step(ctx context.Context, b schema.Batch) error {
	times := startTimes()
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
	if err := r.fetch(ctx, r.lookups, b); err != nil {
		return fmt.Errorf("wait for rows: %w", err)
	}
	times.lookup = times.lap()
	lossSum, samples, err := r.lanes(ctx, b)
	if err != nil {
		return err
	}
	if err := r.sender.sendRows(); err != nil {
		return err
	}
	times.send = r.sender.sendTime
	times.compute = times.lap() - times.send
	if r.prepared = r.done+1 < r.batches; r.prepared {
		if err := r.prepare(b + 1); err != nil {
			return err
		}
	}
	times.keys += times.lap()
	if err := r.wait(ctx, r.results.ready, probeAfter, func(lost bool) (bool, error) { return r.pullLate(b, lost) }); err != nil {
		return fmt.Errorf("wait for results: %w", err)
	}
	times.result = times.lap()
	r.complete(b, samples, lossSum, times)
	return nil
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
	var taker rowsTaker = l
	s.rowsFor.Store(&taker)
	l.begin()
	send := func(shard int, sealed []byte) error {
		l := s.links[shard]
		return l.publish(s.subject(fabric.KindLookup, l.member).WithBatch(uint64(b)), sealed)
	}
	began, repeated := time.Now(), false
	if err := l.unanswered(send); err != nil {
		return err
	}
	err := s.wait(ctx, l.ready, s.answers.first(s.config.RetryAfter), func(bool) (bool, error) {
		repeated = true
		s.count(func(t *Stats) { t.LookupsRepeated++ })
		return false, l.unanswered(send)
	})
	if err == nil && !repeated {
		s.answers.took(time.Since(began))
	}
	return err
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
func (r *run) complete(b schema.Batch, samples int, lossSum float64, times *batchTimes) {
	weight := r.results.weightOf()
	r.compute.params.commit(weight)
	r.batch.Store(uint64(b) + 1)
	r.done++
	r.samples += uint64(samples)
	p := Progress{Batch: b, Batches: r.batches, Done: r.done, Samples: samples, SamplesRun: r.samples, SamplesAll: weight,
		BatchTime: time.Since(times.begin), ElapsedTime: time.Since(r.began)}
	if samples > 0 {
		p.Loss = lossSum / float64(samples)
	}
	r.count(func(t *Stats) { t.add(samples, times) })
	if r.report != nil {
		r.report(p)
	}
}
