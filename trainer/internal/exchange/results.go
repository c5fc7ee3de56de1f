package exchange

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// Round names a round of an owner.
type Round struct {
	Bucket schema.Bucket
	Chunk  schema.Chunk
}

// Pull is a result to ask an owner for.
type Pull struct {
	Owner int
	Batch schema.Batch
	Round
}

// Result is a result, or a part of one, that has arrived.
type Result struct {
	Owner       int
	Round       int            // of the owner's rounds; -1 where it has no such round
	Batch       schema.Batch   // of this trainer's count
	Version     schema.Version // that the owners call what came of it
	Weight      float64        // samples that it is over
	Part, Parts int            // of the result, which may come in several frames where it is over rows
	Pulled      bool           // it answers a pull
	ByRows      bool           // rows of the next version say that the round is over, in place of a result
}

// batch is the received part of one batch.
type batch struct {
	owners  []missing
	open    int // results that are not in place
	weighed bool
	weight  float64 // of the batch over all lanes, once weighed
	version schema.Version
}

// missing is the received part of one owner's results.
type missing struct {
	results []result // [round]
	low     int      // first that is not in place
}

// result is the received part of one result.
type result struct {
	parts
	pulled bool // asked for since the last probe
}

// Counts are of results since the exchange was made.
type Counts struct {
	Taken    uint64
	ByRows   uint64 // of these, rounds that rows said to be over
	Repeated uint64 // that were there already, of a batch that is over, or before their turn
}

// ErrNoRound: a result is of a round that its owner does not have.
var ErrNoRound = errors.New("no such round there")

func (x *Exchange) of(b schema.Batch) *batch { return &x.batches[b%schema.Batch(len(x.batches))] }

// Begin opens a batch, the one after that which was opened last. The one that used its place is complete.
func (x *Exchange) Begin(b schema.Batch) {
	o := x.of(b)
	o.open, o.weighed, o.weight, o.version = 0, false, 0, 0
	for i := range o.owners {
		m := &o.owners[i]
		m.low = 0
		o.open += len(m.results)
		for j := range m.results {
			m.results[j].reset()
			m.results[j].pulled = false
		}
	}
	if b > x.begun { // none before it was begun here
		x.complete = b
	}
	x.begun = b + 1
}

// Claim reports whether the caller must put a result in place: no other caller is told so. It fails for a result that a
// correct owner cannot have sent.
func (x *Exchange) Claim(r Result) (fresh bool, err error) {
	if r.Batch < x.complete || r.Batch >= x.begun {
		x.repeated(&r)
		return false, nil
	}
	b := x.of(r.Batch)
	if r.Owner >= len(b.owners) || r.Round < 0 {
		return false, ErrNoRound
	}
	rows := x.overRows(r.Owner, r.Round)
	if err := x.checkWeight(b, r.Weight, rows); err != nil {
		return false, err
	}
	if rows || x.inTurn(&r) {
		if fresh, err = b.owners[r.Owner].results[r.Round].claim(r.Part, r.Parts); err != nil {
			return false, err
		}
	}
	if !fresh {
		x.repeated(&r)
		return false, nil
	}
	x.weigh(b, r.Weight, rows)
	return true, nil
}

func (x *Exchange) repeated(r *Result) {
	if !r.ByRows {
		x.counts.Repeated++
	}
}

// inTurn reports whether the same round of the batch before is in place. Else its result was lost, and both are asked
// for again.
func (x *Exchange) inTurn(r *Result) bool {
	return r.Batch == x.complete || x.of(r.Batch - 1).owners[r.Owner].results[r.Round].whole()
}

// Place notes that a claimed result is in place. whole says that nothing of the result is missing; lost are results
// that must have been lost: all before it, and where it was pulled all others too, since it left after whatever had
// been published by then. Each is named once until the next probe: what is open yet is asked for in vain.
func (x *Exchange) Place(r Result) (whole bool, lost []Pull) {
	b := x.of(r.Batch)
	m := &b.owners[r.Owner]
	x.counts.Taken++
	b.version = max(b.version, r.Version)
	if !m.results[r.Round].place() {
		return false, nil
	}
	b.open--
	for m.low < len(m.results) && m.results[m.low].whole() {
		m.low++
	}
	if r.ByRows { // which go another way, and may be here first
		x.counts.ByRows++
		return true, nil
	}
	upTo := r.Round
	if r.Pulled && x.config.Shared {
		upTo = len(m.results)
	}
	for i := m.low; i < upTo; i++ {
		if o := &m.results[i]; !o.claimed() && !o.pulled {
			o.pulled = true
			lost = append(lost, Pull{r.Owner, r.Batch, x.config.Rounds[r.Owner][i]})
		}
	}
	return true, lost
}

// checkWeight checks that the rounds of a batch are over the same samples.
func (x *Exchange) checkWeight(b *batch, weight float64, rows bool) error {
	if !b.weighed || b.weight == weight || x.config.AnyWeight || rows && x.config.OwnRows {
		return nil
	}
	return fmt.Errorf("over %v samples: other rounds of the batch are over %v", weight, b.weight)
}

func (x *Exchange) weigh(b *batch, weight float64, rows bool) {
	if !rows || !x.config.OwnRows {
		b.weighed, b.weight = true, weight
	}
}

// overRows reports whether a round is over rows: the last one of its owner's.
func (x *Exchange) overRows(owner, round int) bool {
	return x.config.HasRows[owner] && round == len(x.config.Rounds[owner])-1
}

// Full gives the oldest open batch where all of its results are in place, and to no second caller. The caller does what
// waits for all of them, and then calls Finish: only then the batch is complete, and the next may be.
func (x *Exchange) Full() (b schema.Batch, weight float64, full bool) {
	if x.finishing || x.complete >= x.begun || x.of(x.complete).open > 0 {
		return 0, 0, false
	}
	x.finishing = true
	return x.complete, x.of(x.complete).weight, true
}

// Finish ends the batch that Full gave.
func (x *Exchange) Finish() {
	x.finishing = false
	x.complete++
}

// probe are the results to pull now: of every owner the oldest of the oldest open batch, which proves what was lost if
// it is answered, or all of all batches where everything may have been lost.
func (x *Exchange) probe(all bool) (pulls []Pull) {
	for b := x.complete; b < x.begun && (all || b == x.complete); b++ {
		for owner := range x.of(b).owners {
			m, found := &x.of(b).owners[owner], false
			for i := m.low; i < len(m.results); i++ {
				o := &m.results[i]
				if o.pulled = false; o.claimed() || found && !all {
					continue
				}
				o.pulled, found = true, true
				pulls = append(pulls, Pull{owner, b, x.config.Rounds[owner][i]})
			}
		}
	}
	return pulls
}

// Completed is the number of batches that are complete: the newest version that is whole.
func (x *Exchange) Completed() schema.Version { return schema.Version(x.complete) }

// Began says that a batch is under way: begun, though maybe complete, and not followed by as many as may be open.
func (x *Exchange) Began(b schema.Batch) bool {
	return b < x.begun && b+schema.Batch(len(x.batches)) >= x.begun
}

// Outcome is the number of samples of a complete batch, over all trainers, and which version it made. Not more than may
// be open have begun after it.
func (x *Exchange) Outcome(b schema.Batch) (weight float64, version schema.Version) {
	return x.of(b).weight, x.of(b).version
}

// Missing is the number of results of an open batch that are not in place.
func (x *Exchange) Missing(b schema.Batch) int { return x.of(b).open }

// Counts are those so far.
func (x *Exchange) Counts() Counts { return x.counts }
