package schema

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Kinds of optimizers.
const (
	OptimizerSGD            = "sgd"
	OptimizerAdagrad        = "adagrad"
	OptimizerRowwiseAdagrad = "rowwise_adagrad"
	OptimizerAdam           = "adam"
	OptimizerAdamW          = "adamw"
	OptimizerFTRL           = "ftrl"
)

// Optimizer is the rule by which gradients change parameters and rows.
//
// Lanes contribute gradients that are sums over their samples. The sum g over all lanes is divided once by n, the
// number of samples in the batch, also for a row that few samples use; so LR applies to the mean gradient. With PerRow,
// a row's sum is divided by the number of times that the lanes name its key instead:
//
//	d = g/n;  d = clip(d);  d += WeightDecay*p;  then by kind, with the rate lr of Schedule at the batch's version:
//	sgd               m = Momentum*m + (1-Dampening)*d, the first time m = d;  p -= lr*m, with Nesterov lr*(d + Momentum*m)
//	adagrad           s += d*d;  p -= lr*d/(sqrt(s) + Eps)
//	rowwise_adagrad   the same with one s a row: s += mean of d*d over the row; a dense parameter has rows of one value
//	adam              m, v = means of d and d*d that forget by Beta1 and Beta2;  p -= lr*m'/(sqrt(v') + Eps), m' and v' unbiased
//	adamw             as adam, but p -= lr*WeightDecay*p first, instead of d += WeightDecay*p
//	ftrl              FTRL-proximal with L1, L2 and Beta, without WeightDecay
//
//	lanes of 1 and 3 samples contribute 1 and 6, sgd with LR 0.5 and no momentum: p -= 0.5*7/4
//
// docs/optimizers.md has each formula as it is computed, and its source. A program that would step along the undivided
// sum at rate r sets LR to r*n. In async, and for tables whose TableConsistency is async, g and n are those of the
// lanes of one trainer; in grouped, those of the group; for a hosted module, those of the step. A row that no sample
// uses is unchanged, unless Exact is set.
//
// Fields that a kind does not have are 0. WithDefaults replaces 0 by the kind's default; a program that means 0 sets a
// number too small to have an effect (Beta1 of 1e-30). Fields that are 0 and not of every kind are omitted from the
// encoding.
type Optimizer struct {
	Kind        string  `json:"kind"` // OptimizerSGD, OptimizerAdagrad, ...
	LR          float32 `json:"lr"`   // rate for the mean gradient, see above
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

	Schedule *Schedule `json:"schedule,omitempty"` // of LR; nil: constant
	Clip     *Clipping `json:"clip,omitempty"`     // of the mean gradient; nil: none
	// Exact catches up, when a row is used again, on the batches that it missed, each as one with a gradient of zero:
	// momentum and weight decay then act on every row in every batch. For sgd at a constant rate.
	Exact bool `json:"exact,omitempty"`
}

// Kinds of clipping.
const (
	ClipValue  = "value"  // each value of the mean gradient to [-Max, Max]
	ClipRow    = "row"    // each row of a table's gradient to a norm of at most Max
	ClipGlobal = "global" // all gradients of this kind, together, to a norm of at most Max
)

// Clipping bounds the mean gradient before the optimizer sees it. A norm is the root of the sum of squares.
type Clipping struct {
	Kind string  `json:"kind"` // ClipValue, ClipRow or ClipGlobal
	Max  float32 `json:"max"`
}

// WithDefaults returns a copy in which zero fields have the default of the kind: PyTorch's; for rowwise_adagrad
// FBGEMM's; for ftrl those of the paper. The copy shares Schedule and Clip.
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
		if o.Kind == OptimizerAdamW { // without decay it would be adam
			setDefault(&o.WeightDecay, 0.01)
		}
	case OptimizerFTRL:
		setDefault(&o.Beta, 1)
	}
	return o
}

// Rate returns the learning rate of the batch that is computed on a version.
func (o *Optimizer) Rate(version uint64) float32 { return o.Schedule.lr(o.LR, version) }

