package coordinator

import (
	"slices"
	"time"

	"gradbus/schema"
)

// Where several ps keep replicas among those of one NATS server, a job's record there decides which of them has the job.
// It names the voters: a ps takes the record of a job when one of them comes to it. So a coordinator reassigns the lanes
// of a trainer once the record names it no more, and nothing while the record cannot be written.

// CountVoters returns how many voters are among the trainers whose numbers it asks for. A trainer without a number is none.
func CountVoters(voters []schema.Voter, among func(number uint64) bool) (n int) {
	for _, v := range voters {
		if v.Number != 0 && among(v.Number) {
			n++
		}
	}
	return n
}

// IsVoter reports whether a trainer's number is that of a voter.
func IsVoter(voters []schema.Voter, number uint64) bool {
	return number != 0 && slices.ContainsFunc(voters, func(v schema.Voter) bool { return v.Number == number })
}

// voterRecord is the part of a job's record about its voters.
type voterRecord struct {
	decides bool           // which ps has the job
	asked   []schema.Voter // that the registry is to write last
	written []schema.Voter // that the record is known to have; nil: none yet
}

// note has the voters written into the job's record if they have changed.
func (r *voterRecord) note(voters []schema.Voter) []Decision {
	if !r.decides || r.asked != nil && slices.Equal(r.asked, voters) {
		return nil
	}
	r.asked = append([]schema.Voter{}, voters...)
	return []Decision{{Voters: r.asked}}
}

// mayReassign reports whether another ps can no longer take the job with the trainer that had a slot: the record names
// others.
func (r *voterRecord) mayReassign(i int) bool {
	return !r.decides || r.written != nil && slices.Equal(r.written, r.asked) &&
		!slices.ContainsFunc(r.written, func(v schema.Voter) bool { return v.Member == schema.TrainerMember(i) })
}

// successor is where the job continues when this ps is lost.
type successor struct {
	url      string       // empty: nowhere
	silent   bool         // trainers that are lost may have continued there
	silentAt int          // serial that it was told last when it became silent: it has to confirm a later one
	told     []votersTold // lists of voters that it may have: the last one that it has confirmed, and later ones
}

// votersTold is the voters that a replica was told of with a serial and later ones.
type votersTold struct {
	serial int
	voters []schema.Voter
}

// tell notes that the replica is told of voters.
func (s *successor) tell(serial int, voters []schema.Voter) {
	if n := len(s.told); n == 0 || !slices.Equal(s.told[n-1].voters, voters) {
		s.told = append(s.told, votersTold{serial, voters})
	}
}

// becomesSilent notes that the replica's ps is not heard any more, which was told a serial last.
func (s *successor) becomesSilent(serial int) {
	if !s.silent {
		s.silent, s.silentAt = true, serial
	}
}

// heard notes that the replica has confirmed a serial.
func (s *successor) heard(serial int) {
	if serial > s.silentAt {
		s.silent = false
	}
	for len(s.told) > 1 && s.told[1].serial <= serial {
		s.told = s.told[1:]
	}
}

// lacksQuorum reports whether the replica's ps is not heard, and more than half of the trainers of some list that it may
// have are gone: they may continue the job there.
func (s *successor) lacksQuorum(here []schema.Voter) bool {
	return s.silent && s.url != "" && slices.ContainsFunc(s.told, func(t votersTold) bool {
		return 2*CountVoters(t.voters, func(number uint64) bool {
			return slices.ContainsFunc(here, func(h schema.Voter) bool { return h.Number == number })
		}) < len(t.voters)
	})
}

// EarlierRunEnded notes that the run which this one continues is known to have ended: its voters are not needed.
func (c *Coordinator) EarlierRunEnded(now time.Time) []Decision {
	if c.config.Voters == nil {
		return nil
	}
	c.config.Voters, c.config.RejoinWithin = nil, RejoinSoonMax
	return c.start(now)
}

// SetSuccessor notes the URL at which the job continues when this ps is lost; empty: no other ps continues it, since
// the one that could have has left, or an operator says that it has ended. It returns the URL that trainers know.
func (c *Coordinator) SetSuccessor(url string) (was string) {
	was = c.successor.url
	if url == "" {
		c.successor = successor{}
	}
	c.successor.url = url
	return was
}

// SuccessorSilent notes that the ps with the replica is not heard any more. It may continue the job from now on, until
// it confirms that it has heard this one again.
func (c *Coordinator) SuccessorSilent() { c.successor.becomesSilent(c.replicas.serial) }
