package schema

import "fmt"

// CheckVersions says why no version of a job can be written down, or nothing. What Validate refuses is not for it to
// say.
func (j *Job) CheckVersions() error {
	plan := j.Plan()
	switch {
	case j.Moments() && plan.exact:
		return fmt.Errorf("job %s: exact rows of shards at versions of their own: want consistency %s or %s", j.Name,
			ConsistencySync, ConsistencyBounded)
	case !plan.Roundless && !plan.Reduces(ByShards):
		return fmt.Errorf("job %s: its shards add up nothing, so no ps can save or resume a version of it: begin a new job "+
			"with a saved model, or with one that ./bin/ps checkpoints export writes, by --load", j.Name)
	}
	return nil
}

// rewindsAlike reports whether a job that rewinds has the bits of one to which nothing happens, with however many
// trainers it goes on: batches are in step, sums are not rounded on the way, and no trainer has anything of its own.
func (j *Job) rewindsAlike() bool {
	p := j.Plan()
	return j.Rewinds() && p.Sync() && !j.Moments() && p.DType == DTypeFloat32 && len(j.Modules) == 0
}

// Moments reports whether anything of what is written down as a version is what a shard has at a moment: all of it
// (Plan.Moments), or rows alone, of tables whose gradients are applied as they arrive.
func (j *Job) Moments() bool {
	p := j.Plan()
	return p.Moments() || !p.ClockOf(ByShards).Common()
}

// Moments reports whether what is written down as a version is what each shard has at a moment, and not what all of
// them have after the same batches: these are not the same for all trainers then, or nothing is added up.
func (p *Plan) Moments() bool { return !p.Clock.Common() || p.Roundless }
