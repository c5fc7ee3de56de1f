package coordinator

import (
	"fmt"
	"slices"

	"gradbus/schema"
)

// learningRates decides changes of the learning rates. A change is proposed to the trainers for a batch that no trainer
// seems to have begun. A trainer that reaches the batch waits there. If a trainer has begun the batch, a later one is
// proposed. Once all trainers have taken the change, the shard servers apply it, then it is recorded, and then the
// trainers continue: every owner applies it from the same batch on.
type learningRates struct {
	job      *schema.Job
	decided  []schema.LRChange
	serial   int         // of the last proposal
	proposal *lrProposal // nil where none is open
}

type lrProposal struct {
	change   schema.LRChange
	named    bool            // the batch was asked for: no other will do
	margin   schema.Batch    // by which the batch is ahead of the furthest trainer
	askers   []schema.Member // that hear if it is refused
	taken    []bool          // by trainer
	assigned bool            // all trainers have taken it, and the next assignment has it
	stored   bool            // it is being recorded, or is
}

const (
	lrMarginFirst = 4 // batches ahead of what the last heartbeats said
	lrMarginMax   = 1 << 20
)

// request takes a request for a change. One for a change that is decided or proposed already is a repetition.
func (l *learningRates) request(state JobState, members slots, from schema.Member, asked *schema.LR) []Decision {
	r := asked.Changes[0]
	if state == Running && r.From != 0 && slices.Contains(l.decided, r) {
		// a final word would free a trainer from what is being agreed; a proposal has what is decided, too
		_, trainer := members.find(from)
		return []Decision{{To: from, Control: l.control(!trainer || l.proposal == nil)}}
	}
	if refused := l.check(state, r.Scale, asked.Force); refused != "" {
		return []Decision{refuseLR(from, refused)}
	}
	if p := l.proposal; p != nil {
		if p.change.Scale != r.Scale || r.From != 0 && p.change.From != r.From {
			return []Decision{
				refuseLR(from, fmt.Sprintf("a change to %v from batch %d on is being agreed: ask again when that is done",
					p.change.Scale, p.change.From)),
			}
		}
		if !slices.Contains(p.askers, from) {
			p.askers = append(p.askers, from)
		}
		return nil
	}
	if n := len(l.decided); schema.LRScale(l.decided, ^schema.Batch(0)) == r.Scale &&
		(r.From == 0 || n > 0 && l.decided[n-1].From == r.From) {
		return []Decision{{To: from, Control: l.control(true)}}
	}
	if len(l.decided) == schema.LRChangesMax {
		return []Decision{
			refuseLR(from, fmt.Sprintf("the learning rates have been changed %d times: that is all", schema.LRChangesMax)),
		}
	}
	p := &lrProposal{change: r, named: r.From != 0, margin: lrMarginFirst,
		askers: []schema.Member{from}}
	begun := members.begun()
	if p.named && r.From < begun {
		return []Decision{refuseLR(from, lrTooLate(r.From, begun))}
	}
	l.proposal = p
	return l.propose(begun)
}

func refuseLR(to schema.Member, text string) Decision {
	return Decision{To: to, Who: to, Note: "change of the learning rate refused: " + text,
		Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedLR, Text: schema.Clip(text)}}}
}

func lrTooLate(from, begun schema.Batch) string {
	return fmt.Sprintf("batch %d has begun: want batch %d or a later one", from, begun)
}

// check returns why the learning rates cannot be changed as requested; empty: they can.
func (l *learningRates) check(state JobState, scale float32, force bool) string {
	if state != Running {
		return fmt.Sprintf("job %s is %v: want a running one", l.job.Name, state)
	}
	if err := l.job.CheckScaleLR(); err != nil {
		return err.Error()
	}
	if err := schema.CheckScale(scale, schema.LRScale(l.decided, ^schema.Batch(0))); err != nil && !force {
		return err.Error()
	}
	return ""
}

// propose tells the trainers of the open proposal, which none has taken yet, for a batch that is at least ahead of
// begun.
func (l *learningRates) propose(begun schema.Batch) []Decision {
	p := l.proposal
	l.serial++
	p.taken = make([]bool, l.job.Trainers)
	if !p.named {
		p.change.From = begun + schema.Batch(l.job.Ahead) + p.margin
		p.margin = min(2*p.margin, lrMarginMax)
	}
	return []Decision{{To: schema.All, Control: l.control(false)}}
}

