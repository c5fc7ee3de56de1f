package coordinator

import (
	"fmt"
	"slices"

	"gradbus/schema"
)

// learningRates is what a coordinator knows of changes of the learning rates. A change is proposed to the trainers for
// a batch that nobody seems to have begun; one that reaches it waits there. Where a trainer has begun the batch
// meanwhile, a later one is proposed. Once all trainers have taken the change, so that nobody begins the batch, all
// shard servers are told, which apply it; then it is recorded, and then the trainers go on: every owner applies it from
// the same batch on.
type learningRates struct {
	decided  []schema.LRChange
	serial   int         // of the last proposal
	proposal *lrProposal // nil where none is open
}

type lrProposal struct {
	change   schema.LRChange
	named    bool            // the batch was asked for: no other will do
	margin   schema.Batch    // by which the batch is ahead of the furthest trainer
	askers   []schema.Member // who are told if it is refused
	taken    []bool          // by trainer
	assigned bool            // all trainers have taken it, and shard servers are being told
	stored   bool            // it is being recorded, or is
}

const (
	lrMarginFirst = 4 // batches ahead of what the last heartbeats said
	lrMarginMax   = 1 << 20
)

// ScaleLR takes a request for a change. One that asks for what is decided or proposed already is a repetition.
func (c *Coordinator) ScaleLR(from schema.Member, r *schema.ScaleLR) []Decision {
	l := &c.lr
	if c.IsRunning() && r.From != 0 && slices.Contains(l.decided, schema.LRChange{From: r.From, Scale: r.Scale}) {
		// a final word would free a trainer from what is being agreed; a proposal has what is decided, too
		_, trainer := c.members.find(from)
		return []Decision{{To: from, Control: c.lr.control(!trainer || l.proposal == nil)}}
	}
	if refused := c.checkScaleLR(r); refused != "" {
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
		return []Decision{{To: from, Control: c.lr.control(true)}}
	}
	if len(l.decided) == schema.LRChangesMax {
		return []Decision{
			refuseLR(from, fmt.Sprintf("the learning rates have been changed %d times: that is all", schema.LRChangesMax)),
		}
	}
	p := &lrProposal{change: schema.LRChange{From: r.From, Scale: r.Scale}, named: r.From != 0, margin: lrMarginFirst,
		askers: []schema.Member{from}}
	if begun := c.members.begun(); p.named && r.From < begun {
		return []Decision{refuseLR(from, lrTooLate(r.From, begun))}
	}
	l.proposal = p
	return c.lr.propose(c.members.begun(), c.config.Job)
}

func refuseLR(to schema.Member, text string) Decision {
	return Decision{To: to, Who: to, Note: "change of the learning rate refused: " + text,
		Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedLR, Text: schema.Clip(text)}}}
}

func lrTooLate(from, begun schema.Batch) string {
	return fmt.Sprintf("batch %d has begun: want batch %d or a later one", from, begun)
}

// checkScaleLR says why a job's learning rates cannot be changed as asked, or nothing.
func (c *Coordinator) checkScaleLR(r *schema.ScaleLR) string {
	if !c.IsRunning() {
		return fmt.Sprintf("job %s is %v: want a running one", c.config.Job.Name, c.state)
	}
	if err := c.config.Job.CheckScaleLR(); err != nil {
		return err.Error()
	}
	if err := r.CheckScale(schema.LRScale(c.lr.decided, ^schema.Batch(0))); err != nil {
		return err.Error()
	}
	return ""
}

// propose tells the trainers of the open proposal, which none has taken yet, for a batch that is at least ahead of
// begun.
func (l *learningRates) propose(begun schema.Batch, job *schema.Job) []Decision {
	p := l.proposal
	l.serial++
	p.taken = make([]bool, job.Trainers)
	if !p.named {
		p.change.From = begun + schema.Batch(job.Ahead) + p.margin
		p.margin = min(2*p.margin, lrMarginMax)
	}
	return []Decision{{To: schema.All, Control: l.control(false)}}
}

// control returns what trainers are told: what is decided, or what is proposed beside it.
func (l *learningRates) control(final bool) schema.Control {
	return schema.Control{LR: &schema.LR{Serial: l.serial, Changes: l.changes(!final), Final: final}}
}

// assigned returns what shard servers are told, and apply.
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

// LRTaken takes a trainer's answer to a proposal. One to what is decided says that the trainer has not heard so.
func (c *Coordinator) LRTaken(from schema.Member, t *schema.LRTaken) []Decision {
	i, ok := c.members.find(from)
	p := c.lr.proposal
	switch {
	case !ok || t.Serial > c.lr.serial:
		return nil
	case p == nil:
		return []Decision{{To: from, Control: c.lr.control(true)}}
	case t.Serial < c.lr.serial:
		return []Decision{{To: from, Control: c.lr.control(false)}}
	case p.assigned: // all have promised, this one too
		return nil
	case t.Begun <= p.change.From:
		p.taken[i] = true
		return c.agreeLR()
	case p.named:
		return c.lr.drop(lrTooLate(p.change.From, t.Begun))
	}
	return c.lr.propose(t.Begun, c.config.Job)
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

// agreeLR goes on with the open proposal once every trainer has taken it: shard servers are told, and when all of them
// know, it is recorded.
func (c *Coordinator) agreeLR() (decisions []Decision) {
	p := c.lr.proposal
	if p == nil || p.stored {
		return nil
	}
	for i, taken := range p.taken {
		if m := &c.members[i]; !taken && m.state != slotDone && !m.lost() { // who is gone begins no batch
			return nil
		}
	}
	if !p.assigned {
		p.assigned = true
		decisions = c.reassign()
	}
	if slices.ContainsFunc(c.shardServers, func(s shardServer) bool { return s.serial != c.serial }) {
		return decisions
	}
	p.stored = true
	return append(decisions, Decision{Record: c.lr.assigned()})
}

// LRRecorded is told that the changes which a Decision had to be recorded are: now they are decided.
func (c *Coordinator) LRRecorded() []Decision {
	p := c.lr.proposal
	if p == nil || !p.stored || c.IsOver() {
		return nil
	}
	c.lr.decided = c.lr.assigned()
	c.lr.proposal = nil
	note := fmt.Sprintf("learning rates are %v times the manifest's from batch %d on", p.change.Scale, p.change.From)
	decisions := []Decision{{To: schema.All, Control: c.lr.control(true), Note: note}}
	for _, m := range p.askers {
		if _, trainer := c.members.find(m); !trainer {
			decisions = append(decisions, Decision{To: m, Control: c.lr.control(true)})
		}
	}
	return decisions
}

// tickLR says an open proposal again to the trainers who have not taken it; shard servers are told by assignments.
// Where the last who had not has left, that was all.
func (c *Coordinator) tickLR() (decisions []Decision) {
	if p := c.lr.proposal; p != nil {
		for i, taken := range p.taken {
			if !taken {
				decisions = append(decisions, Decision{To: schema.TrainerMember(i), Control: c.lr.control(false)})
			}
		}
	}
	return append(decisions, c.agreeLR()...)
}
