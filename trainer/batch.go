package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"gradbus/lane"
	"gradbus/schema"
)

// ErrOrder reports a call out of order, or one that names a lane or table that the batch does not have. Nothing was
// changed or sent, and the session continues.
var ErrOrder = errors.New("call out of order")

// Batch is one batch of the job, from Next to Commit. It has the batch's number and the lanes that this trainer
// computes, which the coordinator assigned. The program names what each lane uses (Samples, Keys, Bags), calls Fetch,
// computes lane after lane, and calls Commit, all from one goroutine and in this order.
//
//	b, err := session.Next()
//	for _, l := range b.Lanes() {
//		b.Samples(l, 2)
//		b.Keys(l, users, 7, 3) // table users, in the order in which the lane will use them
//	}
//	err = b.Fetch(ctx)
//	for _, l := range b.Lanes() {
//		step, err := b.Lane(l)
//		rows, ids := step.Rows(users), step.IDs(users) // the row of key i is row ids[i]
//		step.BagGrad(users, cuda.Sum, nil, gradients)  // nil: one for each key
//		err = step.End(loss)
//	}
//	err = b.Commit(ctx)
//
// A program whose forward pass finds out which rows it needs looks them up during the batch. It then names keys and
// gradients, with SkipFetch instead of Fetch:
//
//	b, err := session.Next()
//	n, err := session.Distinct(users, keys, unique, ids)
//	err = session.LookupInto(ctx, []trainer.Query{{Table: users, Keys: unique[:n], Rows: rows[:n*dim]}})
//	... // forward and backward pass
//	b.Samples(l, 2)
//	b.Keys(l, users, unique[:n]...)
//	err = b.SkipFetch(ctx)
//	step, err := b.Lane(l)
//	step.BagGrad(users, cuda.Sum, nil, gradients) // and so on, as after Fetch
type Batch struct {
	of     *membership // membership whose lanes the batch has
	run    *run        // series of batches that it belongs to
	number schema.Batch
	stage  stage
	times  *batchTimes
	named  []int // [table] hosted lane whose keys are being named

	ctx  context.Context // of messages sent while lanes are computed, from Fetch on
	stop func()

	steps   []LaneStep // of the hosted lanes
	rowless bool       // its rows were not fetched (SkipFetch)
	open    int        // the hosted lane under way, or -1
	at      int        // hosted lanes before this one are computed
	samples int
	skipped int // skipped lanes
	lossSum float64
	err     error // first error that no call could return yet

	passes []*Activation // passes of hosted modules that step with the batch

	rewound func(error) error // Session.rewound, for a batch of NextAssigned
}

// outcome returns err as a call of the program returns it.
func (b *Batch) outcome(err error) error {
	if b.rewound == nil {
		return err
	}
	return b.rewound(err)
}

// stage is the progress of a batch.
type stage int

const (
	naming   stage = iota // keys are being named
	prepared              // all keys are named, and lookups are built
	fetched               // rows have arrived; lanes are being computed
	committed
)

func (s stage) String() string {
	return [...]string{"its keys are being named", "its keys are named", "it was fetched", "it was committed"}[s]
}

// Wait returns when the earlier batches that this one depends on are complete: in sync all of them, in bounded all but
// the last Ahead. Session.Param then returns the values on which the batch is computed. Fetch and SkipFetch wait by
// themselves.
//
// After ErrAgain, call it again. An error other than ErrAgain and ErrOrder ends the session.
func (b *Batch) Wait(ctx context.Context) error { return b.outcome(b.ready(ctx)) }

func (b *Batch) ready(ctx context.Context) error {
	if err := b.out("Wait", prepared); err != nil {
		return err
	}
	ctx, stop := b.of.running(ctx)
	defer stop()
	if err := b.wait(ctx); err != nil {
		return b.of.interrupted(ctx, b.number, err)
	}
	return nil
}

func (b *Batch) wait(ctx context.Context) error {
	atLeast := schema.Version(0)
	if ahead := schema.Version(b.of.job.Ahead); b.number > ahead {
		atLeast = b.number - ahead
	}
	b.times.keys += b.times.lap()
	err := b.of.settle(ctx, atLeast) // settle measures its own waits
	b.times.restart()
	b.of.activity.beginAt(seekingKeys, b.times.last)
	return err
}

