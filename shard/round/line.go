package round

import (
	"fmt"

	"gradbus/internal/planted"
	"gradbus/lane"
	"gradbus/schema"
)

// Line is a sequence of rounds that some trainers share, numbered from 0: those of batch 0, of batch 1, and so on.
//
// Rounds of batches [Batch-Ahead, Batch] may be open. A trainer that sends a frame of batch b holds every result of
// batch b-Ahead-1 from every owner, so the owner that takes the first frame of a batch knows that these are complete
// everywhere.
type Line struct {
	Whose  schema.Member // the trainer whose rounds they are; schema.All where all share them
	Dense  *Dense
	Sparse *Sparse     // nil where the owner has no rows
	Means  *RowResults // of Sparse: what is published of its rounds
	Node   lane.Node   // the root where a round is of all lanes; else none
	Ahead  schema.Batch
	// Stays is how many batches later a round is the first to write where a round's results lie; 0: any round may, of
	// another line too.
	Stays schema.Batch
	// Renumbered says that rounds have numbers of their own, and not those of their trainers' batches.
	Renumbered bool

	owner  schema.Member
	rounds int // of every batch here, each dense chunk counting as one

	first   schema.Batch // the first that there are rounds of
	batch   schema.Batch // the newest under way
	done    schema.Batch // every round of the batches before this one is closed
	open    []int        // rounds that are not closed, of batch b at b % len: Ahead+1
	weights []Weights    // of the same index
}

// begin opens the first batch.
func (l *Line) begin(first schema.Batch) {
	l.rounds = l.Dense.Chunks()
	if l.Sparse != nil {
		l.rounds++
	}
	l.open, l.weights = make([]int, l.Ahead+1), make([]Weights, l.Ahead+1)
	l.first, l.batch, l.done = first, first, first
	l.open[l.at(first)] = l.rounds
	l.settle()
}

func (l *Line) at(b schema.Batch) int { return int(b % (l.Ahead + 1)) }

// Batch is the newest batch under way.
func (l *Line) Batch() schema.Batch { return l.batch }

// Done is the number of batches of which every round has closed.
func (l *Line) Done() schema.Batch { return l.done }

// Oldest is the oldest batch whose rounds may be open.
func (l *Line) Oldest() schema.Batch { return max(l.first, l.batch-min(l.batch, l.Ahead)) }

// Rounds is how many rounds every batch has here.
func (l *Line) Rounds() int { return l.rounds }

// Open is how many rounds of all batches under way are open.
func (l *Line) Open() (n int) {
	for _, open := range l.open {
		n += open
	}
	return n
}

// Untouched reports whether no round of batch b, or of a later one, has closed.
func (l *Line) Untouched(b schema.Batch) bool {
	for ; b <= l.batch; b++ {
		if b+l.Ahead < l.batch || l.open[l.at(b)] < l.rounds {
			return false
		}
	}
	return true
}

// Weights are those of a batch under way.
func (l *Line) Weights(b schema.Batch) *Weights { return &l.weights[l.at(b)] }

// closed notes that a round of a batch has closed.
func (l *Line) closed(b schema.Batch) {
	l.open[l.at(b)]--
	l.settle()
}

func (l *Line) settle() {
	for l.done <= l.batch && l.open[l.at(l.done)] == 0 {
		l.done++
	}
}

// Reach says whether a frame may speak of batch b: of one under way, or of the next that may begin, fresh then being
// true and Advance to be called when the frame is taken.
func (l *Line) Reach(b schema.Batch) (fresh bool, refused *schema.FrameError) {
	switch {
	case b <= l.batch && b >= l.Oldest():
		return false, nil
	case b < l.batch:
		return false, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d is under way", b, l.batch)
	case b <= l.done+l.Ahead:
		return true, nil
	}
	oldest := min(l.done, l.batch)
	return false, schema.Refuse(schema.ReasonEarlyBatch,
		"batch %d: batch %d is under way with %d of %d rounds open on %s",
		b, oldest, l.open[l.at(oldest)], l.rounds, l.owner)
}

// ReachRows says whether rows of batch b may be asked for, and whether they are asked for early: then the round that
// the lookup waits for is under way. Who has contributed to a batch asks for rows of the next one, so a round that is
// over shows that a lookup of its batch came late.
func (l *Line) ReachRows(b schema.Batch) (early bool, refused *schema.FrameError) {
	if l.Sparse == nil {
		_, refused = l.Reach(b)
		return false, refused
	}
	switch closed := l.Sparse.Closed(); {
	case b < closed:
		return false, schema.Refuse(schema.ReasonStaleBatch, "rows of batch %d: they are of version %d", b, closed)
	case b <= closed+l.Ahead:
		return false, nil
	case b == l.Awaiting(l.done):
		return !planted.Is(planted.AnswerWithOldRows), nil
	}
	_, refused = l.Reach(b)
	return false, refused
}

// Awaiting is the batch whose rows are there when the sparse round of batch b is over.
func (l *Line) Awaiting(b schema.Batch) schema.Batch { return b + l.Ahead + 1 }

// Advance opens the rounds of the batches up to b, which Reach has found that may begin.
func (l *Line) Advance(b schema.Batch) {
	for l.batch < b {
		l.batch++
		at := l.at(l.batch)
		if l.open[at] != 0 {
			panic(fmt.Sprintf("round: batch %d begins while batch %d has %d open rounds", l.batch, l.batch-l.Ahead-1,
				l.open[at]))
		}
		l.open[at] = l.rounds
		l.weights[at].reset()
		l.settle()
	}
}

// kept is how many batches' results are kept. Who is slowest has contributed to batch d, the last that is complete
// here, and may lack the results of d-ahead and later ones; who is fastest contributes to d+1+ahead.
func kept[N ~uint64 | ~int](ahead N) N { return 2*ahead + 2 }

// pull says whether the result of a batch is kept, or may come to be. overtook says that the batch has begun, but not
// here.
func (l *Line) pull(b schema.Batch, begun bool) (overtook bool, refused *schema.FrameError) {
	kept := kept(l.Ahead) - 1
	if l.open[l.at(l.batch)] == l.rounds { // nothing of the newest batch has taken the place of what is oldest
		kept++
	}
	switch {
	case begun && b > l.batch && b <= l.done+l.Ahead:
		return true, nil // it has overtaken its sender's contributions: pulls and bulk come in on two connections
	case b > l.batch:
		return false, schema.Refuse(schema.ReasonEarlyBatch, "result of batch %d: batch %d is under way", b, l.batch)
	case b+kept < l.batch:
		return false, schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: those of batches %d to %d are kept",
			b, l.batch-kept, l.batch)
	}
	return false, nil
}

// waiting says whom the rounds of the oldest batch lack that lack anybody.
func (l *Line) waiting(contributors []Contributor, lanes int, rows schema.Bucket) Waiting {
	w := waitingFor(l.batch)
	for b := l.done; b <= l.batch; b++ {
		if w = WaitingFor(b, contributors, lanes, l.Dense, l.Sparse, rows); w.Rounds > 0 {
			return w
		}
	}
	return w
}

// Release gives back what open rounds hold. The Line must not be used afterwards.
func (l *Line) Release() {
	l.Dense.Release()
	if l.Sparse != nil {
		l.Sparse.Release()
	}
}
