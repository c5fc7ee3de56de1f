package schema

import "reflect"

// The kinds of optimizers.
const (
	OptimizerSGD            = "sgd"
	OptimizerAdagrad        = "adagrad"
	OptimizerRowwiseAdagrad = "rowwise_adagrad"
	OptimizerAdam           = "adam"
	OptimizerAdamW          = "adamw"
	OptimizerFTRL           = "ftrl"
)

// Optimizer names the rule by which gradients move parameters and rows.
//
// Lanes give gradients that are sums over their samples. The sum g of all of them is divided by the samples of all
// lanes of the batch, n, also for a row that few of these samples use; so LR is a rate for the mean. PerRow divides a
// row's sum by its own count:
//
//	d = g/n;  d = clip(d);  d += WeightDecay*p;  then by kind, with the rate lr of Schedule at the batch's version:
//	sgd               m = Momentum*m + (1-Dampening)*d, the first time m = d;  p -= lr*m, with Nesterov lr*(d + Momentum*m)
//	adagrad           s += d*d;  p -= lr*d/(sqrt(s) + Eps)
//	rowwise_adagrad   the same with one s a row: s += mean of d*d over the row; a dense parameter has rows of one value
//	adam              m, v = means of d and d*d that forget by Beta1 and Beta2;  p -= lr*m'/(sqrt(v') + Eps), m' and v' unbiased
//	adamw             as adam, but p -= lr*WeightDecay*p first, in place of d += WeightDecay*p
//	ftrl              FTRL-proximal with L1, L2 and Beta, which has no WeightDecay
//
//	lanes of 1 and 3 samples give 1 and 6, sgd with LR 0.5 and no momentum: p -= 0.5*7/4
//
// docs/optimizers.md has each formula as it is computed, and its source. A program that steps along the sum, undivided,
// at a rate r needs r*n here. In async, and of tables whose TableConsistency is async, g and n are of the lanes of one
// trainer; in grouped of those of the group; of a module that a shard hosts they are of what is stepped. A row that no
// sample uses stays as it is, unless Exact.
//
// A field that a kind does not have is 0. WithDefaults gives values for those that are 0 where the kind has a default;
// where 0 is meant, a number too small to count says it (Beta1 of 1e-30). Fields that are 0 and not of every kind are
// left out of the encoding.
type Optimizer struct {
	Kind        string  `json:"kind"` // OptimizerSGD, OptimizerAdagrad, ...
	LR          float32 `json:"lr"`   // of the mean gradient, see above
	Momentum    float32 `json:"momentum"`
	Dampening   float32 `json:"dampening"`
	WeightDecay float32 `json:"weight_decay"` // of all but ftrl; default 0, of adamw 0.01
	Nesterov    bool    `json:"nesterov"`

	Beta1 float32 `json:"beta1,omitempty"` // of adam and adamw; default 0.9
	Beta2 float32 `json:"beta2,omitempty"` // default 0.999
	Eps   float32 `json:"eps,omitempty"`   // default 1e-8, of adagrad 1e-10
	// InitialAccumulator is s of adagrad and rowwise_adagrad before the first step; default 0.
	InitialAccumulator float32 `json:"initial_accumulator,omitempty"`
	Beta               float32 `json:"beta,omitempty"` // of ftrl; default 1
	L1                 float32 `json:"l1,omitempty"`   // of ftrl; default 0
	L2                 float32 `json:"l2,omitempty"`   // of ftrl; default 0

	Schedule *Schedule `json:"schedule,omitempty"` // of LR; nil where it is constant
	Clip     *Clipping `json:"clip,omitempty"`     // of the mean gradient; nil where nothing is clipped
	// Exact makes up, when a row is used again, for the batches that it sat out, each as one with a gradient of zero:
	// momentum and weight decay then act on every row in every batch. Of sgd at a constant rate.
	Exact bool `json:"exact,omitempty"`
}

// The kinds of clipping.
const (
	ClipValue  = "value"  // each value of the mean gradient to [-Max, Max]
	ClipRow    = "row"    // each row of a table's gradient to a norm of at most Max
	ClipGlobal = "global" // all gradients that are clipped so, together, to a norm of at most Max
)

