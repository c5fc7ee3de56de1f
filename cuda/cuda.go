package cuda

import (
	"errors"
	"fmt"
)

// Mode is the way in which a bag of rows is pooled.
type Mode uint32

const (
	Sum  Mode = 0 // out = sum of rows, each times its weight where weights are given
	Mean Mode = 1 // out = (sum of rows) / number of rows
	Max  Mode = 2 // out = the largest of each column; NaN passes on, of equals the first is taken
)

// NoPadding is the padding id of calls without one.
const NoPadding int64 = -1

// NonFinite is the treatment of gradient values that are NaN or Inf when the optimizer would use them, that is after
// the sum and the division.
type NonFinite uint32

const (
	Ignore NonFinite = 0 // apply them
	Count  NonFinite = 1 // apply them, and say in Report.NonFinite how many there are
	Refuse NonFinite = 2 // refuse the whole call: ErrNonFinite
)

// Report has further results of a call. Pass a pointer to one if they are needed.
type Report struct {
	skipped   int64 // ids out of range that SkipBadIDs skipped
	nonFinite int64 // see NonFinite; counted by Count and Refuse
}

// Backend does the arithmetic. Every method is synchronous, accepts Go memory, and leaves its outputs untouched when it
// returns an error (see the errors below). Every backend gives the same bits: float32 accumulation in canonical order
// (doc.go), true division, no fused multiply-add, one rounding to nearest even where less than float32 is stored.
// Methods may be called from several goroutines at once.
type Backend interface {
	// Name returns "go", "cpu" or "cuda"; ISA returns the instruction set ("portable", "baseline", "avx2", "avx512",
	// "sm_90").
	Name() string
	ISA() string
	// Threads returns the number of threads that one call may use.
	Threads() int

	// BagForward pools rows into bags: Out[b] = mode over i in [Offsets[b], Offsets[b+1]) of Weights[i] * Rows[IDs[i]].
	BagForward(BagForward) error
	// BagBackward is the gradient of BagForward, coalesced: for each distinct id, ascending, the sum over its positions
	// (ascending, canonical order) of GradOut[bag of position], divided by the bag's length first where the mode is Mean,
	// times Weights[position] first where they are given, and only where ArgMax names the position where it is Max.
	// It returns the number n of distinct ids: Keys[:n] and Out[:n*Dim] are written.
	BagBackward(BagBackward) (int, error)
	// Coalesce sums the rows of equal keys: distinct keys ascending, rows summed in order of position, canonically.
	Coalesce(Coalesce) (int, error)
	// Merge adds coalesced terms of disjoint tree nodes along the lane tree: union of keys ascending; a term without a
	// key is skipped for that key.
	Merge(Merge) (int, error)
	// ApplyRows runs the optimizer on chosen rows of a table.
	ApplyRows(ApplyRows) error
	// CoalesceApply is Coalesce and ApplyRows in one pass, with the bits of the two in turn. It returns the number of
	// distinct keys.
	CoalesceApply(CoalesceApply) (int, error)
	// ApplyDense runs the optimizer on a dense tensor, from Param into Out.
	ApplyDense(ApplyDense) error
	// Average adds terms of disjoint tree nodes along the lane tree and divides once by Weight.
	Average(Average) error
	// AverageApply is Average and ApplyDense in one pass, with the bits of the two in turn.
	AverageApply(AverageApply) error
	// MatMul is C = op(A) x op(B) (+ Bias), canonical order over K.
	MatMul(MatMul) error
	// SoftmaxCrossEntropy computes the loss of each sample and the gradient with respect to the logits, undivided.
	SoftmaxCrossEntropy(SoftmaxCrossEntropy) error
	// FirstNonFinite returns the index of the first NaN or Inf of a vector of floats, or -1.
	FirstNonFinite(values Vector) int
	// Gather copies chosen rows of a table.
	Gather(Gather) error
	// Copy copies from to to, which are of equal type and length and share no memory.
	Copy(to, from Vector) error

	// NewBatch returns an empty batch of commands for this backend; Submit runs it in a single call.
	NewBatch() *Batch
	// Submit runs the batch's commands in order and stops at the first that fails, which the error names. It allocates
	// nothing; the batch may be submitted again.
	Submit(*Batch) error

	// Alloc returns zeroed memory outside the Go heap, aligned to 64 bytes, on huge pages if there are some. The caller
	// frees it.
	Alloc(float32s int) (*Buffer, error)
	Close() error
}

// BagForward: Rows [R, Dim]; IDs [N] int32 or int64 in [0, R); Offsets [B+1] int32 or int64, 0 first, never falling, N
// last, or, with OpenOffsets, [B] where the last bag ends at N; Weights [N] float32 or none, with Sum only; Out [B,
// Dim] float32 or of Rows' type; ArgMax [B, Dim] int32 or none, with Max only: positions among IDs, -1 in an empty bag.
// Positions with id Padding are neither read nor counted. An empty bag is a zero row. N < 2^31.
type BagForward struct {
	Dim         int
	Mode        Mode
	Padding     int64
	SkipBadIDs  bool // skip and count ids out of range, as if they were padding, instead of refusing the call
	OpenOffsets bool
	Rows        Vector
	IDs         Vector
	Offsets     Vector
	Weights     Vector
	Out         Vector
	ArgMax      Vector
	Report      *Report
}

