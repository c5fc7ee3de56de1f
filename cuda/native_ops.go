//go:build native

package cuda

// #include "bridge.h"
import "C"

import (
	"cmp"
	"unsafe"
)

// The operations, each one crossing into the library. Where the library refuses offsets or ids, the check in Go runs
// once more, for its wording.

// BagForward: see the interface.
func (n *native) BagForward(a BagForward) error {
	if _, _, err := a.shape(); err != nil {
		return err
	}
	_, err := n.run("bag forward", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_bag_forward(n.api, n.context, C.gb_mode(a.Mode), C.int64_t(a.Dim), C.int64_t(a.Padding),
			floats(a.Rows), size(a.Rows), ints(a.IDs), size(a.IDs), ints(a.Offsets), size(a.Offsets),
			floats(a.Out), size(a.Out), ws, bytes, &c.report)
	})
	if err != nil {
		_, wording := a.check()
		return cmp.Or(wording, err)
	}
	return nil
}

// BagBackward: see the interface.
func (n *native) BagBackward(a BagBackward) (int, error) {
	if _, err := a.shape(); err != nil {
		return 0, err
	}
	count, err := n.run("bag backward", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_bag_backward(n.api, n.context, C.gb_mode(a.Mode), C.int64_t(a.Dim), C.int64_t(a.Padding),
			C.int64_t(a.R), ints(a.IDs), size(a.IDs), ints(a.Offsets), size(a.Offsets), floats(a.GradOut), size(a.GradOut),
			ints(a.Keys), size(a.Keys), floats(a.Out), size(a.Out), ws, bytes, &c.report)
	})
	if err != nil {
		_, wording := a.check()
		return 0, cmp.Or(wording, err)
	}
	return count, nil
}

// Coalesce: see the interface.
func (n *native) Coalesce(a Coalesce) (int, error) {
	if err := a.check(); err != nil {
		return 0, err
	}
	return n.run("coalesce", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_coalesce(n.api, n.context, C.int64_t(a.Dim), words(a.Keys), size(a.Keys), floats(a.Rows), size(a.Rows),
			words(a.OutKeys), size(a.OutKeys), floats(a.OutRows), size(a.OutRows), ws, bytes, &c.report)
	})
}

// Merge: see the interface.
func (n *native) Merge(a Merge) (int, error) {
	if err := a.shape(); err != nil {
		return 0, err
	}
	return n.run("merge", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		c.rowsTerms = grow(c.rowsTerms, len(a.Terms))
		for i := range a.Terms {
			t := &a.Terms[i]
			to := &c.rowsTerms[i]
			to.node = C.gb_node{C.uint32_t(t.First), C.uint32_t(t.Count)}
			to.keys = c.pin(unsafe.Pointer(unsafe.SliceData(t.Keys)), len(t.Keys), C.GB_UINT64)
			to.rows = c.pin(unsafe.Pointer(unsafe.SliceData(t.Rows)), len(t.Rows), C.GB_FLOAT32)
		}
		defer c.unpin()
		return C.bridge_merge(n.api, n.context, C.int64_t(a.Dim), C.int64_t(a.Lanes),
			unsafe.SliceData(c.rowsTerms), size(c.rowsTerms),
			words(a.OutKeys), size(a.OutKeys), floats(a.OutRows), size(a.OutRows), ws, bytes, &c.report)
	})
}

// Average: see the interface.
func (n *native) Average(a Average) error {
	if err := a.check(); err != nil {
		return err
	}
	_, err := n.run("average", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		c.terms = grow(c.terms, len(a.Terms))
		for i := range a.Terms {
			t := &a.Terms[i]
			c.terms[i].node = C.gb_node{C.uint32_t(t.First), C.uint32_t(t.Count)}
			c.terms[i].values = c.pin(unsafe.Pointer(unsafe.SliceData(t.Values)), len(t.Values), C.GB_FLOAT32)
		}
		defer c.unpin()
		return C.bridge_average(n.api, n.context, C.float(a.Weight), C.int64_t(a.Lanes),
			unsafe.SliceData(c.terms), size(c.terms), floats(a.Out), size(a.Out), ws, bytes, &c.report)
	})
	return err
}

