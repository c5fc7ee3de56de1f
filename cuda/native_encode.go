//go:build native

package cuda

// #include "bridge.h"
import "C"

import "unsafe"

// encoding writes one command into memory that the library reads: for a single call that of a call, for a batch memory
// outside the Go heap. Addresses are written as numbers, so that the garbage collector's write barrier never sees what
// the memory held before.
type encoding struct {
	op      C.gb_op
	command unsafe.Pointer // *C.bridge_command
	terms   unsafe.Pointer // room for the terms, where the operation has some
	held    C.bridge_held  // what the command names, but for terms where pins is given
	n       int
	pins    *pins    // where not nil, the data of terms are pinned in it
	regions *regions // memory of the backend's device, or nil
	work    work
	noted   unsafe.Pointer // the last vector of which work knows
	spared  float64        // share of the next vectors that the call leaves alone
	picks   bool           // of large tables the rows that it names travel alone
	device  bool           // some data lie in the device's memory
	host    bool           // some data lie where the device cannot read them
}

var opNames = [...]string{
	C.GB_OP_BAG_FORWARD: "bag forward", C.GB_OP_BAG_BACKWARD: "bag backward", C.GB_OP_COALESCE: "coalesce",
	C.GB_OP_MERGE: "merge", C.GB_OP_APPLY_ROWS: "apply rows", C.GB_OP_APPLY_DENSE: "apply dense",
	C.GB_OP_AVERAGE: "average", C.GB_OP_MATMUL: "matmul", C.GB_OP_SOFTMAX: "softmax cross entropy",
	C.GB_OP_FIRST_NONFINITE: "first nonfinite", C.GB_OP_COALESCE_APPLY: "coalesce apply",
	C.GB_OP_AVERAGE_APPLY: "average apply", C.GB_OP_COPY: "copy", C.GB_OP_GATHER: "gather",
}

func opName(op C.gb_op) string { return opNames[op] }

func (e *encoding) report() *C.gb_report { return &(*C.bridge_command)(e.command).report }

// begin clears the command's arguments, which are of so many bytes, and its report.
func (e *encoding) begin(op C.gb_op, bytes uintptr) {
	e.op = op
	clear(unsafe.Slice((*uint64)(e.command), bytes/8))
	*(*uint32)(e.command) = uint32(bytes) // every struct of arguments starts with its size
	r := e.report()
	clear(unsafe.Slice((*uint64)(unsafe.Pointer(r)), unsafe.Sizeof(*r)/8))
	r.size = C.uint32_t(unsafe.Sizeof(*r))
}

// address writes p to a field that is a pointer.
func address(field unsafe.Pointer, p unsafe.Pointer) { *(*uintptr)(field) = uintptr(p) }

func (e *encoding) holdAddress(p unsafe.Pointer) {
	e.held.p[e.n] = (*C.uint8_t)(p)
	e.n++
}

// place notes where a vector lies, for backends with a device.
func (e *encoding) place(v Vector) {
	where := e.regions.of(v)
	switch where {
	case onDevice:
		e.device = true
		return
	case onHost:
		e.host = true
	}
	if v.data != e.noted { // an output in place goes back while others come
		e.work.note(v.n*v.dtype.Bytes(), where == onPinned, e.spared, e.picks)
	}
	e.noted = v.data
}

// in writes a vector. One of no elements is NULL and, where it has no type of its own, of type none.
func (e *encoding) in(to *C.gb_in, v Vector, none DType) {
	if v.n == 0 {
		if v.dtype == Float32 {
			v.dtype = none
		}
		to.dtype = C.gb_dtype(v.dtype)
		return
	}
	address(unsafe.Pointer(&to.data), v.data)
	to.n, to.dtype = C.int64_t(v.n), C.gb_dtype(v.dtype)
	e.holdAddress(v.data)
	if e.regions != nil {
		e.place(v)
	}
}

// out writes a vector that is an output; gb_out is gb_in but for const.
func (e *encoding) out(to *C.gb_out, v Vector, none DType) {
	e.in((*C.gb_in)(unsafe.Pointer(to)), v, none)
}

