//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

//export go_begin
func go_begin(t *C.gradbus_thread, handle C.gradbus_handle, out *C.gradbus_batch) C.int32_t {
	return trains(t, handle, func(ctx context.Context, s *session) error {
		if out == nil {
			return fmt.Errorf("%w: batch is NULL", errArgument)
		}
		if s.batch != nil {
			return fmt.Errorf("%w: begin: batch %d is under way: want gradbus_commit before", trainer.ErrOrder, s.batch.Number())
		}
		b, err := s.next(ctx)
		if err != nil {
			return err
		}
		s.batch = b
		lanes := b.Lanes()
		*out = C.gradbus_batch{number: C.uint64_t(b.Number()), lanes: C.int32_t(len(lanes))}
		if len(lanes) > 0 {
			out.first_lane = C.int32_t(lanes[0])
		}
		return nil
	})
}

// giveBack undoes gradbus_begin.
func (s *session) giveBack() error {
	if s.batch == nil {
		return nil
	}
	b := s.batch
	s.batch = nil
	if err := b.GiveBack(); !errors.Is(err, trainer.ErrRewound) { // it counts for nothing, as it is
		return err
	}
	return nil
}

//export go_dense
func go_dense(t *C.gradbus_thread, handle C.gradbus_handle, to **C.float) C.int32_t {
	return trains(t, handle, func(ctx context.Context, s *session) error {
		if to == nil && len(s.Job().Parameters) > 0 {
			return fmt.Errorf("%w: dense is NULL", errArgument)
		}
		if err := s.awaitDense(ctx); err != nil {
			return err
		}
		for i, p := range unsafe.Slice(to, len(s.Job().Parameters)) {
			if p != nil {
				spec := &s.Job().Parameters[i]
				copy(floats(p, spec.Elements()), s.Param(spec.Name))
			}
		}
		return nil
	})
}

// awaitDense waits for the dense parameters of the batch under way, or else for those that the last one makes.
func (s *session) awaitDense(ctx context.Context) error {
	if s.batch != nil {
		return s.batch.Wait(ctx)
	}
	_, err := s.Wait(ctx)
	return err
}

//export go_distinct
func go_distinct(t *C.gradbus_thread, handle C.gradbus_handle, p *C.gradbus_ask, n C.int32_t) C.int32_t {
	return now(t, func() error {
		s, err := usable(handle)
		if err != nil {
			return err
		}
		return eachAsk(p, n, s.distinct)
	})
}

// eachAsk does something with each of n asks, until an error.
func eachAsk(p *C.gradbus_ask, n C.int32_t, body func(*C.gradbus_ask) error) error {
	asks, err := slice("asks", p, int64(n))
	for i := range asks {
		if err := body(&asks[i]); err != nil {
			return ofAsk(i, err)
		}
	}
	return err
}

// ofAsk says in which ask an error is, but for keys, whose error names their table.
func ofAsk(i int, err error) error {
	if _, ok := err.(keyError); ok {
		return err
	}
	return fmt.Errorf("ask %d: %w", i, err)
}

func (s *session) distinct(a *C.gradbus_ask) error {
	if err := s.knows(a.table); err != nil {
		return err
	}
	if s.pools(int(a.table)) {
		return s.wantBags(int(a.table))
	}
	keys, err := slice("keys", (*uint64)(unsafe.Pointer(a.keys)), int64(a.count))
	if err != nil {
		return err
	}
	unique, err := slice("unique", (*uint64)(unsafe.Pointer(a.unique)), int64(a.count))
	if err != nil {
		return err
	}
	ids, err := slice("ids", (*int64)(unsafe.Pointer(a.ids)), int64(a.count))
	if err != nil {
		return err
	}
	spec := &s.Job().Tables[a.table]
	for i, key := range keys {
		if key >= spec.Rows {
			return outside(spec.Name, i, key, spec.Rows)
		}
	}
	found, err := s.Distinct(schema.Table(a.table), keys, unique, ids)
	a.distinct = C.int64_t(found)
	return err
}

func (s *session) knows(table C.int32_t) error {
	if n := len(s.Job().Tables); table < 0 || int(table) >= n {
		return fmt.Errorf("%w: table %d: the job has %d", errArgument, table, n)
	}
	return nil
}