// pin makes an argument within a struct: its memory may be Go's, so it is pinned until unpin.
func (c *call) pin(p unsafe.Pointer, n int, dtype C.gb_dtype) C.gb_in {
	if n == 0 {
		return C.gb_in{}
	}
	c.pins.Pin(p)
	return C.gb_in{data: p, n: C.int64_t(n), dtype: dtype}
}

// unpin lets go of the terms, and forgets them so that a pooled call keeps no caller's memory alive.
func (c *call) unpin() {
	c.pins.Unpin()
	clear(c.terms)
	clear(c.rowsTerms)
}

func (h SGD) native() C.gb_sgd {
	return C.gb_sgd{lr: C.float(h.LR), momentum: C.float(h.Momentum), dampening: C.float(h.Dampening),
		weight_decay: C.float(h.WeightDecay), nesterov: bit(h.Nesterov)}
}

// ApplyRows: see the interface.
func (n *native) ApplyRows(a ApplyRows) error {
	if _, err := a.shape(); err != nil {
		return err
	}
	_, err := n.run("apply rows", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_apply_rows(n.api, n.context, C.int64_t(a.Dim), a.SGD.native(), C.float(a.Weight),
			floats(a.Table), size(a.Table), floats(a.Momentum), size(a.Momentum), ints(a.Index), size(a.Index),
			(*C.uint8_t)(unsafe.SliceData(a.First)), size(a.First), floats(a.Grad), size(a.Grad), floats(a.Out), size(a.Out),
			floats(a.OutMomentum), size(a.OutMomentum), ws, bytes, &c.report)
	})
	return err
}

// ApplyDense: see the interface.
func (n *native) ApplyDense(a ApplyDense) error {
	if err := a.check(); err != nil {
		return err
	}
	_, err := n.run("apply dense", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_apply_dense(n.api, n.context, a.SGD.native(), C.float(a.Weight), bit(a.First), size(a.Param),
			floats(a.Param), floats(a.Grad), floats(a.Momentum), floats(a.Out), floats(a.OutMomentum), ws, bytes, &c.report)
	})
	return err
}

// MatMul: see the interface.
func (n *native) MatMul(a MatMul) error {
	if err := a.check(); err != nil {
		return err
	}
	_, err := n.run("matmul", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_matmul(n.api, n.context, C.int64_t(a.M), C.int64_t(a.N), C.int64_t(a.K), bit(a.TransA), bit(a.TransB),
			floats(a.A), floats(a.B), floats(a.Bias), size(a.Bias), floats(a.C), ws, bytes, &c.report)
	})
	return err
}

// SoftmaxCrossEntropy: see the interface.
func (n *native) SoftmaxCrossEntropy(a SoftmaxCrossEntropy) error {
	if _, err := a.shape(); err != nil {
		return err
	}
	_, err := n.run("softmax cross entropy", func(c *call, ws *C.uint8_t, bytes C.uint64_t) C.gb_status {
		return C.bridge_softmax(n.api, n.context, C.int64_t(a.Classes), floats(a.Logits), size(a.Logits),
			(*C.int32_t)(unsafe.SliceData(a.Targets)), size(a.Targets), floats(a.Loss), size(a.Loss), floats(a.Grad), size(a.Grad),
			floats(a.Probabilities), size(a.Probabilities), ws, bytes, &c.report)
	})
	return err
}

// FirstNonFinite: see the interface.
func (n *native) FirstNonFinite(values []float32) int {
	if n.name == "cpu" && !n.closed.Load() {
		return int(C.bridge_first_nonfinite(n.api, n.context, floats(values), size(values)))
	}
	return firstNonFinite(values) // there is nowhere to report a failed device, and no reason to ask one
}
