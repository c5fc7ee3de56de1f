//go:build cgo

package main

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"gradbus/schema"
	"gradbus/trainer"
)

// text gives a caller a string of its own.
func text(out **C.char, of any) error {
	if out == nil {
		return fmt.Errorf("%w: json is NULL", errArgument)
	}
	b, err := json.Marshal(of)
	if err == nil {
		*out = C.CString(string(b))
	}
	return err
}

//export go_job
func go_job(t *C.gradbus_thread, handle C.gradbus_handle, out **C.char) C.int32_t {
	return now(t, func() error {
		s, err := usable(handle)
		if err != nil {
			return err
		}
		first, lanes := s.Lanes()
		return text(out, map[string]any{"job": s.Job(), "member": s.Member(), "run": fmt.Sprintf("%016x", uint64(s.RunID())),
			"shards":     s.Shards(),
			"first_lane": first, "lanes": lanes, "version": s.Version(), "lr_scale": s.LRScale(),
			"goes_back": s.Job().Rewinds(), "elastic": s.elastic})
	})
}

//export go_stats
func go_stats(t *C.gradbus_thread, handle C.gradbus_handle, out **C.char) C.int32_t {
	return now(t, func() error {
		s, err := usable(handle)
		if err != nil {
			return err
		}
		n := s.Stats()
		return text(out, map[string]any{"batches": n.Batches, "samples": n.Samples, "lanes_skipped": n.LanesSkipped,
			"behind":       n.Behind,
			"keys_seconds": n.KeysSeconds, "lookup_seconds": n.LookupSeconds,
			"compute_seconds": n.ComputeSeconds,
			"send_seconds":    n.SendSeconds, "result_seconds": n.ResultSeconds, "bytes_sent": n.Traffic.BytesSent,
			"bytes_received": n.Traffic.BytesReceived,
			"messages_sent":  n.Traffic.MessagesSent, "messages_received": n.Traffic.MessagesReceived, "reconnects": n.Traffic.Reconnects,
			"lookups_repeated": n.LookupsRepeated,
			"pulls":            n.Pulls, "gradient_frames": n.GradientFrames, "resent": n.Resent, "results": n.Results,
			"results_repeated": n.ResultsRepeated,
			"dropped":          n.Traffic.Dropped})
	})
}

//export go_digest
func go_digest(t *C.gradbus_thread, handle C.gradbus_handle, out *C.uint8_t) C.int32_t {
	return trainsBeside(t, handle, func(s *session) error {
		if out == nil {
			return fmt.Errorf("%w: digest is NULL", errArgument)
		}
		sum, err := s.Digest(s.ctx)
		if err == nil {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(out)), len(sum)), sum[:])
		}
		return err
	})
}

//export go_scale_lr
func go_scale_lr(t *C.gradbus_thread, handle C.gradbus_handle, from C.uint64_t, scale C.float,
	decided *C.uint64_t) C.int32_t {
	return trainsBeside(t, handle, func(s *session) error {
		if !(scale >= 0 && scale <= math.MaxFloat32) {
			return fmt.Errorf("%w: scale %v: want a finite number, at least 0", errArgument, scale)
		}
		at, err := s.ScaleLR(s.ctx, schema.Batch(from), float32(scale))
		if err == nil && decided != nil {
			*decided = C.uint64_t(at)
		}
		return err
	})
}

//export go_checkpoint
func go_checkpoint(t *C.gradbus_thread, handle C.gradbus_handle, folder *C.char, program unsafe.Pointer, n C.int64_t,
	version *C.uint64_t) C.int32_t {
	given := false
	return trains(t, handle, func(ctx context.Context, s *session) (err error) {
		if s.batch != nil {
			return fmt.Errorf("%w: checkpoint: batch %d is under way: want gradbus_commit before", trainer.ErrOrder,
				s.batch.Number())
		}
		if !given {
			if err := s.giveProgram(program, int64(n)); err != nil {
				return err
			}
			if err := s.of.checkpointsIn(C.GoString(folder)); err != nil {
				return err
			}
			given = true
		}
		v, err := s.Checkpoint(ctx)
		if s.of != nil && !errors.Is(err, trainer.ErrAgain) {
			s.of.SetProgram(s.Job().Name, nil)
		}
		if err == nil && version != nil {
			*version = C.uint64_t(v)
		}
		return err
	})
}

// giveProgram sets the caller's part of the version that is written next.
func (s *session) giveProgram(program unsafe.Pointer, n int64) error {
	data, err := slice("program", (*byte)(program), n)
	switch {
	case err != nil:
		return err
	case len(data) > programBytesMax:
		return fmt.Errorf("%w: program: %d bytes: want at most %d", errArgument, len(data), programBytesMax)
	case s.of == nil && program != nil:
		return fmt.Errorf("%w: program: want none of a session at a ps", errArgument)
	case s.of != nil:
		s.of.SetProgram(s.Job().Name, slices.Clone(data))
	}
	return nil
}

