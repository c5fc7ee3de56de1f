package coordinator

import "gradbus/schema"

// lossAction is the reaction when a trainer of a running job is lost, keeps others waiting, or ends early. It follows
// from the plan's capability, the job's policy and its clock.
type lossAction int

const (
	// lossEnd: the job ends and names the trainer, since rounds wait for its lanes.
	lossEnd lossAction = iota
	// lossTakeOver: in place, other trainers or a new process compute its lanes.
	lossTakeOver
	// lossRestart: the run ends, and the others rejoin the next one.
	lossRestart
	// lossContinue: each trainer has rounds of its own. The others continue, and a newcomer may have the slot.
	lossContinue
	// lossExclude: groups are made without the trainer, and its slot stays lost.
	lossExclude
)

// lossActionOf returns what a job does about a lost trainer.
func lossActionOf(job *schema.Job) lossAction {
	switch recovers := job.Policy == schema.PolicyRecover || job.Policy == schema.PolicyWait; {
	case recovers && job.Rewinds():
		return lossRestart
	case recovers:
		return lossTakeOver
	case job.Plan().Clock == schema.ClockEach:
		return lossContinue
	case job.Plan().Clock == schema.ClockGrouped:
		return lossExclude
	}
	return lossEnd
}