//export go_lookup
func go_lookup(t *C.gradbus_thread, handle C.gradbus_handle, version C.int64_t, p *C.gradbus_ask,
	n C.int32_t) C.int32_t {
	s, err := usable(handle)
	var into []trainer.Query
	if err == nil {
		err = guarded(func() (err error) {
			into, err = s.into(p, int64(n))
			return err
		})
	}
	if err != nil {
		return end(t, err)
	}
	checked := false // once: LookupInto alone knows how to end what it began, and has to be called until it has
	return wait(t, s.ctx, s.inTurn(func(ctx context.Context) error {
		if !checked && version >= 0 {
			if err := s.checkVersion(ctx, schema.Version(version)); err != nil {
				return err
			}
		}
		checked = true
		return s.LookupInto(ctx, into)
	}, nil))
}

// checkVersion refuses another version than the one that is asked for.
func (s *session) checkVersion(ctx context.Context, want schema.Version) error {
	_, err := s.Wait(ctx)
	if has := s.Version(); err == nil && has != want {
		err = fmt.Errorf("lookup: %w: version %d is asked for, and the job is at %d", errVersion, want, has)
	}
	return err
}

// into are asks that are to be looked up.
func (s *session) into(p *C.gradbus_ask, n int64) ([]trainer.Query, error) {
	asks, err := slice("asks", p, n)
	if err != nil {
		return nil, err
	}
	into := make([]trainer.Query, len(asks))
	for i := range asks {
		a, to := &asks[i], &into[i]
		if err = s.knows(a.table); err == nil && s.pools(int(a.table)) {
			if *to, err = s.bagsInto(a); err == nil {
				continue
			}
		} else if err == nil {
			err = s.wantRows(int(a.table), int64(a.bags), a.offsets)
		}
		if err == nil {
			to.Table = schema.Table(a.table)
			to.Keys, err = slice("unique", (*uint64)(unsafe.Pointer(a.unique)), int64(a.distinct))
		}
		if err == nil {
			to.Rows, err = slice("rows", (*float32)(unsafe.Pointer(a.rows)),
				int64(a.distinct)*int64(s.Job().Tables[a.table].Dim))
		}
		if err != nil {
			return nil, ofAsk(i, err)
		}
	}
	return into, nil
}

//export go_commit
func go_commit(t *C.gradbus_thread, handle C.gradbus_handle, p *C.gradbus_lane_step, n C.int32_t) C.int32_t {
	return trainsBeside(t, handle, func(s *session) error {
		steps, err := slice("lanes", p, int64(n))
		if err != nil {
			return err
		}
		b := s.batch
		if err := s.Err(); err != nil {
			return err
		}
		if b == nil {
			return fmt.Errorf("%w: commit: no batch is under way: want gradbus_begin", trainer.ErrOrder)
		}
		if err := s.check(steps, b.Lanes()); err != nil {
			return err
		}
		s.batch = nil // an error ends the session
		return s.commit(b, steps)
	})
}

// check finds everything that would end the session.
func (s *session) check(steps []C.gradbus_lane_step, lanes []lane.Lane) error {
	if len(steps) != len(lanes) {
		return fmt.Errorf("%w: %d lanes: the batch has %d", errArgument, len(steps), len(lanes))
	}
	for i := range steps {
		step := &steps[i]
		if step.lane != C.int32_t(lanes[i]) {
			return fmt.Errorf("%w: lane %d in place %d: want lane %d", errArgument, step.lane, i, lanes[i])
		}
		pieces, err := slice("rows", step.rows, int64(step.pieces))
		if err != nil {
			return fmt.Errorf("lane %d: %w", step.lane, err)
		}
		if step.samples < 0 || step.samples == 0 && len(pieces) > 0 {
			return fmt.Errorf("%w: lane %d: %d samples and %d pieces of rows: want none of either, or samples", errArgument,
				step.lane, step.samples, len(pieces))
		}
		for at := range pieces {
			if err := s.checkRows(&pieces[at]); err != nil {
				return fmt.Errorf("lane %d: piece %d of rows: %w", step.lane, at, err)
			}
		}
	}
	return nil
}

