//go:build native

package cuda

// #include "bridge.h"
import "C"

import "unsafe"

// The encodings of the operations with an optimizer.

// optimizer writes the hyperparameters and the slots beside the arguments. none is the type of an output of no
// elements.
func (e *encoding) optimizer(to *C.gb_optimizer, o Optimizer, clip Clip, slots []Slot) {
	c := (*C.bridge_command)(e.command)
	hyper := unsafe.Pointer(&c.hyper)
	clear(unsafe.Slice((*uint64)(hyper), unsafe.Sizeof(c.hyper)/8))
	to.kind = C.uint32_t(o.kind())
	to.clip = C.gb_clip{C.uint32_t(clip.Kind), C.float(clip.By)}
	switch o := o.(type) {
	case SGD:
		to.hyper_bytes = e.sgd(hyper, &o)
	case *SGD:
		to.hyper_bytes = e.sgd(hyper, o)
	case RowwiseAdagrad:
		to.hyper_bytes = e.adagrad(hyper, Adagrad(o))
	case *RowwiseAdagrad:
		to.hyper_bytes = e.adagrad(hyper, Adagrad(*o))
	case Adagrad:
		to.hyper_bytes = e.adagrad(hyper, o)
	case *Adagrad:
		to.hyper_bytes = e.adagrad(hyper, *o)
	case Adam:
		to.hyper_bytes = e.adam(hyper, o)
	case *Adam:
		to.hyper_bytes = e.adam(hyper, *o)
	case AdamW:
		to.hyper_bytes = e.adam(hyper, Adam(o))
	case *AdamW:
		to.hyper_bytes = e.adam(hyper, Adam(*o))
	case FTRL:
		to.hyper_bytes = e.ftrl(hyper, o)
	case *FTRL:
		to.hyper_bytes = e.ftrl(hyper, *o)
	}
	address(unsafe.Pointer(&to.hyper), hyper)
	if len(slots) == 0 {
		return
	}
	address(unsafe.Pointer(&to.slots), unsafe.Pointer(&c.slots))
	n := min(len(slots), len(c.slots))
	to.slots_n = C.int64_t(n)
	clear(unsafe.Slice((*uint64)(unsafe.Pointer(&c.slots)), unsafe.Sizeof(c.slots)/8))
	for i := range n {
		name := &c.names[i]
		copied := copy(unsafe.Slice((*byte)(unsafe.Pointer(name)), len(name)-1), slots[i].Name)
		name[copied] = 0
		address(unsafe.Pointer(&c.slots[i].name), unsafe.Pointer(name))
		e.in(&c.slots[i].before, slots[i].Before, Float32)
		e.out(&c.slots[i].after, slots[i].After, slots[i].Before.dtype)
	}
}

func (e *encoding) sgd(at unsafe.Pointer, o *SGD) C.uint32_t {
	h := (*C.gb_sgd)(at)
	h.lr, h.momentum, h.dampening = C.float(o.LR), C.float(o.Momentum), C.float(o.Dampening)
	h.weight_decay, h.nesterov = C.float(o.WeightDecay), bit(o.Nesterov)
	return C.sizeof_gb_sgd
}

func (e *encoding) adagrad(at unsafe.Pointer, o Adagrad) C.uint32_t {
	h := (*C.gb_adagrad)(at)
	h.lr, h.eps, h.weight_decay = C.float(o.LR), C.float(o.Eps), C.float(o.WeightDecay)
	return C.sizeof_gb_adagrad
}

func (e *encoding) adam(at unsafe.Pointer, o Adam) C.uint32_t {
	h := (*C.gb_adam)(at)
	h.lr, h.beta1, h.beta2 = C.float(o.LR), C.float(o.Beta1), C.float(o.Beta2)
	h.eps, h.weight_decay, h.step = C.float(o.Eps), C.float(o.WeightDecay), C.uint64_t(o.Step)
	return C.sizeof_gb_adam
}

