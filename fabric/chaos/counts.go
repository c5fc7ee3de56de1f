package chaos

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// Counts is what happened to the messages of one kind in one direction. Every message that was read counts in Messages,
// and in one more at most.
type Counts struct {
	Messages, Bytes uint64 // read, and bytes of their payloads
	Dropped         uint64
	Repeated        uint64
	Delayed         uint64
	Reordered       uint64
	Flipped         uint64
	Spared          uint64 // would have been delayed or put behind, but too much was held back already
}

// Delivered is how many messages were passed on, repetitions included, once nothing is held back and no connection was
// cut.
func (c Counts) Delivered() uint64 { return c.Messages - c.Dropped + c.Repeated }

// Harmed is how many messages suffered something.
func (c Counts) Harmed() uint64 { return c.Dropped + c.Repeated + c.Delayed + c.Reordered + c.Flipped }

// Add is the sum of two counts.
func (c Counts) Add(o Counts) Counts {
	return Counts{c.Messages + o.Messages, c.Bytes + o.Bytes, c.Dropped + o.Dropped, c.Repeated + o.Repeated,
		c.Delayed + o.Delayed, c.Reordered + o.Reordered, c.Flipped + o.Flipped, c.Spared + o.Spared}
}

func (c Counts) String() string {
	return fmt.Sprintf("%d messages, %d dropped, %d repeated, %d delayed, %d reordered, %d with a bit changed, %d spared",
		c.Messages, c.Dropped, c.Repeated, c.Delayed, c.Reordered, c.Flipped, c.Spared)
}

// Totals is what a Proxy did to connections.
type Totals struct {
	Connections uint64 // that were let through
	Cut         uint64
	Refused     uint64
	Broken      uint64 // ended because what they carried was not the NATS protocol, or too large
}

// kinds are those that are counted apart; what is none of them counts as Other.
var kinds = [...]string{Other, "dense", "sparse", "mean", "lookup", "rows", "pull", "ack", "ctl", "beat",
	"reduce", "module"}

const subjectRoot = "gradbus.v1."

// kindOf is the kind that a subject names, as one of kinds, and its index.
func kindOf(subject []byte) int {
	rest, ok := strings.CutPrefix(string(subject), subjectRoot)
	if !ok {
		return 0
	}
	for range 2 { // job, from
		_, rest, _ = strings.Cut(rest, ".")
	}
	kind, _, _ := strings.Cut(rest, ".")
	for i, known := range kinds {
		if known == kind {
			return i
		}
	}
	return 0
}

// counters are the Counts of one kind in one direction, as they are written.
type counters struct {
	messages, bytes, dropped, repeated, delayed, reordered, flipped, spared atomic.Uint64
}

func (c *counters) read() Counts {
	return Counts{c.messages.Load(), c.bytes.Load(), c.dropped.Load(), c.repeated.Load(),
		c.delayed.Load(), c.reordered.Load(), c.flipped.Load(), c.spared.Load()}
}
