package coordinator

import (
	"slices"
	"time"

	"gradbus/schema"
)

// Where several ps keep replicas among those of one NATS server, a job's record there decides which of them has the job.
// It names the voters: a ps takes the record of a job when one of them comes to it. So a coordinator reassigns the lanes
// of a trainer once the record names it no more, and nothing while the record cannot be written.

// CountVoters returns how many voters are among the trainers whose numbers it asks for.
func CountVoters(voters []schema.Voter, among func(number uint64) bool) (n int) {
	for _, v := range voters {
		if among(v.Number) {
			n++
		}
	}
	return n
}

func isVoter(voters []schema.Voter, number uint64) bool {
	return number != 0 && slices.ContainsFunc(voters, func(v schema.Voter) bool { return v.Number == number })
}

// EarlierRunEnded notes that the run which this one continues is known to have ended: its voters are not needed.
func (c *Coordinator) EarlierRunEnded(now time.Time) []Decision {
	if c.config.Voters == nil {
		return nil
	}
	c.config.Voters, c.config.RejoinWithin = nil, RejoinSoonMax
	return c.start(now)
}

// voterRecord is what a job's record says of its voters.
type voterRecord struct {
	asked   []schema.Voter // that the registry is to write last
	written []schema.Voter // that the record is known to have; nil: none yet
}

// recordVoters has the voters written into the job's record if they have changed.
func (c *Coordinator) recordVoters() []Decision {
	voters := append([]schema.Voter{}, c.members.voters()...)
	if !c.MayKeep() || !c.IsRunning() || c.record.asked != nil && slices.Equal(c.record.asked, voters) {
		return nil
	}
	c.record.asked = voters
	return []Decision{{Voters: voters}}
}

// VotersRecorded notes that the voters of a Decision are in the job's record.
func (c *Coordinator) VotersRecorded(now time.Time, voters []schema.Voter) []Decision {
	c.record.written = voters
	if c.IsOver() {
		return nil
	}
	return append(c.offer(now), c.assign()...)
}

// mayReassign reports whether another ps can no longer take the job with the trainer that had a slot: the record names
// others.
func (c *Coordinator) mayReassign(i int) bool {
	if !c.MayKeep() {
		return true
	}
	r := &c.record
	return r.written != nil && slices.Equal(r.written, r.asked) && !slices.ContainsFunc(r.written, func(v schema.Voter) bool {
		return v.Member == schema.TrainerMember(i)
	})
}
