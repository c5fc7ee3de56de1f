package exchange

import (
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// Config says what a session may ask for.
type Config struct {
	Rounds  [][]Round // [owner] in the order in which trainers send them, and results come
	HasRows []bool    // [owner] the last of its rounds is over rows
	Open    int       // batches that may be open at once; at least 1

	// Shared says that results are those of all trainers, so that an owner closes rounds in the order in which all send.
	Shared bool
	// AnyWeight says that the rounds of a batch may be over different samples, OwnRows that those over rows may.
	AnyWeight, OwnRows bool
	Askers             int // of rows: how long answers take is known of all of them together
	Modules            int // askers behind these, each with times of its own

	// RetryAfter is the time for which an answer is awaited before the duration of answers is known.
	RetryAfter time.Duration
}

// Exchange is a session's part of its batches.
type Exchange struct {
	config Config

	batches   []batch      // batch b at b % len
	complete  schema.Batch // batches before this one are
	begun     schema.Batch // batches before this one have begun; complete <= begun <= complete + len(batches)
	finishing bool         // Full has given the oldest open batch
	counts    Counts
	seen      uint64 // of counts.Taken, when it was last asked what is missing

	asks       []ask           // [asker]
	numbers    schema.Sequence // the last that was given
	roundTrips []fabric.RoundTrips

	wait wait
	lost bool // results may be: a connection is back
}

// New is an exchange before the first batch.
func New(c Config) *Exchange {
	x := &Exchange{config: c, batches: make([]batch, c.Open), asks: make([]ask, c.Askers+c.Modules)}
	for i := range x.batches {
		x.batches[i].owners = make([]missing, len(c.Rounds))
		for owner, rounds := range c.Rounds {
			x.batches[i].owners[owner].results = make([]result, len(rounds))
		}
	}
	most := 8 * c.RetryAfter
	x.roundTrips = append(x.roundTrips, fabric.RoundTrips{First: c.RetryAfter / 4, Slack: answerSlack, Max: most})
	for range c.Modules { // how long a shard computes varies
		x.roundTrips = append(x.roundTrips, fabric.RoundTrips{First: c.RetryAfter, Slack: c.RetryAfter, Max: most})
	}
	return x
}