// Number returns the batch's number. In sync, it equals the version that the batch is computed on.
func (b *Batch) Number() schema.Batch { return b.number - b.run.first }

// Lanes returns the lanes to compute, ascending. They may differ from batch to batch.
func (b *Batch) Lanes() []lane.Lane {
	all := make([]lane.Lane, len(b.steps))
	for i := range all {
		all[i] = b.of.compute.plan.first + lane.Lane(i)
	}
	return all
}

// Samples sets the number of samples of a lane, 0 by default. A lane without samples is left out of the batch and must
// have no keys.
func (b *Batch) Samples(l lane.Lane, n int) {
	i, ok := b.names("Samples", l)
	switch {
	case !ok:
	case n < 0:
		b.broken("lane %d: %d samples: want how many the lane has, 0 for none", l, n)
	default:
		b.of.compute.samples[i] = n
	}
}

// Keys appends keys that a lane uses of a table, in the order of use. For each table, lanes must be named in ascending
// order.
func (b *Batch) Keys(l lane.Lane, table schema.Table, keys ...uint64) {
	i, ok := b.names("Keys", l)
	if !ok || !b.knows(table) {
		return
	}
	if i < b.named[table] {
		b.broken("keys of lane %d of table %d follow those of lane %d: want lanes in ascending order", l, table,
			b.of.compute.plan.first+lane.Lane(b.named[table]))
		return
	}
	t := b.of.compute.tables
	t.nameTo(int(table), &b.named[table], i)
	t.used[table] = append(t.used[table], keys...)
}

// Bags sets the offsets of a lane's bags among its keys of a table with a pooling. There is one more offset than bags:
// the first is 0, the last the number of keys. The offsets are copied.
//
//	b.Keys(l, words, 4, 4, 9, 7)
//	b.Bags(l, words, []int64{0, 2, 2, 4}) // {4, 4}, {}, {9, 7}
func (b *Batch) Bags(l lane.Lane, table schema.Table, offsets []int64) {
	i, ok := b.names("Bags", l)
	if !ok || !b.knows(table) {
		return
	}
	t := b.of.compute.tables
	if t.bags[table] == nil {
		b.broken("bags of table %d: its pooling is not in the manifest", table)
		return
	}
	bags := &t.bags[table][i]
	bags.offsets = append(bags.offsets[:0], offsets...)
}

// names returns the index of hosted lane l if its keys may be named.
func (b *Batch) names(call string, l lane.Lane) (int, bool) {
	if b.run != b.of.run || b.stage != naming || b != b.run.now {
		b.broken("%s for lane %d: batch %d: %s", call, l, b.Number(), b.stage)
		return 0, false
	}
	return b.hosted(l)
}

func (b *Batch) hosted(l lane.Lane) (int, bool) {
	i := int(l) - int(b.of.compute.plan.first)
	if i < 0 || i >= len(b.steps) {
		b.broken("lane %d: this trainer computes lanes %v of batch %d", l, b.Lanes(), b.Number())
		return 0, false
	}
	return i, true
}

func (b *Batch) knows(table schema.Table) bool {
	if n := len(b.of.job.Tables); int(table) >= n {
		b.broken("table %d: the job has %d tables", table, n)
		return false
	}
	return true
}

func (b *Batch) broken(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("%w: %w", ErrWorkload, fmt.Errorf(format, args...))
	}
}

// out returns an error if the call is out of order, or nil.
func (b *Batch) out(call string, want stage) error {
	if err := b.of.trainingErr(); err != nil {
		return err
	}
	if b != b.run.now || b.run != b.of.run {
		return fmt.Errorf("%w: %s: batch %d is not the one that Next gave last", ErrOrder, call, b.Number())
	}
	if b.stage == want || want == prepared && b.stage == naming {
		return nil
	}
	return fmt.Errorf("%w: %s: batch %d: %s", ErrOrder, call, b.Number(), b.stage)
}

// failed ends the session with err.
func (b *Batch) failed(ctx context.Context, err error) error { return b.of.failed(ctx, b.number, err) }

