//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"gradbus/cuda"
)

//export go_coalesce
func go_coalesce(t *C.gradbus_thread, handle C.gradbus_handle, p *C.gradbus_rows, n C.int32_t, keys *C.int64_t,
	grad *C.float, distinct *C.int64_t) C.int32_t {
	return now(t, func() error {
		s, err := usable(handle)
		if err != nil {
			return err
		}
		pieces, err := slice("rows", p, int64(n))
		if err != nil {
			return err
		}
		if len(pieces) == 0 || distinct == nil {
			return fmt.Errorf("%w: coalesce of %d pieces: want at least 1, and distinct", errArgument, len(pieces))
		}
		a, err := s.bagBackward(pieces)
		if err != nil {
			return err
		}
		outKeys, err := slice("keys", (*int64)(unsafe.Pointer(keys)), int64(a.IDs.Len()))
		if err != nil {
			return err
		}
		out, err := slice("grad", (*float32)(unsafe.Pointer(grad)), int64(a.IDs.Len()*a.Dim))
		if err != nil {
			return err
		}
		a.Keys, a.Out = cuda.Int64s(outKeys), cuda.Float32s(out)
		found, err := s.arithmetic().BagBackward(a)
		*distinct = C.int64_t(found)
		return err
	})
}

// bagBackward sums pieces of one table by row, as a lane does that has them all: without room for what comes of it.
func (s *session) bagBackward(pieces []C.gradbus_rows) (a cuda.BagBackward, err error) {
	table := pieces[0].table
	var ids []int64
	var grad []float32
	offsets := []int64{0}
	for i := range pieces {
		r := &pieces[i]
		if err := s.checkRows(r); err != nil {
			return a, fmt.Errorf("piece %d of rows: %w", i, err)
		}
		if r.table != table {
			return a, fmt.Errorf("%w: piece %d of rows is of table %d, and the first of %d: want one table", errArgument, i,
				r.table, table)
		}
		bags := int64(r.count)
		if s.pools(int(table)) {
			bags = int64(r.bags)
		}
		if offsets, err = s.offsets(int(table), offsets, r.offsets, bags, int64(r.count)); err != nil {
			return a, err
		}
		ids = append(ids, unsafe.Slice((*int64)(unsafe.Pointer(r.keys)), r.count)...)
		grad = append(grad, floats(r.grad, int(bags)*s.Job().Tables[table].Dim)...)
	}
	spec := &s.Job().Tables[table]
	mode := cuda.Sum
	if spec.Mean() {
		mode = cuda.Mean
	}
	return cuda.BagBackward{Dim: spec.Dim, Mode: mode, Padding: cuda.NoPadding, R: int64(spec.Rows),
		IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets), GradOut: cuda.Float32s(grad)}, nil
}

// arithmetic returns the backend: the session's own, or that of the shards that it joined at.
func (s *session) arithmetic() cuda.Backend {
	if s.backend != nil {
		return s.backend
	}
	return s.of.backend
}
