package chaos

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// Counts is the fate of the messages of one kind in one direction. Every message that was read counts in Messages, and
// in at most one other field.
type Counts struct {
	Messages, Bytes uint64 // read, and bytes of their payloads
	Dropped         uint64
	Repeated        uint64
	Delayed         uint64
	Reordered       uint64
	Flipped         uint64
	Spared          uint64 // would have been delayed or reordered, but too much was held back already
}

// Delivered returns the number of messages that were passed on, including repeats, once nothing is held back and no
// connection was cut.
func (c Counts) Delivered() uint64 { return c.Messages - c.Dropped + c.Repeated }

// Harmed returns the number of messages that were harmed.
func (c Counts) Harmed() uint64 { return c.Dropped + c.Repeated + c.Delayed + c.Reordered + c.Flipped }

// Add returns the sum of two counts.
func (c Counts) Add(o Counts) Counts {
	return Counts{c.Messages + o.Messages, c.Bytes + o.Bytes, c.Dropped + o.Dropped, c.Repeated + o.Repeated,
		c.Delayed + o.Delayed, c.Reordered + o.Reordered, c.Flipped + o.Flipped, c.Spared + o.Spared}
}

func (c Counts) String() string {
	return fmt.Sprintf("%d messages, %d dropped, %d repeated, %d delayed, %d reordered, %d with a bit changed, %d spared",
		c.Messages, c.Dropped, c.Repeated, c.Delayed, c.Reordered, c.Flipped, c.Spared)
}

// Totals counts what a Proxy did to connections.
type Totals struct {
	Connections uint64 // accepted
	Cut         uint64
	Refused     uint64
	Broken      uint64 // ended because their data was not the NATS protocol, or too large
}

// kinds are counted separately; all others count as Other.
var kinds = [...]string{Other, "dense", "sparse", "mean", "lookup", "rows", "pull", "ack", "ctl", "beat",
	"reduce", "module"}

const subjectRoot = "gradbus.v1."

// kindOf returns the kind in a subject, as one of kinds, and its index.
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

// counters are the Counts of one kind in one direction while they are written.
type counters struct {
	messages, bytes, dropped, repeated, delayed, reordered, flipped, spared atomic.Uint64
}

func (c *counters) read() Counts {
	return Counts{c.messages.Load(), c.bytes.Load(), c.dropped.Load(), c.repeated.Load(),
		c.delayed.Load(), c.reordered.Load(), c.flipped.Load(), c.spared.Load()}
}
