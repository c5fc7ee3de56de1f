package shard

import (
	"gradbus/schema"
	"gradbus/shard/round"
)

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor = round.Contributor

// Payload is the memory that a frame lies in, and a lease of it.
type Payload = round.Payload

// contributors are the trainers whose frames a shard takes.
type contributors struct {
	all   []Contributor
	since []schema.Generation // of each: of the frames that are taken of it
	job   *schema.Job
	runID schema.RunID
	place *schema.Placement
	owner int // the shard's index there
}

func newContributors(c *Config) contributors {
	all := contributors{all: c.Contributors, since: make([]schema.Generation, len(c.Contributors)), job: c.Job,
		runID: c.RunID, place: c.Placement, owner: c.Index}
	for i := range all.since {
		all.since[i] = c.Generation
	}
	return all
}

// Contributor is the index of a trainer; -1 of who is none.
func (c *contributors) Contributor(m schema.Member) int {
	for i := range c.all {
		if c.all[i].Member == m {
			return i
		}
	}
	return -1
}

// Since is the generation in which a contributor's place was taken.
func (c *contributors) Since(contributor int) schema.Generation { return c.since[contributor] }

// CheckMember checks that a frame is of this run of the job, and from the process that has its sender's slot now. The
// contributor is -1 if the sender is none.
func (c *contributors) CheckMember(contributor int, v *schema.View) error {
	if contributor < 0 {
		return v.CheckJob(c.runID, v.Head().Generation)
	}
	return v.CheckJob(c.runID, c.since[contributor])
}

// admit checks what every frame must have right before any field of it is used: job, generation, a sender who is a
// trainer of the job, and all that the job says of frames of its kind (schema.Placement.CheckFrame). What is left to
// the kinds is the batch, the sender's lanes and the values.
func (c *contributors) admit(from schema.Member, v *schema.View) (contributor int, refused *refusal) {
	i := c.Contributor(from)
	if err := c.CheckMember(i, v); err != nil {
		return 0, schema.Refusing(err)
	}
	if i < 0 {
		return 0, schema.Refuse(schema.ReasonUnknownSender, "%s is not a trainer of job %s", from, c.job.Name)
	}
	if err := c.place.CheckFrame(v, c.owner); err != nil {
		return 0, schema.Refusing(err)
	}
	return i, nil
}

// budget bounds the payload bytes of contributions whose round is still open.
type budget struct {
	most   int64
	advice string        // for a trainer who exceeds that
	own    schema.Member // whose contributions lie in memory of its own
}

// bytes is what a contribution takes of the budget.
func (b *budget) bytes(from schema.Member, v *schema.View) int64 {
	if from == b.own {
		return 0
	}
	return int64(len(v.Bytes()))
}

// check refuses what the budget has no room for.
func (b *budget) check(held, bytes int64) *refusal {
	if held+bytes > b.most {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; %s",
			bytes, held, b.most, b.advice)
	}
	return nil
}