// term writes a vector of a term.
func (e *encoding) term(to *C.gb_in, v Vector, none DType) {
	*(*[unsafe.Sizeof(*to) / 8]uint64)(unsafe.Pointer(to)) = [unsafe.Sizeof(*to) / 8]uint64{}
	n := e.n
	e.in(to, v, none)
	if e.n > n {
		e.n = n
		e.held.p[n] = nil
		e.pins.pin(v.data)
	}
}

func (e *encoding) bagForward(a *BagForward) {
	c := (*C.gb_bag_forward_args)(e.command)
	e.begin(C.GB_OP_BAG_FORWARD, unsafe.Sizeof(*c))
	c.mode, c.dim, c.padding = C.gb_mode(a.Mode), C.int64_t(a.Dim), C.int64_t(a.Padding)
	c.policy, c.open_offsets = C.gb_id_policy(bit(a.SkipBadIDs)), bit(a.OpenOffsets)
	e.spared = sparedBy(a.IDs.n, a.Dim, a.Rows)
	e.in(&c.rows, a.Rows, Float32)
	e.spared = 0
	e.in(&c.ids, a.IDs, Int64)
	e.in(&c.offsets, a.Offsets, Int64)
	e.in(&c.weights, a.Weights, Float32)
	e.out(&c.out, a.Out, a.Rows.dtype)
	e.out(&c.argmax, a.ArgMax, Int32)
}

func (e *encoding) bagBackward(a *BagBackward) {
	c := (*C.gb_bag_backward_args)(e.command)
	e.begin(C.GB_OP_BAG_BACKWARD, unsafe.Sizeof(*c))
	c.mode, c.dim, c.padding = C.gb_mode(a.Mode), C.int64_t(a.Dim), C.int64_t(a.Padding)
	c.policy, c.open_offsets = C.gb_id_policy(bit(a.SkipBadIDs)), bit(a.OpenOffsets)
	c.rows, e.work.keys = C.int64_t(a.R), a.IDs.n
	e.in(&c.ids, a.IDs, Int64)
	e.in(&c.offsets, a.Offsets, Int64)
	e.in(&c.weights, a.Weights, Float32)
	e.in(&c.argmax, a.ArgMax, Int32)
	e.in(&c.grad_out, a.GradOut, Float32)
	e.out(&c.keys, a.Keys, Int64)
	e.out(&c.out, a.Out, a.GradOut.dtype)
}

// keyType is the type of keys, which where there are none may be unsaid.
func keyType(keys Vector, none DType) DType {
	if keys.n == 0 && keys.dtype == Float32 {
		return none
	}
	return keys.dtype
}

func (e *encoding) coalesce(a *Coalesce) {
	c := (*C.gb_coalesce_args)(e.command)
	e.begin(C.GB_OP_COALESCE, unsafe.Sizeof(*c))
	c.weight, c.dim, e.work.keys = C.float(a.Weight), C.int64_t(a.Dim), a.Keys.n
	keys := keyType(a.Keys, keyType(a.OutKeys, Uint64))
	e.in(&c.keys, a.Keys, keys)
	e.in(&c.rows, a.Rows, Float32)
	e.out(&c.out_keys, a.OutKeys, keys)
	e.out(&c.out_rows, a.OutRows, a.Rows.dtype)
}

func (e *encoding) merge(a *Merge) {
	c := (*C.gb_merge_args)(e.command)
	e.begin(C.GB_OP_MERGE, unsafe.Sizeof(*c))
	c.weight, c.dim, c.lanes = C.float(a.Weight), C.int64_t(a.Dim), C.int64_t(a.Lanes)
	rows := Float32
	if len(a.Terms) > 0 {
		rows = a.Terms[0].Rows.dtype
		address(unsafe.Pointer(&c.terms), e.terms)
		c.terms_n = C.int64_t(len(a.Terms))
	}
	terms := unsafe.Slice((*C.gb_rows_term)(e.terms), len(a.Terms))
	for i := range a.Terms {
		t, to := &a.Terms[i], &terms[i]
		to.node = C.gb_node{C.uint32_t(t.First), C.uint32_t(t.Count)}
		e.work.keys += t.Keys.n
		e.term(&to.keys, t.Keys, Uint64)
		e.term(&to.rows, t.Rows, rows)
	}
	e.out(&c.out_keys, a.OutKeys, Uint64)
	e.out(&c.out_rows, a.OutRows, rows)
}