// prepare finds the distinct keys and builds the lookups of their rows. It reads no parameter, so it can run while the
// results of the previous batch are under way.
func (b *Batch) prepare() error {
	if b.err == nil {
		if err := b.of.compute.named(b.number, b.named); err != nil {
			b.err = err
		}
	}
	if b.err != nil {
		return b.err
	}
	b.stage = prepared
	if b.rowless {
		b.of.lookups.assign()
		return nil
	}
	return b.of.lookups.build(b.of.head(b.number))
}

// collect calls the workload's Keys for all lanes.
func (b *Batch) collect(w Workload) error {
	b.named = nil // all of them
	return b.of.compute.collect(w, b.Number())
}

// Fetch requests the rows of the named keys, or pooled rows of tables that shards pool. The requests leave right behind
// what was committed last. Fetch waits for the earlier batches, as Wait does, and for the rows. After it, no keys can
// be named.
//
// An error other than ErrOrder ends the session. Errors: ErrWorkload if the named keys are invalid, and those of Run.
func (b *Batch) Fetch(ctx context.Context) error {
	if err := b.out("Fetch", prepared); err != nil {
		return b.outcome(err)
	}
	return b.outcome(b.fetchWithin(ctx, nil))
}

// fetchWithin is Fetch. If wait is not nil, the wait for earlier batches ends with it; if its cause is ErrAgain, the
// next call continues. wait ends with the session.
func (b *Batch) fetchWithin(ctx, wait context.Context) error {
	b.ctx, b.stop = b.of.running(ctx)
	err := b.fetch(b.ctx, wait)
	if err == nil {
		b.stage = fetched
		return nil
	}
	if wait == nil || !errors.Is(err, ErrAgain) {
		err = b.failed(b.ctx, err)
	}
	b.stop()
	return err
}

func (b *Batch) fetch(ctx, wait context.Context) error {
	s, r := b.of, b.run
	if b.stage == naming {
		if err := b.prepare(); err != nil {
			return err
		}
	}
	if !b.rowless && s.newest() < r.committed && !s.lookups.sent {
		if err := s.lookups.askAhead(); err != nil {
			return err
		}
	}
	if wait == nil {
		wait = ctx
	}
	if err := cmp.Or(b.wait(wait), s.trainingErr()); err != nil { // the report of a batch may have ended the session
		return err
	}
	if err := s.lr.awaitLR(ctx, b.number); err != nil {
		return err
	}
	s.compute.begin()
	s.results.begin(b.number)
	if err := s.sender.begin(ctx, s.head(b.number)); err != nil {
		return err
	}
	b.times.keys += b.times.lap()
	s.activity.beginAt(lookingUp, b.times.last)
	if !b.rowless {
		if err := s.lookups.fetch(ctx); err != nil {
			return fmt.Errorf("wait for rows: %w", err)
		}
	}
	b.times.lookup = b.times.lap()
	if s.heartbeats.reports != nil {
		s.sender.norm.begin(b.times.last)
	}
	s.activity.beginAt(computing, b.times.last)
	return nil
}

// Lane begins the computation of a lane. Lanes are computed in ascending order, each once, and each must End before the
// next begins. A lane without samples may be left out; its LaneStep has Samples 0 and needs only its End.
func (b *Batch) Lane(l lane.Lane) (*LaneStep, error) {
	if err := b.out("Lane", fetched); err != nil {
		return nil, b.outcome(err)
	}
	i := int(l) - int(b.of.compute.plan.first)
	if i < 0 || i >= len(b.steps) {
		return nil, fmt.Errorf("%w: lane %d: this trainer computes lanes %v of batch %d", ErrOrder, l, b.Lanes(), b.Number())
	}
	step, err := b.lane(i)
	return step, b.outcome(err)
}