// Gather: Out[i] = Rows[IDs[i]], bit for bit. Rows [R, Dim]; IDs [n] int64 or int32 in [0, R); Out [n, Dim] of Rows'
// type, sharing memory with nothing. n < 2^31.
type Gather struct {
	Dim  int
	Rows Vector
	IDs  Vector
	Out  Vector
}

// BagBackward: GradOut [B, Dim]; R the number of rows that ids may name; Keys int64 with room for the distinct ids (N
// suffices); Out room for as many rows as Keys, float32 or of GradOut's type. The rest as in BagForward; ArgMax is
// BagForward's and must be given with Max.
type BagBackward struct {
	Dim         int
	Mode        Mode
	Padding     int64
	SkipBadIDs  bool
	OpenOffsets bool
	R           int64
	IDs         Vector
	Offsets     Vector
	Weights     Vector
	ArgMax      Vector
	GradOut     Vector
	Keys        Vector
	Out         Vector
	Report      *Report
}

// Coalesce: Keys [N] uint64, int64 or int32, not negative; Rows [N, Dim]; OutKeys [>= distinct] of Keys' type, OutRows
// [>= distinct, Dim] float32 or of Rows' type. Each sum is divided once by Weight; 0 leaves it undivided.
type Coalesce struct {
	Dim     int
	Weight  float32
	Keys    Vector
	Rows    Vector
	OutKeys Vector
	OutRows Vector
}

// RowsTerm is one coalesced contribution: strictly ascending Keys [n] uint64, Rows [n, Dim], of the tree node over
// lanes [First, First+Count).
type RowsTerm struct {
	First, Count uint16
	Keys         Vector
	Rows         Vector
}

// Merge: Terms disjoint nodes of the tree over Lanes lanes, in lane order, all rows of one type; OutKeys uint64,
// OutRows float32 or of the terms' type. Each sum is divided once by Weight; 0 leaves it undivided.
type Merge struct {
	Dim     int
	Lanes   int
	Weight  float32
	Terms   []RowsTerm
	OutKeys Vector
	OutRows Vector
}

// Steps records which steps a row has had. Rows are lazy: those without a gradient do not move. With Exact a row first
// catches up on the steps that it missed, each as if with a gradient of zero, so that the table is bit for bit what
// dense steps make of it (not for Adam, AdamW and FTRL). Last [R] int64 is the number of the step that wrote each row,
// 0 for none; LastAfter, laid out as the operation's Out rows, gets Step, which counts from 1. Both may be absent:
// every row then counts as having had a step.
type Steps struct {
	Last      Vector
	LastAfter Vector
	Step      int64
	Exact     bool
}

// Slot is one named state of an optimizer. Before is of all rows of the table, or of the dense tensor; After is laid
// out as the operation's Out, and of Before's type.
type Slot struct {
	Name          string
	Before, After Vector
}

// ApplyRows: Table [R, Dim]; Index [n] int64 or int32, rows in [0, R); Grad [n, Dim] undivided, divided once by Weight;
// First [n] uint8, nonzero where the row has had no step yet, or none. Out is compact [n, Dim], of Table's type,
// sharing memory with nothing; or it is Table itself, with every slot's After its Before, LastAfter Last, and Index
// strictly ascending. Slots are those that the optimizer names.
type ApplyRows struct {
	Dim        int
	Optimizer  Optimizer
	Clip       Clip
	Weight     float32
	SkipBadIDs bool // rows of a bad index are neither read nor written
	NonFinite  NonFinite
	Slots      []Slot
	Steps      Steps
	Table      Vector
	Index      Vector
	First      Vector
	Grad       Vector
	Out        Vector
	Report     *Report
}

// CoalesceApply: Keys [N] int64, int32 or uint64, rows in [0, R); Rows [N, Dim]; OutKeys int64 [>= distinct], Out
// [>= distinct, Dim], both compact; or Out is Table itself, when OutKeys may be none. The rest as in ApplyRows.
type CoalesceApply struct {
	Dim        int
	Optimizer  Optimizer
	Clip       Clip
	Weight     float32
	SkipBadIDs bool
	NonFinite  NonFinite
	Slots      []Slot
	Steps      Steps
	Table      Vector
	Keys       Vector
	Rows       Vector
	OutKeys    Vector
	Out        Vector
	Report     *Report
}

// ApplyDense: all [n], of n/Dim rows; Dim matters to row-wise optimizers only and may be 0, one row. Out may be Param,
// and a slot's After its Before.
type ApplyDense struct {
	Dim       int
	Optimizer Optimizer
	Clip      Clip // not ClipRow
	Weight    float32
	First     bool // no step before this one
	NonFinite NonFinite
	Slots     []Slot
	Param     Vector
	Grad      Vector
	Out       Vector
	Report    *Report
}

