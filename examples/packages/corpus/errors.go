package corpus

import "errors"

// Errors of reading, wrapped with the file and, where there is one, the line. No data is returned with them.
var (
	// ErrNoIndex: this machine has no package index of its own, or next to none. A caller may fall back to Synthetic.
	ErrNoIndex = errors.New("this machine has no package index")
	// ErrEmpty: the input has no bytes, or no records.
	ErrEmpty = errors.New("empty")
	// ErrCut: the input ends within a record or within compressed data.
	ErrCut = errors.New("cut short")
	// ErrDamaged: compressed data does not unpack, or its checksum differs.
	ErrDamaged = errors.New("damaged")
	// ErrNotIndex: the input is no Packages index; the error names the line.
	ErrNotIndex = errors.New("not a Packages index")
	// ErrCompression: the input is compressed in a way that is not read here.
	ErrCompression = errors.New("unsupported compression")
	// ErrTooLarge: the input goes beyond a limit of this package.
	ErrTooLarge = errors.New("too large")
	// ErrTooFew: the records give no classifier to train: fewer than two sections, or nothing to train or test with.
	ErrTooFew = errors.New("too few packages")
)
