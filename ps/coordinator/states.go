package coordinator

import (
	"fmt"

	"gradbus/schema"
)

// JobState is the state of a run of a job at a ps. A restart is a new run, which begins in acquiring.
type JobState int

// States of a job, in their order. docs/internals/states.md shows the transitions.
const (
	// Acquiring: the registry decides which ps coordinates the job. Joins wait.
	Acquiring JobState = iota
	// Locating: this ps reads which versions checkpoint folders and replicas have. Joins wait.
	Locating
	// Placing: the shards are assigned, and not every ps that is to make some has answered. Joins wait.
	Placing
	// Gathering: trainers are missing, or shards are not made yet.
	Gathering
	// Running: all trainers have been told to start.
	Running
	// Ending: the end is decided, and nothing else any more. Its shards are released, and its last version is written.
	Ending
	// Ended: this ps does nothing for the job. Another ps may coordinate it.
	Ended
)

// Gathers reports whether the run has yet to start.
func (s JobState) Gathers() bool { return s == Placing || s == Gathering }

// IsOver reports whether the end of the run is decided.
func (s JobState) IsOver() bool { return s >= Ending }

// phase returns the state in reports, which do not tell missing shards from missing trainers.
func (s JobState) phase() string {
	switch {
	case s.Gathers():
		return schema.PhaseGathering
	case s == Running:
		return schema.PhaseRunning
	}
	return schema.PhaseEnded
}

func (s JobState) String() string {
	return [...]string{"acquiring", "locating", "placing", "gathering", "running", "ending", "ended"}[s]
}

// jobTransitions are the states that may follow each state of a job.
var jobTransitions = [...][]JobState{
	Acquiring: {Locating, Ended},
	Locating:  {Placing, Ended},
	Placing:   {Gathering, Ending, Ended},
	Gathering: {Running, Ending},
	Running:   {Ending},
	Ending:    {Ended},
	Ended:     {},
}

// Transition changes the state. It is the only writer.
func (s *JobState) Transition(to JobState) { transition(jobTransitions[:], s, to) }

// slotState is the state of a slot: a trainer's place in a job. Which trainer computes its lanes is data of the slot.
type slotState int

// States of a slot.
const (
	// slotVacant: no process has the slot. No trainer has joined in it, or it was taken from its trainer.
	slotVacant slotState = iota
	// slotJoining: its trainer is admitted, and has begun no batch.
	slotJoining
	// slotSyncing: its trainer has begun no batch, in a run that started from a version or before the trainer joined.
	slotSyncing
	// slotActive: its trainer computes batches.
	slotActive
	// slotLagging: a round waits for its trainer, or the connection is away.
	slotLagging
	// slotLost: its trainer is gone, or silent past the deadline.
	slotLost
	// slotDraining: its trainer leaves once a version is durable.
	slotDraining
	// slotDone: its trainer has left, in the end or for a reason.
	slotDone
)

func (s slotState) String() string {
	return [...]string{"vacant", "joining", "syncing", "active", "lagging", "lost", "draining", "done"}[s]
}

// slotTransitions are the states that may follow each state of a slot.
var slotTransitions = [...][]slotState{
	slotVacant:   {slotVacant, slotJoining, slotLost},
	slotJoining:  {slotVacant, slotSyncing, slotActive, slotLost, slotDraining, slotDone},
	slotSyncing:  {slotVacant, slotActive, slotLost, slotDraining, slotDone},
	slotActive:   {slotVacant, slotLagging, slotLost, slotDraining, slotDone},
	slotLagging:  {slotVacant, slotActive, slotLost, slotDraining, slotDone},
	slotLost:     {slotVacant, slotJoining, slotActive, slotDone},
	slotDraining: {slotVacant, slotLost, slotDone},
	slotDone:     {},
}

// transition changes the state. It is the only writer.
func (s *slotState) transition(to slotState) { transition(slotTransitions[:], s, to) }

// IllegalTransition is the value of the panic when a state is to change as its table does not allow. That is a defect
// of this package or of its owner, after which no decision for the job can be trusted.
type IllegalTransition struct {
	state any // the pointer to the state that stays
	text  string
}

func (e *IllegalTransition) Error() string { return e.text }

// Of reports whether the state is that of a job at its ps, or one that its coordinator has; nil: it has none.
func (e *IllegalTransition) Of(s *JobState, c *Coordinator) bool {
	if e.state == any(s) || c != nil && e.state == any(&c.state) {
		return true
	}
	for i := 0; c != nil && i < len(c.members); i++ {
		if e.state == any(&c.members[i].state) {
			return true
		}
	}
	return false
}

// transition changes a state. It panics with an IllegalTransition, and changes nothing, if the table does not allow it.
func transition[S interface {
	~int
	fmt.Stringer
}](table [][]S, from *S, to S) {
	for _, next := range table[*from] {
		if next == to {
			*from = to
			return
		}
	}
	panic(&IllegalTransition{from, fmt.Sprintf("illegal transition of %T from %v to %v", to, *from, to)})
}
