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
	// lossAwait: in place, a new process computes its lanes.
	lossAwait
	// lossRestart: the run ends, and the others and a new process rejoin the next one.
	lossRestart
	// lossRescale: the run ends, and the others rejoin the next one, which has as many slots as there are trainers.
	lossRescale
	// lossContinue: each trainer has rounds of its own. The others continue, and a newcomer may have the slot.
	lossContinue
	// lossExclude: groups are made without the trainer, and its slot stays lost.
	lossExclude
)

// restarts reports whether the run ends, and the job continues in the next one.
func (a lossAction) restarts() bool { return a == lossRestart || a == lossRescale }

// lossActionOf returns what a job does about a lost trainer.
func lossActionOf(job *schema.Job) lossAction {
	switch waits := job.Policy == schema.PolicyWait; {
	case waits && job.Rewinds():
		return lossRestart
	case waits:
		return lossAwait
	case job.Policy == schema.PolicyRecover && job.Rewinds():
		return lossRescale
	case job.Policy == schema.PolicyRecover:
		return lossTakeOver
	case job.Plan().Clock == schema.ClockEach:
		return lossContinue
	case job.Plan().Clock == schema.ClockGrouped:
		return lossExclude
	}
	return lossEnd
}