// Clipping bounds the mean gradient before the optimizer sees it. A norm is the root of the sum of squares.
type Clipping struct {
	Kind string  `json:"kind"` // ClipValue, ClipRow or ClipGlobal
	Max  float32 `json:"max"`
}

// WithDefaults gives a copy in which fields that are 0 have the default of the kind: PyTorch's, of rowwise_adagrad
// FBGEMM's, of ftrl those of the paper. The copy shares Schedule and Clip.
func (o Optimizer) WithDefaults() Optimizer {
	setDefault(&o.Kind, OptimizerSGD)
	switch o.Kind {
	case OptimizerAdagrad:
		setDefault(&o.Eps, 1e-10)
	case OptimizerRowwiseAdagrad:
		setDefault(&o.Eps, 1e-8)
	case OptimizerAdam, OptimizerAdamW:
		setDefault(&o.Beta1, 0.9)
		setDefault(&o.Beta2, 0.999)
		setDefault(&o.Eps, 1e-8)
		if o.Kind == OptimizerAdamW { // without decay it is adam
			setDefault(&o.WeightDecay, 0.01)
		}
	case OptimizerFTRL:
		setDefault(&o.Beta, 1)
	}
	return o
}

// Rate is the learning rate of the batch that is computed on a version.
func (o *Optimizer) Rate(version uint64) float32 { return o.Schedule.lr(o.LR, version) }

// OptimizerOf is the optimizer of a table, its own or the job's, with defaults.
func (j *Job) OptimizerOf(t Table) Optimizer { return j.ownOrJobs(j.Tables[t].Optimizer) }

// OptimizerOfParameter is the optimizer of the i-th parameter of the manifest, its own or the job's, with defaults.
func (j *Job) OptimizerOfParameter(i int) Optimizer { return j.ownOrJobs(j.Parameters[i].Optimizer) }

func (j *Job) ownOrJobs(own *Optimizer) Optimizer {
	if own != nil {
		return own.normal()
	}
	return j.Optimizer.normal()
}

// normal gives a copy in the one way in which an optimizer is written: with defaults, and without a schedule that says
// nothing.
func (o Optimizer) normal() Optimizer {
	o = o.WithDefaults()
	if o.Schedule == nil {
		return o
	}
	s := *o.Schedule
	if len(s.Steps) == 0 {
		s.Steps = nil
	}
	if o.Schedule = &s; reflect.DeepEqual(s, Schedule{Kind: scheduleConstant}) {
		o.Schedule = nil
	}
	return o
}

// oneOptimizer reports whether two parameters have the same optimizer.
func (j *Job) oneOptimizer(a, b int) bool {
	own, other := j.Parameters[a].Optimizer, j.Parameters[b].Optimizer
	return own == other || reflect.DeepEqual(j.ownOrJobs(own), j.ownOrJobs(other))
}

// resolveOptimizers gives every optimizer its defaults; j has its tables and parameters to itself.
func (j *Job) resolveOptimizers() {
	j.Optimizer = j.Optimizer.WithDefaults()
	resolve := func(own **Optimizer) {
		if *own != nil {
			o := (*own).WithDefaults()
			*own = &o
		}
	}
	for i := range j.Tables {
		resolve(&j.Tables[i].Optimizer)
	}
	for i := range j.Parameters {
		resolve(&j.Parameters[i].Optimizer)
	}
}

// normalOptimizers writes optimizers in the one way that Encode and Diff know: with defaults, without a schedule that
// says nothing, and none of its own for a tensor that has the job's. j has its tables and parameters to itself.
func (j *Job) normalOptimizers() {
	if j.Optimizer.Kind != "" { // what no program wrote stays as it is, so that Diff and Validate can say so
		j.resolveOptimizers()
		j.Optimizer = j.Optimizer.normal()
	}
	own := func(o **Optimizer) {
		if *o == nil {
			return
		}
		n := (*o).normal()
		if *o = &n; reflect.DeepEqual(n, j.Optimizer) {
			*o = nil
		}
	}
	for i := range j.Tables {
		own(&j.Tables[i].Optimizer)
	}
	for i := range j.Parameters {
		own(&j.Parameters[i].Optimizer)
	}
}
