package cuda

import (
	"errors"
	"fmt"
)

// Every error of a Backend wraps one of these. The outputs of the call are untouched, and the backend stays usable,
// unless the sentence says otherwise.
var (
	// ErrUnsupported: the backend lacks the operation, the mode or the type; another backend may have it.
	ErrUnsupported = errors.New("unsupported")
	// ErrShape: the lengths of the arguments do not fit together.
	ErrShape = errors.New("bad shape")
	// ErrArgument: a number that is not a length is wrong: a mode, a weight, a hyperparameter.
	ErrArgument = errors.New("bad argument")
	// ErrID: an id, index key or target is out of range. The error is an *IDError, which names the first one.
	ErrID = errors.New("id out of range")
	// ErrOrder: keys that must be strictly ascending are not.
	ErrOrder = errors.New("keys out of order")
	// ErrNode: the terms of a sum across lanes are not disjoint nodes of the lane tree in lane order.
	ErrNode = errors.New("bad tree nodes")
	// ErrOverlap: an output shares memory with another argument that it may not share with.
	ErrOverlap = errors.New("overlapping arguments")
	// ErrNonFinite: a gradient value is NaN or Inf and the call was to refuse such. The error is a *NonFiniteError.
	ErrNonFinite = errors.New("value not finite")
	// ErrMemory: the memory asked for is not to be had.
	ErrMemory = errors.New("out of memory")
	// ErrClosed: the backend was closed.
	ErrClosed = errors.New("backend closed")
	// ErrDevice: the device failed or was lost. Outputs are undefined and the backend answers ErrDevice from now on.
	ErrDevice = errors.New("device failed")
	// ErrNoBackend: Open cannot give the backend asked for; the text says why and what would work.
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

// NonFiniteError says where a gradient stopped being finite. It wraps ErrNonFinite.
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
