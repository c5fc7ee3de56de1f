package schema

import (
	"fmt"
	"math"
	"slices"
)

var optimizerKinds = []string{OptimizerSGD, OptimizerAdagrad, OptimizerRowwiseAdagrad, OptimizerAdam, OptimizerAdamW,
	OptimizerFTRL}

// Validate says what is wrong with an optimizer by itself. Whether it suits a job is for the job's Validate.
func (o *Optimizer) Validate() JobErrors {
	c := &jobCheck{}
	c.optimizer("optimizer", o)
	return c.errors
}

// optimizers checks the job's optimizer and those of tensors, each by itself and with what has it.
func (c *jobCheck) optimizers(j *Job) {
	c.optimizer("optimizer", &j.Optimizer)
	for i := range j.Parameters {
		if own := j.Parameters[i].Optimizer; own != nil {
			field := fmt.Sprintf("parameters[%d].optimizer", i)
			c.optimizer(field, own)
			if own.Exact {
				c.add(field+".exact", own.Exact, "false: every batch moves a parameter, so it has nothing to make up")
			}
		}
	}
	for i := range j.Tables {
		if own := j.Tables[i].Optimizer; own != nil {
			c.optimizer(fmt.Sprintf("tables[%d].optimizer", i), own)
		}
		c.tableOptimizer(j, i)
	}
	c.rowClip(j)
	c.globalClip(j)
}

// optimizer checks one optimizer by itself.
func (c *jobCheck) optimizer(field string, given *Optimizer) {
	o := given.WithDefaults()
	c.oneOf(field+".kind", given.Kind, optimizerKinds...)
	c.number(field+".lr", o.LR)
	kinds := func(k ...string) []string { return k }
	adams := kinds(OptimizerAdam, OptimizerAdamW)
	for _, f := range []struct {
		name  string
		value float32
		of    []string // kinds that have the field
	}{
		{"momentum", o.Momentum, kinds(OptimizerSGD)},
		{"dampening", o.Dampening, kinds(OptimizerSGD)},
		{"weight_decay", o.WeightDecay, optimizerKinds[:len(optimizerKinds)-1]},
		{"beta1", o.Beta1, adams},
		{"beta2", o.Beta2, adams},
		{"eps", o.Eps, append(kinds(OptimizerAdagrad, OptimizerRowwiseAdagrad), adams...)},
		{"initial_accumulator", o.InitialAccumulator, kinds(OptimizerAdagrad, OptimizerRowwiseAdagrad)},
		{"beta", o.Beta, kinds(OptimizerFTRL)},
		{"l1", o.L1, kinds(OptimizerFTRL)},
		{"l2", o.L2, kinds(OptimizerFTRL)},
	} {
		if f.value != 0 && slices.Contains(optimizerKinds, o.Kind) && !slices.Contains(f.of, o.Kind) {
			c.add(field+"."+f.name, f.value, "0: %s has no %s", o.Kind, f.name)
			continue
		}
		c.number(field+"."+f.name, f.value)
	}
	for _, f := range []struct {
		name  string
		value float32
	}{{"beta1", o.Beta1}, {"beta2", o.Beta2}} {
		if slices.Contains(adams, o.Kind) && f.value >= 1 {
			c.add(field+"."+f.name, f.value, "below 1")
		}
	}
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		c.add(field+".nesterov", o.Nesterov, "a momentum above 0 and no dampening with it")
	}
	if o.Exact && (o.Kind != OptimizerSGD || o.Schedule.varies()) {
		c.add(field+".exact", o.Exact,
			"sgd at a constant rate with it: what a row sat out is made up by steps of the rate of now")
	}
	c.schedule(field+".schedule", o.Schedule)
	if o.Clip != nil {
		c.oneOf(field+".clip.kind", o.Clip.Kind, ClipValue, ClipRow, ClipGlobal)
		if c.number(field+".clip.max", o.Clip.Max); o.Clip.Max == 0 {
			c.add(field+".clip.max", o.Clip.Max, "above 0")
		}
	}
}

func (s *Schedule) varies() bool { return s != nil && (s.Kind != scheduleConstant || s.Warmup > 0) }

