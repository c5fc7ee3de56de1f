package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"gradbus/schema"
)

// A program whose forward pass itself says which rows it needs, one table after the other, looks them up while a batch
// is under way, and names keys and gradients afterwards:
//
//	b, err := session.Next()
//	n, err := session.Distinct(users, keys, unique, ids)
//	err = session.LookupInto(ctx, []trainer.RowsInto{{Table: users, Keys: unique[:n], Rows: rows[:n*dim]}})
//	... // forward and backward pass
//	b.Samples(l, 2)
//	b.Keys(l, users, unique[:n]...)
//	err = b.SkipFetch(ctx)
//	step, err := b.Lane(l)
//	step.BagGrad(users, cuda.Sum, nil, gradients) // and so on, as after Fetch

// SkipFetch is Fetch for a program that has looked up itself what the named keys stand for: nothing is asked for, and
// the lanes have neither Rows nor Pooled. Tables that shards pool want their Bags and PooledGrad, as after Fetch. A
// batch whose rows were asked for already wants Fetch (ErrOrder).
//
// An error other than ErrOrder ends the session. Errors: ErrWorkload where what was named is not possible, and those of
// Run.
func (b *Batch) SkipFetch(ctx context.Context) error {
	if err := b.out("SkipFetch", naming); err != nil {
		return b.outcome(err)
	}
	b.rowless, b.run.rowless = true, true
	return b.Fetch(ctx)
}

// RowsInto are keys of one table to look up, distinct and ascending, and the memory that their rows go to, [len(Keys),
// dim] row-major.
//
// Of a table that shards pool these are the keys of bags, in any order and as often as one likes. Bag i has
// Keys[Bags[i]:Bags[i+1]], and Rows, [len(Bags)-1, dim], are the pooled rows, zeros of an empty bag. Without Bags each
// key is a bag. Other tables have none.
type RowsInto struct {
	Table schema.Table
	Keys  []uint64
	Rows  []float32
	Bags  []int64
}

// LookupInto is Session.LookupInto in this run.
func (s *membership) LookupInto(ctx context.Context, asks []RowsInto) error {
	for i := range asks {
		if err := s.checkInto(&asks[i]); err != nil {
			return fmt.Errorf("lookup: ask %d: %w", i, err)
		}
	}
	return s.lookInto(ctx, asks, true)
}

// lookInto is LookupInto of what was checked. again says that ErrAgain is followed by the same call.
func (s *membership) lookInto(ctx context.Context, asks []RowsInto, again bool) (err error) {
	e := s.evaluating()
	defer func() { // also where it panics
		if again && errors.Is(err, ErrAgain) {
			return
		}
		e.lookups.close(rowsAsked) // before the memory is the caller's
		e.forget()
		e.at, e.asked = place{}, false
	}()
	both, stop := s.readable(ctx)
	defer stop()
	if s.TrainingErr() != nil { // the batch whose keys are being named will never be computed
		err = s.settled(both)
	}
	if err := cmp.Or(err, s.Err()); err != nil {
		return err
	}
	if err := s.lookAhead(e, asks); err != nil {
		return err
	}
	if err := s.awaitRows(both); err != nil {
		return err
	}
	return s.lookupInto(both, e, asks)
}

// lookAhead asks for rows that what was committed is about to make.
func (s *membership) lookAhead(e *evaluation, asks []RowsInto) error {
	r := s.run // whose report may look rows up itself
	if e.asked || r == nil || r.report != nil || r.committed == s.newest() || s.job.Ahead > 0 && !r.naming() {
		return nil
	}
	if e.forget(); e.add(asks, &e.at) > 0 {
		b := r.committed
		if err := e.lookups.build(s.head(b)); err != nil {
			return err
		}
		if err := s.askAhead(e.lookups); err != nil {
			return err
		}
		e.asked = e.lookups.sent
	}
	if !e.asked {
		e.at = place{}
	}
	return nil
}

// naming reports whether the program holds a batch whose rows are not there yet.
func (r *run) naming() bool { return r.report == nil && r.now != nil && r.now.stage < fetched }

// awaitRows waits until rows can be answered: those of the batch whose keys are being named, or of all that was
// committed.
func (s *membership) awaitRows(ctx context.Context) error {
	if r := s.run; r != nil && r.naming() {
		return r.now.Wait(ctx)
	}
	return s.settled(ctx)
}

