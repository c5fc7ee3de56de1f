package trainer

import (
	"context"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

const (
	// probeAfter is how long at least nothing may come before an owner is asked for its oldest missing result. Its answer
	// proves that results were lost; without one the round is still open, and there was nothing to lose.
	probeAfter = 25 * time.Millisecond
	// answerSlack is how much later than usual an answer may be: a busy machine's scheduling takes as long.
	answerSlack = 50 * time.Millisecond
)

// answerTimes is how long answers to lookups and scans are waited for before they are asked for again, until they are known: a quarter
// of RetryAfter; and eight times that at most.
func answerTimes(retryAfter time.Duration) fabric.RoundTrips {
	return fabric.RoundTrips{First: retryAfter / 4, Slack: answerSlack, Max: 8 * retryAfter}
}

// answerTime is how long to wait for the next answer: as the estimate has it, but four times the mean at least, up to RetryAfter. An answer
// is large and seldom lost, and a shard that is busy for a moment gives it late.
func (s *Session) answerTime() time.Duration {
	return max(s.answers.Timeout(), min(4*s.answers.Mean(), s.config.RetryAfter))
}

// answer waits for the answer to what was asked at a time, first so long, and asks again where it has not come or the connection is back. times takes in how
// long the answer took, where it was asked for once, so that it is known which request it answers.
func (s *Session) answer(ctx context.Context, ready <-chan struct{}, times *fabric.RoundTrips, first time.Duration, asked time.Time, again func() error) error {
	repeated := false
	err := s.wait(ctx, ready, first, func(lost bool) (bool, error) {
		if repeated = true; !lost {
			times.Late()
		}
		return false, again()
	})
	if err == nil && !repeated {
		times.Took(time.Since(asked))
	}
	return err
}

// moduleTimes is answerTimes for a module's answers: RetryAfter, and as much above what they take, since how long a shard computes varies.
func moduleTimes(retryAfter time.Duration) fabric.RoundTrips {
	return fabric.RoundTrips{First: retryAfter, Slack: retryAfter, Max: 8 * retryAfter}
}

// probeTime is how long to wait for results before owners are asked for them: as long as the farthest takes to say anything.
func (s *Session) probeTime() time.Duration {
	wait := time.Duration(probeAfter)
	for _, l := range s.links {
		if l.outbox != nil {
			wait = max(wait, l.outbox.Usual())
		}
	}
	return min(wait, 8*s.config.RetryAfter)
}

// gaps are the rounds of one owner in the order in which trainers send them, which is that in which they close but for
// what was lost, and in which their results arrive. So a result that comes before an earlier one tells of a loss at once.
type gaps struct {
	rounds []roundName
	there  []bool
	asked  []bool // since the last probe
	low    int    // first that is not there
}

// roundName is what a pull asks for.
type roundName struct {
	bucket schema.Bucket
	chunk  schema.Chunk
}

func newGaps(flat *flatSpace, sparse []rowOwner) (of []gaps, at []int) {
	of, at = make([]gaps, flat.place.Owners()), make([]int, len(flat.rounds))
	for i := range flat.rounds {
		d := &flat.rounds[i]
		at[i] = len(of[d.owner].rounds)
		of[d.owner].rounds = append(of[d.owner].rounds, roundName{d.bucket, d.chunk})
	}
	for _, s := range sparse {
		of[s.owner].rounds = append(of[s.owner].rounds, roundName{s.bucket, 0})
	}
	for i := range of {
		of[i].there, of[i].asked = make([]bool, len(of[i].rounds)), make([]bool, len(of[i].rounds))
	}
	return of, at
}

// missing reports whether a result is.
func (g *gaps) missing() bool { return g.low < len(g.there) }

func (g *gaps) reset() {
	clear(g.there)
	clear(g.asked)
	g.low = 0
}

// came notes the result of a round, and names those that must have been lost: all before it, and where it was pulled all
// others too, since it left after whatever had been published by then. What is open yet is asked for in vain, once.
func (g *gaps) came(round int, pulled bool) []roundName {
	g.there[round] = true
	for g.low < len(g.there) && g.there[g.low] {
		g.low++
	}
	if pulled {
		round = len(g.there)
	}
	var lost []roundName
	for i := g.low; i < round; i++ {
		if !g.there[i] && !g.asked[i] {
			g.asked[i] = true
			lost = append(lost, g.rounds[i])
		}
	}
	return lost
}

// probe names the oldest that is missing, or all where everything may have been lost; what was asked for before may be
// asked for again.
func (g *gaps) probe(all bool) []roundName {
	clear(g.asked)
	var late []roundName
	for i := g.low; i < len(g.there); i++ {
		if !g.there[i] {
			g.asked[i] = true
			late = append(late, g.rounds[i])
			if !all {
				break
			}
		}
	}
	return late
}

// takeResult puts a result in place, and asks for those that must have been lost before it.
func (s *Session) takeResult(owner int, subject *fabric.Subject, v *schema.View) error {
	b := v.Head().Batch
	if s.results.grouped {
		b = schema.Batch(subject.Batch) // the frame is the same for all of the group
	}
	lost, err := s.results.take(owner, subject.To != string(schema.All), b, v)
	if err != nil || lost == nil {
		return err
	}
	return s.pullRounds(owner, b, lost)
}

// pullLate asks for results when none has come for a while: of each owner for the oldest that is missing, or
// for all where lost says that the connection was.
func (s *Session) pullLate(lost bool) (moved bool, err error) {
	moved, late := s.results.late(lost)
	for _, l := range late {
		if err := s.pullRounds(l.owner, l.batch, l.rounds); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// pullRounds asks an owner for results. What this trainer adds up itself is not there because a contribution is not.
func (s *Session) pullRounds(owner int, b schema.Batch, rounds []roundName) error {
	link := s.links[owner]
	if len(rounds) == 0 || link.outbox == nil {
		return nil
	}
	s.count(func(t *Stats) { t.Pulls += uint64(len(rounds)) })
	for _, r := range rounds {
		if err := s.pullRound(link, b, r); err != nil {
			return err
		}
	}
	return nil
}

// pullRound asks for one result. The answer may come before it returns, and lead to more pulls.
func (s *Session) pullRound(link *shardLink, b schema.Batch, r roundName) error {
	h := s.head(b)
	h.Bucket, h.Chunk, h.Chunks = r.bucket, r.chunk, r.chunk+1
	s.pullMu.Lock()
	s.pull.SetHead(h)
	frame := slices.Clone(s.pull.Seal())
	s.pullMu.Unlock()
	return link.publish(s.subject(fabric.KindPull, link.member), frame)
}