func (c *jobCheck) schedule(field string, s *Schedule) {
	if s == nil {
		return
	}
	c.oneOf(field+".kind", s.Kind, scheduleConstant, ScheduleLinear, ScheduleCosine, scheduleSteps)
	c.number(field+".final", s.Final)
	c.number(field+".gamma", s.Gamma)
	decays, steps := s.Kind == ScheduleLinear || s.Kind == ScheduleCosine, s.Kind == scheduleSteps
	switch {
	case decays && s.Total <= s.Warmup:
		c.add(field+".total", s.Total, "the version at which the rate is the final one, above warmup, %d", s.Warmup)
	case !decays && s.Total != 0:
		c.add(field+".total", s.Total, "0: only linear and cosine have it")
	}
	switch {
	case decays && s.Final > 1:
		c.add(field+".final", s.Final, "0 to 1: a share of lr")
	case !decays && s.Final != 0:
		c.add(field+".final", s.Final, "0: only linear and cosine have it")
	}
	switch {
	case steps && s.Gamma == 0:
		c.add(field+".gamma", s.Gamma, "above 0")
	case !steps && s.Gamma != 0:
		c.add(field+".gamma", s.Gamma, "0: only steps have it")
	}
	ascending := slices.IsSorted(s.Steps) && len(slices.Compact(slices.Clone(s.Steps))) == len(s.Steps)
	switch {
	case steps && (len(s.Steps) == 0 || len(s.Steps) > scheduleStepsMax || !ascending || s.Steps[0] == 0):
		c.add(field+".steps", s.Steps, "1 to %d versions from 1 on, ascending", scheduleStepsMax)
	case !steps && len(s.Steps) > 0:
		c.add(field+".steps", s.Steps, "none: only steps have them")
	}
}

// tableOptimizer checks what a table's optimizer and PerRow ask of the table and of the job.
func (c *jobCheck) tableOptimizer(j *Job, i int) {
	t, field := &j.Tables[i], fmt.Sprintf("tables[%d]", i)
	o := j.OptimizerOf(Table(i))
	if t.Placement == PlacementColumns {
		if o.Kind == OptimizerRowwiseAdagrad {
			c.add(field+".placement", t.Placement, "rows or tables with %s, which needs whole rows", o.Kind)
		}
		if o.Clip != nil && o.Clip.Kind == ClipRow {
			c.add(field+".placement", t.Placement, "rows or tables where rows are clipped by their norm")
		}
	}
	if !t.PerRow {
		return
	}
	n := j.normal()
	switch {
	case n.Wire.Gradients != GradientsFloat32:
		c.add(field+".per_row", true, "false with gradients of %s: a row's count has no place in them", n.Wire.Gradients)
	case t.Dim >= DimMax:
		c.add(field+".dim", t.Dim, "at most %d with per_row: a row's count travels behind its gradient", DimMax-1)
	case t.Cut().PooledByShards():
		c.add(field+".per_row", true, "false with placement %s, of which gradients travel as bags", t.Placement)
	}
}

// rowClip refuses the norm of a row where something has no rows.
func (c *jobCheck) rowClip(j *Job) {
	const want = `"value" or "global", or tables with an optimizer of their own: %s has no rows`
	byRow := func(o Optimizer) bool { return o.Clip != nil && o.Clip.Kind == ClipRow }
	for i := range j.Parameters {
		if byRow(j.OptimizerOfParameter(i)) {
			field := "optimizer"
			if j.Parameters[i].Optimizer != nil {
				field = fmt.Sprintf("parameters[%d].optimizer", i)
			}
			c.add(field+".clip.kind", ClipRow, want, fmt.Sprintf("parameters[%d]", i))
			return
		}
	}
	if len(j.Modules) > 0 && byRow(j.Optimizer) {
		c.add("optimizer.clip.kind", ClipRow, want, "modules[0]")
	}
}

// globalClip checks that all gradients of which a norm is taken together are where their means meet before anything
// steps, and that they agree on its bound.
func (c *jobCheck) globalClip(j *Job) {
	clips := map[string]float32{}
	for i := range j.Parameters {
		if clip := j.OptimizerOfParameter(i).Clip; clip != nil && clip.Kind == ClipGlobal {
			clips[fmt.Sprintf("parameters[%d]", i)] = clip.Max
		}
	}
	for i := range j.Tables {
		clip := j.OptimizerOf(Table(i)).Clip
		if clip == nil || clip.Kind != ClipGlobal {
			continue
		}
		field := fmt.Sprintf("tables[%d]", i)
		if clips[field] = clip.Max; !j.Tables[i].Replicated {
			c.add(field+".optimizer.clip.kind", ClipGlobal,
				"%q or %q, or replicated: a shard steps its rows before others have closed the batch",
				ClipValue, ClipRow)
		}
	}
	if clip := j.Optimizer.Clip; len(j.Modules) > 0 && clip != nil && clip.Kind == ClipGlobal {
		c.add("optimizer.clip.kind", ClipGlobal, "%q: the modules of a shard step by themselves", ClipValue)
	}
	if len(clips) == 0 {
		return
	}
	if j.Apply != ApplyMean {
		c.add("optimizer.clip.kind", ClipGlobal,
			"apply %s with it: with %s each shard steps before the norm of all gradients is known",
			ApplyMean, j.Apply)
	}
	fields := sortedKeys(clips)
	for _, field := range fields[1:] {
		if clips[field] != clips[fields[0]] {
			c.add(field+".optimizer.clip.max", clips[field], "%v, as that of %s: there is one norm", clips[fields[0]], fields[0])
			return
		}
	}
}

// number checks that a value is finite and not negative.
func (c *jobCheck) number(field string, value float32) {
	if v := float64(value); math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		c.add(field, value, "a finite number, at least 0")
	}
}