func (s *session) checkRows(r *C.gradbus_rows) error {
	if err := s.knows(r.table); err != nil {
		return err
	}
	keys, err := slice("keys", (*uint64)(unsafe.Pointer(r.keys)), int64(r.count))
	if err != nil {
		return err
	}
	spec := &s.Job().Tables[r.table]
	for i, key := range keys {
		if key >= spec.Rows {
			return outside(spec.Name, i, key, spec.Rows)
		}
	}
	if s.pools(int(r.table)) {
		return s.checkBags(r)
	}
	if err := s.wantRows(int(r.table), int64(r.bags), r.offsets); err != nil {
		return err
	}
	_, err = slice("grad", r.grad, int64(r.count)*int64(spec.Dim))
	return err
}

// pieces are the rows of a lane that was checked.
func pieces(step *C.gradbus_lane_step) []C.gradbus_rows {
	return unsafe.Slice(step.rows, step.pieces)
}

func keysOf(r *C.gradbus_rows) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(r.keys)), r.count)
}

func (s *session) commit(b *trainer.Batch, steps []C.gradbus_lane_step) error {
	for i := range steps {
		step := &steps[i]
		b.Samples(lane.Lane(step.lane), int(step.samples))
		for at := range pieces(step) {
			r := &pieces(step)[at]
			b.Keys(lane.Lane(step.lane), schema.Table(r.table), keysOf(r)...)
		}
		s.nameBags(b, step)
	}
	if err := b.SkipFetch(s.ctx); err != nil {
		return err
	}
	for i := range steps {
		step, err := b.Lane(lane.Lane(steps[i].lane))
		if err != nil {
			return err
		}
		if step.Samples > 0 {
			s.give(step, &steps[i])
		}
		if err := step.End(float64(steps[i].loss)); err != nil {
			return err
		}
	}
	return b.Commit(s.ctx)
}

// give hands a lane's gradients over.
func (s *session) give(to *trainer.LaneStep, from *C.gradbus_lane_step) {
	all := pieces(from)
	for table := range s.Job().Tables {
		if s.pools(table) {
			s.givePooled(to, from, table)
			continue
		}
		n, ids := 0, to.IDs(schema.Table(table))
		for i := range all {
			if int(all[i].table) == table {
				n++
			}
		}
		for i := range all {
			r := &all[i]
			if int(r.table) != table || r.count == 0 {
				continue
			}
			grad := floats(r.grad, int(r.count)*s.Job().Tables[table].Dim)
			if n == 1 && ascending(ids) {
				to.RowGrad(schema.Table(table), ids, grad)
			} else if n == 1 {
				to.BagGrad(schema.Table(table), cuda.Sum, nil, grad)
			} else {
				to.AddRowGrad(schema.Table(table), ids[:r.count], grad)
				ids = ids[r.count:]
			}
		}
	}
	if from.dense == nil {
		return
	}
	dense := unsafe.Slice((**C.float)(unsafe.Pointer(from.dense)), len(s.Job().Parameters))
	for i := len(dense) - 1; i >= 0; i-- { // in which order they travel
		if dense[i] != nil {
			spec := &s.Job().Parameters[i]
			copy(to.Grad(spec.Name), floats(dense[i], spec.Elements()))
			to.Done(spec.Name)
		}
	}
}

func ascending(ids []int64) bool {
	for i := 1; i < len(ids); i++ {
		if ids[i] <= ids[i-1] {
			return false
		}
	}
	return true
}

//export go_finish
func go_finish(t *C.gradbus_thread, handle C.gradbus_handle) C.int32_t {
	return trains(t, handle, func(ctx context.Context, s *session) error {
		if err := s.giveBack(); err != nil {
			return err
		}
		if s.elastic {
			further, err := s.Wait(ctx)
			if err != nil {
				return err
			}
			if further {
				return fmt.Errorf("%w: finish: lanes of a lost trainer remain of the batch that was committed last: want gradbus_begin",
					trainer.ErrOrder)
			}
		}
		return s.Finish(ctx)
	})
}
