package schema

// Limits of the protocol. Each is checked before anything is allocated or read by it.
const (
	FrameBytesMax = 8 << 20 // of one frame
	bodyBytesMax  = 1 << 20 // of a JSON body
	keysMax       = 1 << 20 // in one frame
	SectionsMax   = tablesMax
	ChunksMax     = 1 << 20 // of one round or request
	DimMax        = 1 << 16 // values in a row
	tablesMax     = 1 << 12 // tables of a job
	WeightMax     = 1 << 53 // samples of a contribution, and steps of an optimizer
)

// Limits narrows the protocol's limits for one reader. Zero fields mean the protocol's own.
type Limits struct {
	FrameBytesMax int
	bodyBytesMax  int
	keysMax       int
}

func (l Limits) orDefault() Limits {
	l.FrameBytesMax = limit(l.FrameBytesMax, FrameBytesMax)
	l.bodyBytesMax = limit(l.bodyBytesMax, bodyBytesMax)
	l.keysMax = limit(l.keysMax, keysMax)
	return l
}

func limit(own, protocol int) int {
	if own <= 0 || own > protocol {
		return protocol
	}
	return own
}