func rowsTermBytes(terms []RowsTerm) uintptr { return uintptr(len(terms)) * C.sizeof_gb_rows_term }
func termBytes(terms []Term) uintptr         { return uintptr(len(terms)) * C.sizeof_gb_term }

// denseTerms writes the terms of a sum and gives their type.
func (e *encoding) denseTerms(to **C.gb_term, n *C.int64_t, all []Term) DType {
	if len(all) == 0 {
		return Float32
	}
	dtype := all[0].Values.dtype
	address(unsafe.Pointer(to), e.terms)
	*n = C.int64_t(len(all))
	terms := unsafe.Slice((*C.gb_term)(e.terms), len(all))
	for i := range all {
		terms[i].node = C.gb_node{C.uint32_t(all[i].First), C.uint32_t(all[i].Count)}
		e.term(&terms[i].values, all[i].Values, dtype)
	}
	return dtype
}

func (e *encoding) average(a *Average) {
	c := (*C.gb_average_args)(e.command)
	e.begin(C.GB_OP_AVERAGE, unsafe.Sizeof(*c))
	c.weight, c.lanes = C.float(a.Weight), C.int64_t(a.Lanes)
	e.out(&c.out, a.Out, e.denseTerms(&c.terms, &c.terms_n, a.Terms))
}

func (e *encoding) gather(a *Gather) {
	c := (*C.gb_gather_args)(e.command)
	e.begin(C.GB_OP_GATHER, unsafe.Sizeof(*c))
	c.dim = C.int64_t(a.Dim)
	e.in(&c.rows, a.Rows, Float32)
	e.in(&c.ids, a.IDs, Int64)
	e.out(&c.out, a.Out, a.Rows.dtype)
}

func (e *encoding) matMul(a *MatMul) {
	c := (*C.gb_matmul_args)(e.command)
	e.begin(C.GB_OP_MATMUL, unsafe.Sizeof(*c))
	c.trans_a, c.trans_b = bit(a.TransA), bit(a.TransB)
	c.m, c.n, c.k = C.int64_t(a.M), C.int64_t(a.N), C.int64_t(a.K)
	e.work.flops = 2 * a.M * a.N * a.K
	e.in(&c.a, a.A, Float32)
	e.in(&c.b, a.B, Float32)
	e.in(&c.bias, a.Bias, Float32)
	e.out(&c.c, a.C, Float32)
}

func (e *encoding) softmaxCrossEntropy(a *SoftmaxCrossEntropy) {
	c := (*C.gb_softmax_args)(e.command)
	e.begin(C.GB_OP_SOFTMAX, unsafe.Sizeof(*c))
	c.classes = C.int64_t(a.Classes)
	e.in(&c.logits, a.Logits, Float32)
	e.in(&c.targets, a.Targets, Int32)
	e.out(&c.loss, a.Loss, Float32)
	e.out(&c.grad, a.Grad, Float32)
	e.out(&c.probabilities, a.Probabilities, Float32)
}

func (e *encoding) firstNonFinite(values Vector) {
	c := (*C.gb_first_nonfinite_args)(e.command)
	e.begin(C.GB_OP_FIRST_NONFINITE, unsafe.Sizeof(*c))
	e.in(&c.values, values, Float32)
}

func (e *encoding) copy(to, from Vector) {
	c := (*C.gb_copy_args)(e.command)
	e.begin(C.GB_OP_COPY, unsafe.Sizeof(*c))
	if from.n == 0 {
		return
	}
	address(unsafe.Pointer(&c.from), from.data)
	address(unsafe.Pointer(&c.to), to.data)
	c.bytes = C.int64_t(from.n * from.dtype.Bytes())
	e.holdAddress(from.data)
	e.holdAddress(to.data)
	if e.regions != nil {
		e.place(from)
		e.place(to)
	}
}