func (s *membership) lookupInto(ctx context.Context, e *evaluation, asks []RowsInto) error {
	b := s.newest()
	if r := s.run; r != nil && r.naming() {
		b = r.now.number
	}
	for ; ; e.asked = false {
		if !e.asked && e.at.ask == len(asks) {
			return nil
		}
		if !e.asked {
			if e.forget(); e.add(asks, &e.at) == 0 {
				continue
			}
			if err := e.lookups.build(s.head(b)); err != nil {
				return err
			}
			e.asked = true
		}
		if err := s.fetch(ctx, e.lookups); err != nil {
			return fmt.Errorf("lookup at version %d: %w", s.job.Counted(b), err)
		}
	}
}

func (s *membership) checkInto(a *RowsInto) error {
	if int(a.Table) >= len(s.job.Tables) {
		return fmt.Errorf("%w: table %d: the job has %d", ErrAsk, a.Table, len(s.job.Tables))
	}
	spec, n := &s.job.Tables[a.Table], len(a.Keys)
	switch {
	case pooledByShards(*spec):
		return a.checkBags(spec)
	case a.Bags != nil:
		return fmt.Errorf("%w: bags of table %q, whose shards give rows: want its keys alone, or a placement columns "+
			"or tables in the manifest", ErrAsk, spec.Name)
	case len(a.Rows) != n*spec.Dim:
		return fmt.Errorf("%w: table %q: room for %d values: want %d rows of %d", ErrAsk, spec.Name, len(a.Rows), n, spec.Dim)
	case !ascend(a.Keys):
		return fmt.Errorf("%w: table %q: want distinct keys, ascending", ErrAsk, spec.Name)
	case n > 0 && a.Keys[n-1] >= spec.Rows:
		return fmt.Errorf("%w: %w", ErrAsk, outside(spec, a.Keys[n-1]))
	}
	return nil
}

// place is how far asks were asked for; key is the number of a bag where shards pool.
type place struct{ ask, key int }

// add takes as many keys as one round may have, from a place on, which it moves. Their rows go to the memory of the
// asks.
func (e *evaluation) add(asks []RowsInto, at *place) (keys int) {
	for room := evaluationValuesMax; at.ask < len(asks); {
		a := &asks[at.ask]
		table, dim := int(a.Table), e.tables.specs[a.Table].Dim
		if pooledByShards(e.tables.specs[table]) {
			if len(e.tables.bags[table][0].offsets) > 0 {
				return keys
			}
			room -= e.addBags(a, at, room, keys == 0)
			if keys += len(e.tables.used[table]); at.key < a.bags() {
				return keys
			}
			*at = place{ask: at.ask + 1}
			continue
		}
		n := min(len(a.Keys)-at.key, room/dim)
		if keys == 0 {
			n = min(len(a.Keys)-at.key, max(n, 1))
		}
		if n == 0 && at.key < len(a.Keys) || len(e.tables.keys[table]) > 0 {
			return keys
		}
		end := at.key + n
		e.tables.keys[table], e.tables.rows[table] = a.Keys[at.key:end], a.Rows[at.key*dim:end*dim]
		room, keys, at.key = room-n*dim, keys+n, end
		if end == len(a.Keys) {
			*at = place{ask: at.ask + 1}
		}
	}
	return keys
}

// forget lets go of the memory of asks.
func (e *evaluation) forget() {
	e.tables.reset()
	e.tables.forgetBags()
	clear(e.tables.keys)
	clear(e.tables.rows)
}

// keySets are those of Distinct.
var keySets = sync.Pool{New: func() any { return new(keySet) }}

// Distinct is Session.Distinct.
func (s *membership) Distinct(table schema.Table, keys, unique []uint64, ids []int64) (n int, err error) {
	if int(table) >= len(s.job.Tables) {
		return 0, fmt.Errorf("%w: table %d: the job has %d", ErrAsk, table, len(s.job.Tables))
	}
	if len(unique) != len(keys) || len(ids) != len(keys) {
		return 0, fmt.Errorf("%w: room for %d distinct keys and %d ids of %d keys: want as much", ErrAsk, len(unique),
			len(ids), len(keys))
	}
	spec := &s.job.Tables[table]
	for i, key := range keys {
		if key >= spec.Rows {
			return 0, fmt.Errorf("%w: key number %d: %w", ErrAsk, i, outside(spec, key))
		}
	}
	set := keySets.Get().(*keySet)
	set.keys, set.ids = unique[:0], ids[:0]
	err = set.find(keys)
	n, set.keys, set.ids = len(set.keys), nil, nil
	keySets.Put(set)
	return n, err
}
