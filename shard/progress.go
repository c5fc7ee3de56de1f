package shard

import (
	"gradbus/schema"
	"gradbus/shard/round"
)

// progress is how far the rounds of a shard are.
type progress struct {
	clock  round.Clock
	held   *round.Held // by contributor: bytes of its contributions to open rounds
	rounds uint64      // that have closed
	// for reports: batches whose rounds are all closed here; in async those of the trainer who is furthest
	newest schema.Version
}

// Waiting is what an open batch lacks.
type Waiting = round.Waiting

// Waiting says whom the rounds of the oldest batch that waits for anybody wait for.
func (p *progress) Waiting() Waiting { return p.clock.Waiting() }

// Batch is the newest batch under way; in async that of the trainer who is furthest.
func (p *progress) Batch() schema.Batch {
	b := schema.Batch(0)
	for _, l := range p.clock.Lines() {
		b = max(b, l.Batch())
	}
	return b
}

// Began reports whether the batch that is computed on a version, or a later one, has begun here, of all trainers.
func (p *progress) Began(v schema.Version) bool {
	l := p.clock.Line(0)
	at := schema.Version(l.Batch())
	return at > v || at == v && l.Open() < l.Rounds()
}

// Idle reports whether nothing is added up here.
func (p *progress) Idle() bool { return p.clock.Line(0).Rounds() == 0 }

// Rounds counts those that have closed.
func (p *progress) Rounds() uint64 { return p.rounds }

// Newest is the version whose rounds are all closed here; in async that of the trainer who is furthest.
func (p *progress) Newest() schema.Version { return p.newest }

// Done is how many batches are complete here, of all trainers; where nothing is added up here, all that there may be.
func (p *progress) Done() schema.Version {
	if p.Idle() {
		return schema.VersionMax
	}
	return p.clock.Line(0).Done()
}

// BeginningProves reports whether a contributor, by beginning a batch, says that all which it sent of those before
// has come, so that it needs no ack.
func (p *progress) BeginningProves(contributor int) bool { return p.clock.Line(contributor).Ahead == 0 }

// Answers says whose rounds the frames of a contributor belong to: its own or those of all. It is false where
// results do not name rounds by the batches of these frames.
func (p *progress) Answers(contributor int) (whose schema.Member, ok bool) {
	l := p.clock.Line(contributor)
	return l.Whose, !l.Renumbered
}

// StagedBytes is the memory held by contributions to open rounds.
func (p *progress) StagedBytes() int64 { return p.held.Bytes() }

// HeldBytes is the part of StagedBytes that came from a contributor.
func (p *progress) HeldBytes(contributor int) int64 { return p.held.Of(contributor) }