// OptimizerOf returns the optimizer of a table, its own or the job's, with defaults.
func (j *Job) OptimizerOf(t Table) Optimizer { return j.ownOrJobs(j.Tables[t].Optimizer) }

// OptimizerOfParameter returns the optimizer of the i-th parameter of the manifest, its own or the job's, with
// defaults.
func (j *Job) OptimizerOfParameter(i int) Optimizer { return j.ownOrJobs(j.Parameters[i].Optimizer) }

func (j *Job) ownOrJobs(own *Optimizer) Optimizer {
	if own != nil {
		return own.normal()
	}
	return j.Optimizer.normal()
}

// normal returns a copy in canonical form: with defaults, and without a schedule that has no effect.
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

// resolveOptimizers sets the defaults of every optimizer; j must own its tables and parameters.
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

// normalOptimizers brings optimizers to the form that Encode and Diff compare: with defaults, without a schedule that
// has no effect, and without an own one for a tensor that has the job's. j must own its tables and parameters.
func (j *Job) normalOptimizers() {
	if j.Optimizer.Kind != "" { // Diff and Validate report an optimizer that no program set
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

// Kinds of schedules.
const (
	scheduleConstant = "constant"
	ScheduleLinear   = "linear"
	ScheduleCosine   = "cosine"
	scheduleSteps    = "steps"
)

// scheduleStepsMax bounds the number of entries of Schedule.Steps.
const scheduleStepsMax = 64

// Schedule is the factor of an optimizer's learning rate as a pure function of v, the number of batches applied. In
// async and grouped, v counts the updates that the owner of the values has applied.
//
//	v < Warmup   (v+1) / Warmup, whatever the kind; after it
//	constant     1
//	linear       1 - t + t*Final, where t = (v-Warmup) / (Total-Warmup), and from Total on Final
//	cosine       Final + (1-Final) * (1 + cos(pi*t)) / 2, with the same t
//	steps        Gamma to the power of the number of Steps that are at most v
//
// These are LambdaLR, LinearLR, CosineAnnealingLR and MultiStepLR of PyTorch, stepped after each batch.
type Schedule struct {
	Kind   string `json:"kind"`             // scheduleConstant, ScheduleLinear, ScheduleCosine or scheduleSteps
	Warmup uint64 `json:"warmup,omitempty"` // batches in which the rate rises to LR; 0 for none
	// For linear and cosine: the version at which the rate is Final*LR; above Warmup.
	Total uint64   `json:"total,omitempty"`
	Final float32  `json:"final,omitempty"` // of linear and cosine: 0 to 1
	Steps []uint64 `json:"steps,omitempty"` // of steps: versions, ascending
	Gamma float32  `json:"gamma,omitempty"` // of steps: above 0
}

// lr returns the rate at a version, computed in float64 and rounded once; base if s is nil. It has the same bits on
// every processor: no product is fused with a sum, and the cosine is this package's own.
//
//	(&Schedule{Kind: ScheduleLinear, Warmup: 2, Total: 6}).LR(1, 4) == 0.5
func (s *Schedule) lr(base float32, version uint64) float32 {
	if s == nil {
		return base
	}
	return float32(float64(base) * s.factor(version))
}

func (s *Schedule) factor(version uint64) float64 {
	if version < s.Warmup {
		return float64(version+1) / float64(s.Warmup)
	}
	final := float64(s.Final)
	t := 1.0
	if version < s.Total {
		t = float64(version-s.Warmup) / float64(s.Total-s.Warmup)
	}
	switch s.Kind {
	case ScheduleLinear:
		return 1 - t + float64(t*final)
	case ScheduleCosine:
		return final + float64((1-final)*(1+cosPi(t)))/2
	case scheduleSteps:
		factor := 1.0
		for _, at := range s.Steps {
			if version >= at {
				factor = float64(factor * float64(s.Gamma))
			}
		}
		return factor
	}
	return 1
}

// cosPi returns cos(pi*t) for t in [0, 1], within 1e-15, by its series: math.Cos may differ by a bit between
// processors.
func cosPi(t float64) float64 {
	if t > 0.5 {
		return -cosPi(1 - t)
	}
	square := float64(math.Pi*t) * float64(math.Pi*t)
	sum := 1.0
	for n := 22.0; n > 0; n -= 2 { // Horner: 1 - x²/(1*2) * (1 - x²/(3*4) * ...)
		sum = 1 - float64(square*sum)/float64(n*(n-1))
	}
	return sum
}

// Values of a table's placement and pooling.
const (
	PlacementRows    = "rows"    // rows are divided over the shards by their partitions; the default
	PlacementColumns = "columns" // every shard holds some columns of every row
	PlacementTables  = "tables"  // the table is whole on one shard
	PoolingSum       = "sum"     // a bag's output is the sum of its rows
	PoolingMean      = "mean"    // the same, divided by the number of the bag's keys
)

// Columns returns the columns [first, first+count) of a table that a shard has: all if the table is cut by rows, none
// if it is whole on another shard. If it is cut by columns, shard k of S has columns [k*dim/S, (k+1)*dim/S), rounded
// down.
func (p *Placement) Columns(t Table, shard int) (first, count int) {
	spec := &p.job.Tables[t]
	switch p.Plan.Tables[t].Cut {
	case CutColumns:
		if shard >= p.Shards {
			return 0, 0
		}
		first = shard * spec.Dim / p.Shards
		return first, (shard+1)*spec.Dim/p.Shards - first
	case CutNone:
		if shard != p.homes[t] {
			return 0, 0
		}
	}
	return 0, spec.Dim
}

// Holds reports whether an owner has rows of a partition, or columns of them.
func (p *Placement) Holds(t Table, part Partition, owner int) bool {
	if p.Plan.Tables[t].Cut.PooledByShards() {
		_, n := p.Columns(t, owner)
		return n > 0
	}
	return p.OwnerOfPartition(t, part) == owner
}

// SumTables returns the job's tables in the form of an owner's rounds: Dim is the number of values in gradients of rows
// there (TableSpec.SumDim), and 0 if it has no columns.
func (p *Placement) SumTables(owner int) []TableSpec {
	local := slices.Clone(p.job.Tables)
	for i := range local {
		if _, local[i].Dim = p.Columns(Table(i), owner); local[i].Dim > 0 && local[i].PerRow { // has all columns
			local[i].Dim++
		}
	}
	return local
}

// placeHomes places the tables that are whole on one shard on the shards in turn.
func (p *Placement) placeHomes() {
	p.homes = make([]int, len(p.job.Tables))
	next := 0
	for i := range p.job.Tables {
		if p.Plan.Tables[i].Cut == CutNone && p.Shards > 0 {
			p.homes[i] = next % p.Shards
			next++
		}
	}
}

// checkPooled checks one section of an answer that has pooled rows in place of rows by key.
func checkPooled(i int, s Section, offsets int) *FrameError {
	if s.Count != 0 || offsets != 0 {
		return Refuse(ReasonWrongShape, "section %d: pooled rows with %d keys and %d offsets: want none", i, s.Count, offsets)
	}
	return nil
}

// checkBagTables checks that only those tables are sent as bags that may be: gradients of all tables without PerRow,
// and lookups of tables that shards pool.
func (p *Placement) checkBagTables(v *View) *FrameError {
	bags := v.Bags()
	for i, s := range v.Sections() {
		known := uint64(s.Table) < uint64(len(p.job.Tables))
		switch {
		case bags[i].Count == 0:
		case v.head.Kind != KindSparse && !(known && p.Plan.Tables[s.Table].Cut.PooledByShards()):
			return Refuse(ReasonWrongShape, "bags of table %d: shards pool tables of placement %s or %s", s.Table,
				PlacementColumns, PlacementTables)
		case v.head.Kind == KindSparse && known && p.job.Tables[s.Table].PerRow:
			return Refuse(ReasonWrongShape, "bags of table %q: its rows have counts behind them", p.job.Tables[s.Table].Name)
		}
	}
	return nil
}

// Idle returns why a shard has nothing to do in the job; empty if it has chunks, rows or modules.
//
//	table embedding is whole on s0, dense chunks: 1, on other shards
func (p *Placement) Idle(shard int) string {
	if p.owned[shard] > 0 || p.HasRows(shard) {
		return ""
	}
	if t := p.trainers; t != nil && t != p && t.Idle(shard) == "" { // it is p if shards aggregate
		return ""
	}
	if slices.ContainsFunc(p.job.Modules, func(m ModuleSpec) bool { return m.Shard%p.Shards == shard }) {
		return ""
	}
	var why []string
	for i := range p.job.Tables {
		switch t := &p.job.Tables[i]; p.Plan.Tables[i].Cut {
		case CutNone:
			why = append(why, fmt.Sprintf("table %s is whole on %s", t.Name, ShardMember(p.homes[i])))
		case CutColumns:
			why = append(why, fmt.Sprintf("table %s has fewer columns than there are shards", t.Name))
		}
	}
	const named = 2
	if n := len(why) - named; n > 0 {
		why = append(why[:named], fmt.Sprintf("and likewise %d other tables", n))
	}
	if n := len(p.chunks); n > 0 {
		why = append(why, fmt.Sprintf("dense chunks: %d, on other shards", n))
	}
	if len(why) == 0 {
		return "the job has nothing for it"
	}
	return Clip(strings.Join(why, ", "))
}

// BusyShards returns which of a number of shards have something to do in the job: those for which Placement.Idle
// returns "". It needs no placement, and takes time by the length of the manifest and the number of shards only,
// because it is also called for jobs that there may be no memory for.
func (j *Job) BusyShards(shards int) []bool {
	plan, busy := j.Plan(), make([]bool, shards)
	asked := plan.Owner == ByTrainers && plan.Clock.Common() // for the state of trainers: see OfTrainers
	if plan.Reducer == ByShards || asked {
		for i := range j.shardsWithChunks(plan, shards) {
			busy[i] = true
		}
	}
	homes := unplaced(j, plan, shards)
	homes.placeHomes()
	for t := range j.Tables {
		if plan.Tables[t].Reducer != ByShards && !asked {
			continue
		}
		if plan.Tables[t].Cut == CutNone {
			busy[homes.homes[t]] = true
			continue
		}
		if plan.Tables[t].Cut == CutRows || j.Tables[t].Dim >= shards {
			return slices.Repeat([]bool{true}, shards) // each has rows, or columns
		}
		for i := range busy {
			_, columns := homes.Columns(Table(t), i)
			busy[i] = busy[i] || columns > 0
		}
	}
	for _, m := range j.Modules {
		busy[m.Shard%shards] = true
	}
	return busy
}

// countedBuckets bounds the buckets whose chunks are distributed to count the shards that get any, in addition to one
// for each parameter. If the first bucket is thousands of times as large as the others, there may be more.
const countedBuckets = 1 << 14

// shardsWithChunks returns the number of shards, the first ones, that have dense chunks if shards aggregate; or more,
// if that many buckets are not counted. Each shard has some if all values exceed one chunk on every other shard: then
// one of these has more than the largest chunk when the last shard is added (spread).
func (j *Job) shardsWithChunks(plan *Plan, shards int) (n int) {
	p, all, owners := unplaced(j, plan, shards), 0, plan.DenseShards(shards)
	for _, parameter := range j.Parameters {
		all += parameter.Elements()
	}
	first, others := p.elementsMax(0), p.elementsMax(1)
	if all > min(p.chunkElements, max(first, others))*(owners-1) || all/min(first, others) > countedBuckets {
		return owners
	}
	p.placeParameters()
	for _, owner := range spread(p.chunkSizes(), owners) {
		n = max(n, owner+1)
	}
	return n
}

// PartitionsOf returns the number of partitions of which a shard has rows or columns.
func (p *Placement) PartitionsOf(t Table, shard int) int {
	partitions := p.job.Tables[t].Partitions
	switch {
	case p.Plan.Tables[t].Cut.PooledByShards():
		if _, columns := p.Columns(t, shard); columns == 0 {
			return 0
		}
		return partitions
	case p.betweenTrainers(t):
		return 0
	}
	return (partitions + p.Shards - 1 - shard) / p.Shards // partitions go to the shards in turn
}
