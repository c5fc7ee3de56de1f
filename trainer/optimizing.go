package trainer

import "gradbus/schema"

// optimizing is what a job, a parameter and a table say of their optimizer; B is which of them. A parameter or table of
// which something is said has an optimizer of its own: the job's, with that changed.
type optimizing[B any] struct {
	self    B
	changes []func(*schema.Optimizer)
	rated   bool // a rate was named
}

// optimizer is optimizing of any B.
type optimizer interface {
	hasRate() bool
	own(of schema.Optimizer) *schema.Optimizer
}

func (o *optimizing[B]) hasRate() bool { return o.rated }

// own is an optimizer of its own, by changes to that of the job; nil where there are none.
func (o *optimizing[B]) own(of schema.Optimizer) *schema.Optimizer {
	if len(o.changes) == 0 {
		return nil
	}
	o.apply(&of)
	return &of
}

func (o *optimizing[B]) apply(to *schema.Optimizer) {
	for _, change := range o.changes {
		change(to)
	}
}

func (o *optimizing[B]) change(by func(*schema.Optimizer)) B {
	o.changes = append(o.changes, by)
	return o.self
}

// kind begins another kind with its own defaults; rate, decay, schedule and clipping stay.
func (o *optimizing[B]) kind(kind string, more func(*schema.Optimizer)) B {
	return o.change(func(to *schema.Optimizer) {
		*to = schema.Optimizer{Kind: kind, LR: to.LR, WeightDecay: to.WeightDecay, Schedule: to.Schedule, Clip: to.Clip}
		if more != nil {
			more(to)
		}
	})
}

// LR is the learning rate, of the mean gradient over the samples of a batch (see schema.Optimizer).
func (o *optimizing[B]) LR(rate float32) B {
	o.rated = true
	return o.change(func(to *schema.Optimizer) { to.LR = rate })
}

// Decay is the weight decay: rate*value is added to each gradient, or with AdamW taken from each value.
func (o *optimizing[B]) Decay(rate float32) B {
	return o.change(func(to *schema.Optimizer) { to.WeightDecay = rate })
}

// SGD is what a job has where nothing else is said, with a momentum; 0 for none.
func (o *optimizing[B]) SGD(momentum float32) B {
	return o.kind(schema.OptimizerSGD, func(to *schema.Optimizer) { to.Momentum = momentum })
}

// Nesterov looks ahead by the momentum of SGD.
func (o *optimizing[B]) Nesterov() B {
	return o.change(func(to *schema.Optimizer) { to.Nesterov = true })
}

// Exact moves rows of SGD also in batches that do not use them, as momentum and decay want it.
func (o *optimizing[B]) Exact() B {
	return o.change(func(to *schema.Optimizer) { to.Exact = true })
}

// Adagrad, RowwiseAdagrad, Adam and AdamW are what they are elsewhere, with PyTorch's defaults.
func (o *optimizing[B]) Adagrad() B        { return o.kind(schema.OptimizerAdagrad, nil) }
func (o *optimizing[B]) RowwiseAdagrad() B { return o.kind(schema.OptimizerRowwiseAdagrad, nil) }
func (o *optimizing[B]) Adam() B           { return o.kind(schema.OptimizerAdam, nil) }
func (o *optimizing[B]) AdamW() B          { return o.kind(schema.OptimizerAdamW, nil) }

// FTRL is FTRL-proximal, with its two regularisations; it has no Decay.
func (o *optimizing[B]) FTRL(l1, l2 float32) B {
	return o.kind(schema.OptimizerFTRL, func(to *schema.Optimizer) { to.WeightDecay, to.L1, to.L2 = 0, l1, l2 })
}

// Betas are those of Adam and AdamW.
func (o *optimizing[B]) Betas(first, second float32) B {
	return o.change(func(to *schema.Optimizer) { to.Beta1, to.Beta2 = first, second })
}

// Eps is what keeps Adagrad and Adam from dividing by zero.
func (o *optimizing[B]) Eps(eps float32) B {
	return o.change(func(to *schema.Optimizer) { to.Eps = eps })
}

// Schedule changes the learning rate from batch to batch.
func (o *optimizing[B]) Schedule(s schema.Schedule) B {
	return o.change(func(to *schema.Optimizer) { to.Schedule = &s })
}

// ClipValue, ClipRow and ClipGlobal bound the mean gradient: each value, the norm of each row, or the norm of all that
// is clipped so.
func (o *optimizing[B]) ClipValue(most float32) B  { return o.clip(schema.ClipValue, most) }
func (o *optimizing[B]) ClipRow(most float32) B    { return o.clip(schema.ClipRow, most) }
func (o *optimizing[B]) ClipGlobal(most float32) B { return o.clip(schema.ClipGlobal, most) }

func (o *optimizing[B]) clip(kind string, most float32) B {
	return o.change(func(to *schema.Optimizer) { to.Clip = &schema.Clipping{Kind: kind, Max: most} })
}