// control returns the message for trainers: what is decided, or what is proposed beside it.
func (l *learningRates) control(final bool) schema.Control {
	return schema.Control{LR: &schema.LR{Serial: l.serial, Changes: l.changes(!final), Final: final}}
}

// assigned returns the changes in assignments, which shard servers apply.
func (l *learningRates) assigned() []schema.LRChange {
	return l.changes(l.proposal != nil && l.proposal.assigned)
}

// changes returns all changes, the proposed one last where that is wanted: it takes the place of those that no trainer
// has reached.
func (l *learningRates) changes(proposed bool) []schema.LRChange {
	all := slices.Clone(l.decided)
	if p := l.proposal; p != nil && proposed {
		all = append(slices.DeleteFunc(all, func(d schema.LRChange) bool { return d.From >= p.change.From }), p.change)
	}
	return all
}

// answer takes a trainer's answer to a proposal. If no proposal is open, the trainer has not heard what was decided.
// The caller continues with agree.
func (l *learningRates) answer(i int, from schema.Member, t *schema.LRTaken) []Decision {
	p := l.proposal
	switch {
	case t.Serial > l.serial:
		return nil
	case p == nil:
		return []Decision{{To: from, Control: l.control(true)}}
	case t.Serial < l.serial:
		return []Decision{{To: from, Control: l.control(false)}}
	case p.assigned: // all trainers have taken it, this one too
		return nil
	case t.Begun <= p.change.From:
		p.taken[i] = true
		return nil
	case p.named:
		return l.drop(lrTooLate(p.change.From, t.Begun))
	}
	return l.propose(t.Begun)
}

// drop forgets the open proposal, of which no shard was told, and says why.
func (l *learningRates) drop(why string) []Decision {
	askers := l.proposal.askers
	l.proposal = nil
	l.serial++
	decisions := []Decision{{To: schema.All, Control: l.control(true)}}
	for _, m := range askers {
		decisions = append(decisions, refuseLR(m, why))
	}
	return decisions
}

// isAgreed reports whether every trainer of a job has taken the open proposal. A lost trainer begins no batch.
func (l *learningRates) isAgreed(members slots) bool {
	if l.proposal == nil {
		return false
	}
	for i, taken := range l.proposal.taken {
		if m := &members[i]; !taken && m.state != slotDone && !m.lost() {
			return false
		}
	}
	return true
}

// agree has the shard servers apply an open proposal that every trainer has taken, and has it recorded once they have. It
// reports whether they are to be told.
func (l *learningRates) agree(members slots, carriedOut bool) (tell bool, _ []Decision) {
	p := l.proposal
	switch {
	case !l.isAgreed(members) || p.stored:
	case !p.assigned:
		p.assigned = true
		return true, nil
	case carriedOut:
		p.stored = true
		return false, []Decision{{Record: l.assigned()}}
	}
	return false, nil
}

// vacated notes that a slot has lost its trainer: the next one has to take an open proposal, too.
func (l *learningRates) vacated(i int) {
	if p := l.proposal; p != nil && !p.assigned {
		p.taken[i] = false
	}
}

// recorded notes that the changes of a Decision are recorded: now they are decided.
func (l *learningRates) recorded(members slots) []Decision {
	p := l.proposal
	if p == nil || !p.stored {
		return nil
	}
	l.decided, l.proposal = l.assigned(), nil
	note := fmt.Sprintf("learning rates are %v times the manifest's from batch %d on", p.change.Scale, p.change.From)
	decisions := []Decision{{To: schema.All, Control: l.control(true), Note: note}}
	for _, m := range p.askers {
		if _, trainer := members.find(m); !trainer {
			decisions = append(decisions, Decision{To: m, Control: l.control(true)})
		}
	}
	return decisions
}

// remind repeats an open proposal to the trainers that have not taken it. Assignments tell shard servers.
func (l *learningRates) remind() (decisions []Decision) {
	if p := l.proposal; p != nil {
		for i, taken := range p.taken {
			if !taken {
				decisions = append(decisions, Decision{To: schema.TrainerMember(i), Control: l.control(false)})
			}
		}
	}
	return decisions
}