// Term is one dense contribution of the tree node over lanes [First, First+Count).
type Term struct {
	First, Count uint16
	Values       Vector
}

// Average: Terms disjoint nodes of the tree over Lanes lanes, in lane order, each [n] and of one type; Out [n],
// float32, or of the terms' type, or of any type of floats where the terms are float32, which may be one of the terms.
// Weight 1 gives the plain sum (division by one is exact).
type Average struct {
	Lanes  int
	Weight float32
	Terms  []Term
	Out    Vector
}

// AverageApply: as Average and ApplyDense; the terms' sum is the gradient.
type AverageApply struct {
	Dim       int
	Lanes     int
	Optimizer Optimizer
	Clip      Clip // not ClipRow
	Weight    float32
	First     bool
	NonFinite NonFinite
	Terms     []Term
	Slots     []Slot
	Param     Vector
	Out       Vector
	Report    *Report
}

// MatMul: A is [M, K] row-major ([K, M] where TransA), B is [K, N] ([N, K] where TransB), Bias [N] or none, C [M, N];
// all float32.
type MatMul struct {
	M, N, K        int
	TransA, TransB bool
	A, B, Bias, C  Vector
}

// SoftmaxCrossEntropy: Logits [B, Classes], Targets [B] int32 in [0, Classes), Loss [B] or none, Grad [B, Classes] or
// none (softmax - onehot, not divided by B), Probabilities [B, Classes] or none. Targets may be none where only
// Probabilities are asked for.
type SoftmaxCrossEntropy struct {
	Classes       int
	Logits        Vector
	Targets       Vector
	Loss          Vector
	Grad          Vector
	Probabilities Vector
}

// Every error of a Backend wraps one of these. The outputs of the call are untouched, and the backend stays usable,
// unless the sentence says otherwise.
var (
	// ErrUnsupported reports that the backend does not have the operation, the mode or the type; another backend may
	// have it.
	ErrUnsupported = errors.New("unsupported")
	// ErrShape reports that the lengths of the arguments do not fit together.
	ErrShape = errors.New("bad shape")
	// ErrArgument reports an invalid number that is not a length: a mode, a weight, a hyperparameter.
	ErrArgument = errors.New("bad argument")
	// ErrID reports that an id, index key or target is out of range. The error is an *IDError, which names the first
	// one.
	ErrID = errors.New("id out of range")
	// ErrOrder reports keys that are not strictly ascending.
	ErrOrder = errors.New("keys out of order")
	// ErrNode reports that the terms of a sum across lanes are not disjoint nodes of the lane tree in lane order.
	ErrNode = errors.New("bad tree nodes")
	// ErrOverlap reports that an output shares memory with another argument that it must not share with.
	ErrOverlap = errors.New("overlapping arguments")
	// ErrNonFinite reports that a gradient value is NaN or Inf in a call that refuses them. The error is a
	// *NonFiniteError.
	ErrNonFinite = errors.New("value not finite")
	// ErrMemory reports that memory could not be allocated.
	ErrMemory = errors.New("out of memory")
	// ErrClosed reports that the backend was closed.
	ErrClosed = errors.New("backend closed")
	// ErrDevice reports that the device failed or was lost. Outputs are undefined, and all later calls return
	// ErrDevice.
	ErrDevice = errors.New("device failed")
	// ErrNoBackend reports that Open cannot provide the requested backend; the text says why and what would work.
	ErrNoBackend = errors.New("backend not available")
)

// idError says which id was out of range. It wraps ErrID.
type idError struct {
	op       string // the operation, for example "bag forward"
	position int    // of the first bad id among the ids of the call
	id       int64
	limit    int64 // ids must be in [0, Limit)
}

func (e *idError) Error() string {
	return fmt.Sprintf("%s: id %d at position %d is not in [0,%d)", e.op, e.id, e.position, e.limit)
}

// Unwrap makes errors.Is(err, ErrID) true.
func (e *idError) Unwrap() error { return ErrID }

// NonFiniteError reports where a gradient is not finite. It wraps ErrNonFinite.
type NonFiniteError struct {
	op       string // the operation, for example "apply rows"
	position int64  // of the first value that is NaN or Inf: the gradient's row times dim plus the column
	count    int64  // how many there are
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("%s: %d gradient values are not finite, the first at position %d", e.op, e.count, e.position)
}

// Unwrap makes errors.Is(err, ErrNonFinite) true.
func (e *NonFiniteError) Unwrap() error { return ErrNonFinite }

// argumentError is an ErrArgument with the operation and what is wrong.
func argumentError(op, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", op, ErrArgument, fmt.Sprintf(format, args...))
}

// shapeError is an ErrShape with the operation and what is wrong.
func shapeError(op, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", op, ErrShape, fmt.Sprintf(format, args...))
}