// programBytesMax bounds what a caller adds to a version.
const programBytesMax = 64 << 20

//export go_program
func go_program(t *C.gradbus_thread, handle C.gradbus_handle, program *unsafe.Pointer, n *C.int64_t) C.int32_t {
	return now(t, func() error {
		s, err := usable(handle)
		if err == nil && (program == nil || n == nil) {
			err = fmt.Errorf("%w: program or bytes is NULL", errArgument)
		}
		if err != nil {
			return err
		}
		*program, *n = nil, 0
		if s.of == nil {
			return nil
		}
		data, err := s.of.Program(s.Job().Name)
		if err != nil {
			return fmt.Errorf("%w: %w", errFile, err)
		}
		if data != nil {
			*program, *n = C.CBytes(data), C.int64_t(len(data))
		}
		return nil
	})
}

// tableKeys is the number of rows of a table in one request.
const tableKeys = 1 << 16

//export go_table
func go_table(t *C.gradbus_thread, handle C.gradbus_handle, table C.int32_t, first C.uint64_t, count C.int64_t,
	rows *C.float) C.int32_t {
	var to []float32
	var keys []uint64
	return trains(t, handle, func(ctx context.Context, s *session) (err error) {
		if err = s.knows(table); err != nil {
			return err
		}
		spec := &s.Job().Tables[table]
		if n := uint64(count); count < 0 || n > spec.Rows || uint64(first) > spec.Rows-n {
			return fmt.Errorf("%w: table %q: %d rows from row %d on: it has %d", errArgument, spec.Name, count, first, spec.Rows)
		}
		if keys == nil {
			if to, err = slice("rows", (*float32)(unsafe.Pointer(rows)), int64(count)*int64(spec.Dim)); err != nil {
				return err
			}
			keys = make([]uint64, 0, tableKeys)
		}
		for len(to) > 0 {
			keys = keys[:min(tableKeys, len(to)/spec.Dim)]
			for i := range keys {
				keys[i] = uint64(first) + uint64(int(count)-len(to)/spec.Dim+i)
			}
			values := len(keys) * spec.Dim
			into := []trainer.Query{{Table: schema.Table(table), Keys: keys, Rows: to[:values]}}
			if err := s.LookupInto(ctx, into); err != nil {
				return err
			}
			to = to[values:]
		}
		return nil
	})
}

//export go_save
func go_save(t *C.gradbus_thread, handle C.gradbus_handle, path *C.char, tensors *C.gradbus_tensor, n C.int32_t,
	metadata *C.char) C.int32_t {
	return trainsBeside(t, handle, func(s *session) error {
		if path == nil {
			return fmt.Errorf("%w: path is NULL", errArgument)
		}
		extra, err := extraOf(tensors, n, metadata)
		if err != nil {
			return err
		}
		err = s.Save(s.ctx, C.GoString(path), extra)
		if err != nil && codeOf(err) == C.GRADBUS_INTERNAL { // whatever else is wrong with a file
			err = fmt.Errorf("%w: %w", errFile, err)
		}
		return err
	})
}

// extraOf returns the caller's additions to a file. The bytes of the tensors stay the caller's.
func extraOf(tensors *C.gradbus_tensor, n C.int32_t, metadata *C.char) (extra trainer.Extra, err error) {
	if metadata != nil {
		if err := json.Unmarshal([]byte(C.GoString(metadata)), &extra.Metadata); err != nil {
			return extra, fmt.Errorf("%w: metadata: %w", errArgument, err)
		}
	}
	all, err := slice("tensors", tensors, int64(n))
	for i := range all {
		t := &all[i]
		if t.name == nil || t.dtype == nil {
			return extra, fmt.Errorf("%w: tensor %d: name or dtype is NULL", errArgument, i)
		}
		one := trainer.Tensor{Name: C.GoString(t.name), DType: C.GoString(t.dtype)}
		shape, err := slice("shape", (*int64)(unsafe.Pointer(t.shape)), int64(t.dims))
		if err == nil {
			one.Data, err = slice("values", (*byte)(t.values), int64(t.bytes))
		}
		if err != nil {
			return extra, fmt.Errorf("tensor %q: %w", one.Name, err)
		}
		for _, d := range shape {
			one.Shape = append(one.Shape, int(d))
		}
		extra.Tensors = append(extra.Tensors, one)
	}
	return extra, err
}
