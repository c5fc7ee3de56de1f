//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

// Bags of tables that shards pool: keys and offsets in, pooled rows out, and the gradients of these back.

// pools reports whether shards pool a table.
func (s *session) pools(table int) bool { return s.Job().Tables[table].Cut().PooledByShards() }

// wantBags refuses a table of which whole bags are asked for.
func (s *session) wantBags(table int) error {
	spec := &s.Job().Tables[table]
	return fmt.Errorf("%w: table %q is pooled by its shards (placement %s): want keys with bags and offsets, to "+
		"gradbus_lookup and in gradbus_rows", errArgument, spec.Name, spec.Placement)
}

// wantRows refuses bags of a table of which rows are asked for.
func (s *session) wantRows(table int, bags int64, offsets *C.int64_t) error {
	if bags == 0 && offsets == nil {
		return nil
	}
	return fmt.Errorf("%w: table %q is not pooled by its shards: want no bags and offsets, or a placement tables or "+
		"columns and a pooling sum or mean in the manifest",
		errArgument, s.Job().Tables[table].Name)
}

// bagsInto is an ask for bags that is to be looked up.
func (s *session) bagsInto(a *C.gradbus_ask) (to trainer.Query, err error) {
	table := int(a.table)
	if a.distinct != 0 || a.bags == 0 && a.count != 0 {
		return to, s.wantBags(table)
	}
	to.Table = schema.Table(table)
	spec := &s.Job().Tables[table]
	if to.Keys, err = slice("keys", (*uint64)(unsafe.Pointer(a.keys)), int64(a.count)); err != nil {
		return to, err
	}
	for i, key := range to.Keys {
		if key >= spec.Rows {
			return to, outside(spec.Name, i, key, spec.Rows)
		}
	}
	if to.Bags, err = s.offsets(table, nil, a.offsets, int64(a.bags), int64(a.count)); err != nil {
		return to, err
	}
	to.Rows, err = slice("rows", (*float32)(unsafe.Pointer(a.rows)), int64(a.bags)*int64(spec.Dim))
	return to, err
}

// offsets appends where bags of a table begin to what is there, behind the keys that it ends with, and where the last
// one ends.
func (s *session) offsets(table int, to []int64, p *C.int64_t, bags, keys int64) ([]int64, error) {
	if p == nil && bags != keys {
		return nil, fmt.Errorf("%w: table %q: %d bags of %d keys without offsets: want as many, or offsets", errArgument,
			s.Job().Tables[table].Name, bags, keys)
	}
	begins, err := []int64(nil), error(nil)
	if p != nil {
		if begins, err = slice("offsets", (*int64)(unsafe.Pointer(p)), bags); err != nil {
			return nil, err
		}
	}
	before, last := int64(0), int64(0)
	if n := len(to); n > 0 {
		before, to = to[n-1], to[:n-1]
	}
	for i := range bags {
		at := i
		if p != nil {
			at = begins[i]
		}
		if at < last || at > keys || i == 0 && at != 0 {
			return nil,
				fmt.Errorf("%w: table %q: offset %d of bag %d: want 0 for the first, and offsets that rise to at most %d, the "+
					"number of keys",
					errArgument, s.Job().Tables[table].Name, at, i, keys)
		}
		if err := bagFits(i-1, at-last); err != nil {
			return nil, fmt.Errorf("table %q: %w", s.Job().Tables[table].Name, err)
		}
		last = at
		to = append(to, before+at)
	}
	if err := bagFits(bags-1, keys-last); err != nil {
		return nil, fmt.Errorf("table %q: %w", s.Job().Tables[table].Name, err)
	}
	return append(to, before+keys), nil
}

// bagFits refuses a bag whose keys no frame has room for.
func bagFits(bag, keys int64) error {
	if keys > schema.BagKeysMax {
		return fmt.Errorf("%w: bag %d of %d keys: want at most %d", errArgument, bag, keys, schema.BagKeysMax)
	}
	return nil
}

// checkBags finds what would end the session in gradients of bags; their keys have been looked at.
func (s *session) checkBags(r *C.gradbus_rows) error {
	if r.bags == 0 && r.count != 0 {
		return s.wantBags(int(r.table))
	}
	if _, err := s.offsets(int(r.table), nil, r.offsets, int64(r.bags), int64(r.count)); err != nil {
		return err
	}
	_, err := slice("grad", r.grad, int64(r.bags)*int64(s.Job().Tables[r.table].Dim))
	return err
}

// nameBags names the bags of a lane that was checked, piece after piece.
func (s *session) nameBags(b *trainer.Batch, step *C.gradbus_lane_step) {
	if step.samples == 0 {
		return
	}
	for table := range s.Job().Tables {
		if !s.pools(table) {
			continue
		}
		offsets := []int64{0}
		for at := range pieces(step) {
			if r := &pieces(step)[at]; int(r.table) == table {
				offsets, _ = s.offsets(table, offsets, r.offsets, int64(r.bags), int64(r.count))
			}
		}
		b.Bags(lane.Lane(step.lane), schema.Table(table), offsets)
	}
}

// givePooled hands over a lane's gradients of a table's bags.
func (s *session) givePooled(to *trainer.LaneStep, from *C.gradbus_lane_step, table int) {
	var all []float32
	n := 0
	for at := range pieces(from) {
		r := &pieces(from)[at]
		if int(r.table) != table || r.bags == 0 {
			continue
		}
		grad := floats(r.grad, int(r.bags)*s.Job().Tables[table].Dim)
		switch n++; n {
		case 1:
			all = grad
		case 2:
			all = append(all[:len(all):len(all)], grad...) // in memory of its own
		default:
			all = append(all, grad...)
		}
	}
	if n > 0 {
		to.PooledGrad(schema.Table(table), all)
	}
}
