package cuda

// Mode says how a bag of rows becomes one row.
type Mode uint32

const (
	Sum  Mode = 0 // out = sum of rows
	Mean Mode = 1 // out = (sum of rows) / number of rows
)

// NoPadding is the padding id of calls that have none.
const NoPadding int64 = -1

// Backend does the arithmetic. Every method is synchronous, may be given Go memory, and leaves its outputs untouched
// when it returns an error (see the errors in errors.go). Every backend gives the same bits: float32 accumulation in
// canonical order (doc.go), true division, no fused multiply-add. Methods may be called from several goroutines at once.
type Backend interface {
	// Name is "go", "cpu" or "cuda"; ISA is the instruction set in use ("portable", "baseline", "avx2", "avx512", "sm_90").
	Name() string
	ISA() string

	// BagForward pools rows into bags: Out[b] = mode over i in [Offsets[b], Offsets[b+1]) of Rows[IDs[i]].
	BagForward(BagForward) error
	// BagBackward is the gradient of BagForward, coalesced: for each distinct id, ascending, the sum over its positions
	// (ascending, canonical order) of GradOut[bag of position], divided by the bag's length first where the mode is Mean.
	// It returns the number n of distinct ids: Keys[:n] and Out[:n*Dim] are written.
	BagBackward(BagBackward) (int, error)
	// Coalesce sums the rows of equal keys: distinct keys ascending, rows summed in order of position, canonically.
	Coalesce(Coalesce) (int, error)
	// Merge adds coalesced terms of disjoint tree nodes along the lane tree: union of keys ascending; a term without a
	// key is skipped for that key. Not divided.
	Merge(Merge) (int, error)
	// ApplyRows runs the optimizer on chosen rows, from Table (and Momentum) into Out (and OutMomentum).
	ApplyRows(ApplyRows) error
	// ApplyDense runs the optimizer on a dense tensor, from Param into Out.
	ApplyDense(ApplyDense) error
	// Average adds terms of disjoint tree nodes along the lane tree and divides once by Weight.
	Average(Average) error
	// MatMul is C = op(A) x op(B) (+ Bias), canonical order over K.
	MatMul(MatMul) error
	// SoftmaxCrossEntropy gives the loss of each sample and the gradient with respect to the logits, undivided.
	SoftmaxCrossEntropy(SoftmaxCrossEntropy) error
	// FirstNonFinite is the index of the first NaN or Inf, or -1.
	FirstNonFinite(values []float32) int

	// Alloc gives zeroed memory outside the Go heap, aligned to 64 bytes. The caller frees it.
	Alloc(float32s int) (*Buffer, error)
	Close() error
}

// BagForward: Rows [R, Dim]; IDs [N] in [0, R); Offsets [B+1], 0 first, never falling, N last; Out [B, Dim].
// Positions with id Padding are neither read nor counted. An empty bag is a zero row.
type BagForward struct {
	Dim     int
	Mode    Mode
	Padding int64
	Rows    []float32
	IDs     []int64
	Offsets []int64
	Out     []float32
}

// BagBackward: GradOut [B, Dim]; R the number of rows that ids may name; Keys capacity >= distinct ids (N suffices);
// Out capacity >= len(Keys)*Dim.
type BagBackward struct {
	Dim     int
	Mode    Mode
	Padding int64
	R       int64
	IDs     []int64
	Offsets []int64
	GradOut []float32
	Keys    []int64
	Out     []float32
}

// Coalesce: Keys [N], Rows [N, Dim]; OutKeys [>= distinct], OutRows [>= distinct, Dim].
type Coalesce struct {
	Dim     int
	Keys    []uint64
	Rows    []float32
	OutKeys []uint64
	OutRows []float32
}

// RowsTerm is one coalesced contribution: strictly ascending Keys [n], Rows [n, Dim], of the tree node over lanes
// [First, First+Count).
type RowsTerm struct {
	First, Count uint16
	Keys         []uint64
	Rows         []float32
}

// Merge: Terms disjoint nodes of the tree over Lanes lanes, in lane order.
type Merge struct {
	Dim     int
	Lanes   int
	Terms   []RowsTerm
	OutKeys []uint64
	OutRows []float32
}

// SGD holds the hyperparameters in PyTorch's form: d = g/weight + WeightDecay*p; on the first step m = d, else
// m = Momentum*m + (1-Dampening)*d; p -= LR * (Nesterov ? d + Momentum*m : m). With Momentum 0 no m is kept: p -= LR*d.
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float32
	Nesterov                             bool
}

// ApplyRows: Table and Momentum [R, Dim] (Momentum nil where SGD.Momentum is 0); Index [n] distinct rows in [0, R);
// Grad [n, Dim] undivided, divided once by Weight; First [n] nonzero where the row has had no step yet (nil where
// Momentum is nil). Out and OutMomentum are compact [n, Dim] and may not overlap Table or Momentum.
type ApplyRows struct {
	Dim         int
	SGD         SGD
	Weight      float32
	Table       []float32
	Momentum    []float32
	Index       []int64
	First       []uint8
	Grad        []float32
	Out         []float32
	OutMomentum []float32
}

// ApplyDense: all [n]. Momentum and OutMomentum nil where SGD.Momentum is 0. Out may equal Param, OutMomentum may equal Momentum.
type ApplyDense struct {
	SGD         SGD
	Weight      float32
	First       bool
	Param       []float32
	Grad        []float32
	Momentum    []float32
	Out         []float32
	OutMomentum []float32
}

// Term is one dense contribution of the tree node over lanes [First, First+Count).
type Term struct {
	First, Count uint16
	Values       []float32
}

// Average: Terms disjoint nodes of the tree over Lanes lanes, in lane order, each [n]; Out [n], which may be one of the
// terms. Weight 1 gives the plain sum (division by one is exact).
type Average struct {
	Lanes  int
	Weight float32
	Terms  []Term
	Out    []float32
}

// MatMul: A is [M, K] row-major ([K, M] where TransA), B is [K, N] ([N, K] where TransB), Bias [N] or nil, C [M, N].
type MatMul struct {
	M, N, K        int
	TransA, TransB bool
	A, B, Bias, C  []float32
}

// SoftmaxCrossEntropy: Logits [B, Classes], Targets [B] in [0, Classes), Loss [B] or nil, Grad [B, Classes] or nil
// (softmax - onehot, not divided by B), Probabilities [B, Classes] or nil. Targets may be nil where only Probabilities are asked for.
type SoftmaxCrossEntropy struct {
	Classes       int
	Logits        []float32
	Targets       []int32
	Loss          []float32
	Grad          []float32
	Probabilities []float32
}