func (e *encoding) ftrl(at unsafe.Pointer, o FTRL) C.uint32_t {
	h := (*C.gb_ftrl)(at)
	h.lr, h.beta, h.l1, h.l2 = C.float(o.LR), C.float(o.Beta), C.float(o.L1), C.float(o.L2)
	return C.sizeof_gb_ftrl
}

func (e *encoding) steps(to *C.gb_steps, s *Steps) {
	e.in(&to.last, s.Last, Int64)
	e.out(&to.last_after, s.LastAfter, Int64)
	to.step, to.exact = C.int64_t(s.Step), bit(s.Exact)
}

func (e *encoding) applyRows(a *ApplyRows) {
	c := (*C.gb_apply_rows_args)(e.command)
	e.begin(C.GB_OP_APPLY_ROWS, unsafe.Sizeof(*c))
	c.weight, c.dim = C.float(a.Weight), C.int64_t(a.Dim)
	c.policy, c.nonfinite = C.gb_id_policy(bit(a.SkipBadIDs)), C.gb_nonfinite(a.NonFinite)
	e.spared, e.picks = sparedBy(a.Index.n, a.Dim, a.Table), true
	e.optimizer(&c.optimizer, a.Optimizer, a.Clip, a.Slots)
	e.steps(&c.steps, &a.Steps)
	e.in(&c.table, a.Table, Float32)
	if a.Out.data != a.Table.data {
		e.spared = 0
	}
	e.out(&c.out, a.Out, a.Table.dtype)
	e.spared = 0
	e.in(&c.index, a.Index, Int64)
	e.in(&c.first, a.First, Uint8)
	e.in(&c.grad, a.Grad, Float32)
}

func (e *encoding) coalesceApply(a *CoalesceApply) {
	c := (*C.gb_coalesce_apply_args)(e.command)
	e.begin(C.GB_OP_COALESCE_APPLY, unsafe.Sizeof(*c))
	c.weight, c.dim = C.float(a.Weight), C.int64_t(a.Dim)
	c.policy, c.nonfinite = C.gb_id_policy(bit(a.SkipBadIDs)), C.gb_nonfinite(a.NonFinite)
	e.work.keys, e.spared = a.Keys.n, sparedBy(a.Keys.n, a.Dim, a.Table)
	e.optimizer(&c.optimizer, a.Optimizer, a.Clip, a.Slots)
	e.steps(&c.steps, &a.Steps)
	e.in(&c.table, a.Table, Float32)
	e.out(&c.out, a.Out, a.Table.dtype)
	e.spared = 0
	e.in(&c.keys, a.Keys, Int64)
	e.in(&c.rows, a.Rows, Float32)
	e.out(&c.out_keys, a.OutKeys, Int64)
}

func (e *encoding) applyDense(a *ApplyDense) {
	c := (*C.gb_apply_dense_args)(e.command)
	e.begin(C.GB_OP_APPLY_DENSE, unsafe.Sizeof(*c))
	c.weight, c.dim, c.first = C.float(a.Weight), C.int64_t(a.Dim), bit(a.First)
	c.nonfinite = C.gb_nonfinite(a.NonFinite)
	e.optimizer(&c.optimizer, a.Optimizer, a.Clip, a.Slots)
	e.in(&c.param, a.Param, Float32)
	e.out(&c.out, a.Out, a.Param.dtype)
	e.in(&c.grad, a.Grad, Float32)
}

func (e *encoding) averageApply(a *AverageApply) {
	c := (*C.gb_average_apply_args)(e.command)
	e.begin(C.GB_OP_AVERAGE_APPLY, unsafe.Sizeof(*c))
	c.weight, c.dim, c.first = C.float(a.Weight), C.int64_t(a.Dim), bit(a.First)
	c.nonfinite, c.lanes = C.gb_nonfinite(a.NonFinite), C.int64_t(a.Lanes)
	e.denseTerms(&c.terms, &c.terms_n, a.Terms)
	e.optimizer(&c.optimizer, a.Optimizer, a.Clip, a.Slots)
	e.in(&c.param, a.Param, Float32)
	e.out(&c.out, a.Out, a.Param.dtype)
}