// lane begins hosted lane i.
func (b *Batch) lane(i int) (*LaneStep, error) {
	c := b.of.compute
	l := c.plan.first + lane.Lane(i)
	if b.open >= 0 {
		return nil, fmt.Errorf("%w: lane %d of batch %d follows lane %d, which has not ended: want its End", ErrOrder, l,
			b.Number(), b.steps[b.open].Lane)
	}
	step := &b.steps[i]
	*step = LaneStep{Batch: b.Number(), Lane: l, Samples: c.samples[i], index: i, compute: c, batch: b}
	if step.Samples == 0 {
		return step, nil
	}
	if i < b.at {
		return nil, fmt.Errorf("%w: lane %d of batch %d follows lane %d: want ascending order, each once", ErrOrder,
			l, b.Number(),
			c.plan.first+lane.Lane(b.at-1))
	}
	for skipped := b.at; skipped < i; skipped++ {
		if c.samples[skipped] > 0 {
			return nil, fmt.Errorf("%w: lane %d of batch %d before lane %d: want ascending order", ErrOrder, l, b.Number(),
				c.plan.first+lane.Lane(skipped))
		}
	}
	if b.ctx.Err() != nil {
		return nil, b.failed(b.ctx, context.Cause(b.ctx))
	}
	c.beginLane(i)
	b.open = i
	return step, nil
}

// end ends the lane under way. err is the workload's error, or nil.
func (b *Batch) end(step *LaneStep, loss float64, err error) error {
	b.open, b.at, step.ended = -1, step.index+1, true
	if err = b.of.compute.endLane(step, err); err != nil {
		return b.failed(b.ctx, err)
	}
	if b.of.compute.samples[step.index] == 0 {
		b.skipped++
		return nil
	}
	b.samples, b.lossSum = b.samples+step.Samples, b.lossSum+loss
	return nil
}

// Commit sends the gradients of the lanes and returns without waiting for results. All lanes with samples must have
// ended (ErrOrder). Any other error ends the session.
func (b *Batch) Commit(ctx context.Context) error { return b.outcome(b.commit(ctx)) }

func (b *Batch) commit(ctx context.Context) error {
	if err := b.out("Commit", fetched); err != nil {
		return err
	}
	s := b.of
	for i, n := range s.compute.samples[b.at:] {
		if n > 0 {
			return fmt.Errorf("%w: Commit of batch %d: lane %d, which has %d samples, was not computed to its End",
				ErrOrder, b.Number(), s.compute.plan.first+lane.Lane(b.at+i), n)
		}
	}
	b.stop()
	ctx, stop := s.running(ctx)
	defer stop()
	if b.err != nil {
		return b.failed(ctx, b.err)
	}
	if err := b.stepModules(ctx); err != nil {
		return b.failed(ctx, err)
	}
	if err := b.send(); err != nil {
		return b.failed(ctx, err)
	}
	s.activity.begin(elsewhere)
	return nil
}

// send sends the rest of the batch, which then waits for results.
func (b *Batch) send() error {
	s, r := b.of, b.run
	if s.compute.plan.last < 0 {
		if err := s.sender.sendAbsent(); err != nil {
			return err
		}
	}
	if err := s.sender.sendPostponed(); err != nil {
		return err
	}
	if err := s.sender.sendRows(); err != nil {
		return err
	}
	s.measured(b.number)
	s.sender.end(b.number)
	b.times.send = s.sender.sendTime
	b.times.compute = b.times.lap() - b.times.send
	s.stats.count(func(t *counters) { t.behind += uint64(b.number) - uint64(s.newest()) })
	r.waiting[int(b.number)%len(r.waiting)] = batchDone{b.samples, b.skipped, b.lossSum, b.times}
	b.stage, r.committed = committed, b.number+1
	return nil
}

// GiveBack undoes the Next that returned the batch, if nothing was fetched. Next would return the batch again; Finish
// or Close can follow. It serves a program that learns after Next that it has no more data.
func (b *Batch) GiveBack() error {
	if err := b.out("GiveBack", naming); err != nil {
		return b.outcome(err)
	}
	b.run.now = nil
	return nil
}

// SkipFetch is Fetch without a request, for a program that has already looked up its rows (Session.LookupInto). The
// lanes have neither Rows nor Pooled. Tables that shards pool need their Bags and PooledGrad as after Fetch. A batch
// whose rows were already requested needs Fetch (ErrOrder).
//
// An error other than ErrOrder ends the session. Errors: ErrWorkload if the named keys are invalid, and those of Run.
func (b *Batch) SkipFetch(ctx context.Context) error {
	if err := b.out("SkipFetch", naming); err != nil {
		return b.outcome(err)
	}
	b.rowless, b.run.rowless = true, true
	return b.Fetch(ctx)
}
