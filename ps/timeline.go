package ps

import (
	"fmt"

	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// timeline is the batches of those who share their rounds: all trainers of a job, or, in async, one trainer, whose rounds
// are its own and wait for nobody.
//
// Rounds of batches [batch-ahead, batch] may be open. A trainer that sends a frame of batch b holds every result of batch
// b-ahead-1 from every shard, so whoever admits the first frame of a batch knows that these are complete everywhere.
type timeline struct {
	hosts  []int // who takes part, in the order of their lanes
	ahead  schema.Batch
	rounds int // of every batch here, each dense chunk counting as one

	batch   schema.Batch    // the newest under way
	done    schema.Batch    // every round of the batches before this one is closed
	open    []int           // rounds that are not closed, of batch b at b % len: ahead+1
	weights []round.Weights // of the same index

	dense  *round.Dense
	sparse *round.Sparse // nil where the shard has no rows
}

// begin opens batch 0.
func (l *timeline) begin() {
	l.rounds = l.dense.Chunks()
	if l.sparse != nil {
		l.rounds++
	}
	l.open, l.weights = make([]int, l.ahead+1), make([]round.Weights, l.ahead+1)
	l.open[0] = l.rounds
	l.settle()
}

func (l *timeline) at(b schema.Batch) int { return int(b % (l.ahead + 1)) }

func (l *timeline) weight(b schema.Batch) *round.Weights { return &l.weights[l.at(b)] }

// closed is told that a round of a batch has closed.
func (l *timeline) closed(b schema.Batch) {
	l.open[l.at(b)]--
	l.settle()
}

// closed tells a timeline that a round has closed, and counts it.
func (s *Shard) closed(l *timeline, b schema.Batch) {
	l.closed(b)
	s.rounds++
	s.newest = max(s.newest, l.done)
}

func (l *timeline) settle() {
	for l.done <= l.batch && l.open[l.at(l.done)] == 0 {
		l.done++
	}
}

// reach says whether a frame may speak of batch b: of one under way, or of the next that may begin, fresh then being true
// and advance to be called by whoever takes the frame.
func (s *Shard) reach(l *timeline, b schema.Batch) (fresh bool, refused *refusal) {
	switch {
	case b <= l.batch && b+l.ahead >= l.batch:
		return false, nil
	case b < l.batch:
		return false, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d is under way", b, l.batch)
	case b <= l.done+l.ahead:
		return true, nil
	}
	oldest := min(l.done, l.batch)
	return false, schema.Refuse(schema.ReasonEarlyBatch, "batch %d: batch %d is under way with %d of %d rounds open on %s",
		b, oldest, l.open[l.at(oldest)], l.rounds, s.member)
}

// reachRound is reach for a contribution: it says, too, which round of the timeline it belongs to. Whoever takes it calls takeUp.
func (s *Shard) reachRound(l *timeline, host int, b schema.Batch) (round schema.Batch, fresh bool, refused *refusal) {
	if s.groups != nil {
		return s.reachGroup(l, host, b)
	}
	fresh, refused = s.reach(l, b)
	return b, fresh, refused
}

// takeUp opens the round that a contribution belongs to, where it is the first of it, or of its trainer's request.
func (s *Shard) takeUp(l *timeline, host int, b schema.Batch, fresh bool) {
	switch {
	case s.groups == nil:
		s.advance(l, b)
	case fresh:
		s.join(l, host)
	}
}

// advance opens the rounds of the batches up to b, which reach has found that may begin. In sync, where only one batch is
// open at a time, it makes version b the one that lookups see.
func (s *Shard) advance(l *timeline, b schema.Batch) {
	for l.batch < b {
		if s.place.Plan.DeferredCommit() {
			s.commitRows()
		}
		l.batch++
		at := l.at(l.batch)
		if l.open[at] != 0 {
			panic(fmt.Sprintf("ps: batch %d begins while batch %d has %d open rounds", l.batch, l.batch-l.ahead-1, l.open[at]))
		}
		l.open[at] = l.rounds
		l.weights[at].Reset()
		l.settle()
	}
}

// makeTimelines divides the shard's rounds among those who share them. Whoever keeps to a timeline of its own closes its
// rounds with its own lanes.
func (s *Shard) makeTimelines(chunks []round.Chunk) error {
	all := make([]int, len(s.hosts))
	for i := range all {
		all[i] = i
	}
	groups := [][]int{all}
	if s.place.Plan.PerTrainer() {
		groups = nil
		for i := range all {
			groups = append(groups, all[i:i+1])
		}
	}
	for _, group := range groups {
		l := timeline{hosts: group, ahead: schema.Batch(s.place.Plan.RoundsAhead())}
		var complete func(schema.Batch, []lane.Node) bool
		if g := s.groups; g != nil {
			l.ahead = schema.Batch(groupsOpen(s.job) - 1)
			complete = func(b schema.Batch, nodes []lane.Node) bool { return g.complete(b, nodes, s.hosts) }
		}
		count := s.job.Lanes
		if len(group) < len(all) {
			count = s.hosts[group[0]].Count
		}
		var err error
		l.dense, err = round.NewDense(round.DenseConfig{
			Backend: s.backend, Lanes: s.job.Lanes, Count: count, Complete: complete, Ahead: int(l.ahead),
			AtClose: complete != nil || s.sumsAtClose(),
			Results: s.dense.results, Held: s.held, Chunks: chunks, Place: s.place,
		})
		if err != nil {
			return err
		}
		if s.sparse.exists {
			l.sparse = round.NewSparse(round.SparseConfig{
				Backend: s.backend, Lanes: s.job.Lanes, Count: count, Ahead: int(l.ahead), AtClose: s.sumsAtClose(),
				DType: s.place.Plan.DType, Held: s.held, Tables: s.place.SumTables(s.index),
			})
		}
		l.begin()
		s.lines = append(s.lines, l)
	}
	return nil
}

// line is the timeline of the host-th trainer.
func (s *Shard) line(host int) *timeline {
	if len(s.lines) == 1 {
		return &s.lines[0]
	}
	return &s.lines[host]
}

// Waiting is what an open batch lacks. In async nobody ever waits for another.
type Waiting = round.Waiting

// Waiting says whom the rounds of the oldest batch that waits for anybody wait for.
func (s *Shard) Waiting() Waiting {
	w := Waiting{Batch: s.Batch()}
	if s.place.Plan.PerTrainer() {
		return w
	}
	l := &s.lines[0]
	if s.groups != nil {
		return s.waitingForGroup(l)
	}
	for b := l.done; b <= l.batch; b++ {
		if w = round.WaitingFor(b, s.hosts, s.job.Lanes, l.dense, l.sparse, s.sparse.bucket); w.Rounds > 0 {
			return w
		}
	}
	return w
}
