package trainer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gradbus/nn"
	"gradbus/schema"
)

// Job describes a job: what is trained, and how. NewJob returns one with defaults. Its methods change it, in any order,
// and return it, so calls can be chained. Manifest, and with it Join and Train, reports all errors of the description
// at once.
//
//	job := trainer.NewJob("mf", 1).LR(0.1)
//	job.Dense("mu", 1).LR(0.5)
//	job.Table("users", 20000, 32).Normal(0.1).Decay(0.01)
//
// LR, SGD, Adagrad and the other methods of the optimizer apply to a Job, a Dense or a Table. A parameter or table that
// sets none of them uses the job's optimizer; one that sets any begins with the job's settings and changes these. Every
// parameter and table needs a rate, of its own or the job's.
type Job struct {
	optimizing[*Job]
	manifest schema.Job
	dense    []*Dense
	tables   []*Table
	adjust   []func(*schema.Job)
	from     *Model
}

// NewJob returns the description of a job with the given number of trainers, each of which runs the same program.
// Defaults: 8 lanes, or with more trainers the next power of two; seed 1; mode sync; plain SGD.
func NewJob(name string, trainers int) *Job {
	j := &Job{manifest: schema.Job{Name: schema.JobName(name), Trainers: trainers, Seed: 1}}
	j.self = j
	return j
}

// Lanes sets the number of slices of every batch, from the number of trainers to 4096. Jobs with equal lanes have equal
// bits for any number of trainers.
func (j *Job) Lanes(n int) *Job { return j.Adjust(func(m *schema.Job) { m.Lanes = n }) }

// Apply sets which party stores dense parameters and runs their optimizer: schema.ByShards or schema.ByTrainers.
func (j *Job) Apply(who schema.Party) *Job {
	return j.Adjust(func(m *schema.Job) {
		if m.Apply = schema.ApplyUpdate; who == schema.ByTrainers {
			m.Apply = schema.ApplyMean
		}
	})
}

// Reduce sets which party sums dense gradients: schema.ByShards or schema.ByTrainers.
func (j *Job) Reduce(who schema.Party) *Job {
	return j.Adjust(func(m *schema.Job) { m.Reduce = who.String() })
}

// From sets the model whose values the job begins with. The model must have the tensors of the job, with the same names
// and shapes. Optimizer states begin empty. Trainers with a different model are refused.
//
//	m, err := trainer.OpenModel("films.safetensors")
//	job.From(m)
func (j *Job) From(m *Model) *Job { j.from = m; return j }

// Adjust registers a function that changes the finished manifest, for everything without a method of its own:
// consistency, wire types, placement of tables, settings on which all trainers must agree.
//
//	job.Adjust(func(m *schema.Job) { m.Consistency, m.Ahead = schema.ConsistencyBounded, 2 })
func (j *Job) Adjust(change func(*schema.Job)) *Job {
	j.adjust = append(j.adjust, change)
	return j
}

// Dense adds a dense parameter. Its initial values are zero by default.
func (j *Job) Dense(name string, shape ...int) *Dense {
	d := &Dense{name: name, shape: shape}
	d.optimizing.self, d.drawing = d, drawing[*Dense]{d, schema.Zeros()}
	j.dense = append(j.dense, d)
	return d
}

// Module adds the parameters of a module of package nn, with its names and initial values.
func (j *Job) Module(m nn.Module) *Job {
	for _, p := range m.Parameters() {
		j.Dense(p.Name, p.Shape...).init = schema.Init{Kind: p.Kind, Scale: p.Scale}
	}
	return j
}

// Table adds an embedding table with keys from 0 to rows-1 and dim values per row. Its initial values must be set:
// Normal, Uniform or Zeros.
func (j *Job) Table(name string, rows, dim int) *Table {
	t := &Table{spec: schema.TableSpec{Name: name, Rows: uint64(max(rows, 0)), Dim: dim}}
	t.optimizing.self, t.drawing.self = t, t
	j.tables = append(j.tables, t)
	return t
}

// Dense is a dense parameter of a Job.
type Dense struct {
	optimizing[*Dense]
	drawing[*Dense]
	name  string
	shape []int
}

// Table is an embedding table of a Job.
type Table struct {
	optimizing[*Table]
	drawing[*Table]
	spec schema.TableSpec
}

// PerRow divides the sum of a row's gradients by the number of times that the lanes name its key, instead of by the
// number of samples in the batch. The learning rate then has the same effect on frequent and rare rows.
func (t *Table) PerRow() *Table { t.spec.PerRow = true; return t }

// Sum pools the table's rows by bags: the program uses the sum of each bag's rows.
func (t *Table) Sum() *Table { t.spec.Pooling = schema.PoolingSum; return t }

// Mean pools the table's rows by bags: the program uses the mean of each bag's rows.
func (t *Table) Mean() *Table { t.spec.Pooling = schema.PoolingMean; return t }

// Replicated stores the whole table, with its optimizer state, at every trainer.
func (t *Table) Replicated() *Table { t.spec.Replicated = true; return t }

// Reduce sets which party sums the gradients of a replicated table: schema.ByShards or schema.ByTrainers.
func (t *Table) Reduce(who schema.Party) *Table { t.spec.Reduce = who.String(); return t }

// Manifest returns the job's manifest with defaults filled in, after validating it. Errors: ErrConfig, with all faults.
func (j *Job) Manifest() (*schema.Job, error) {
	m := j.manifest
	m.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD}
	j.apply(&m.Optimizer)
	var wrong []error
	override := func(what string, o optimizer) *schema.Optimizer {
		if !j.rated && !o.hasRate() {
			wrong = append(wrong, fmt.Errorf("%s has no learning rate: want LR of it, or of the job", what))
		}
		return o.override(m.Optimizer)
	}
	for _, d := range j.dense {
		p := schema.Parameter{Name: d.name, Shape: d.shape, Init: d.init}
		p.Optimizer = override(fmt.Sprintf("parameter %q", p.Name), &d.optimizing)
		m.Parameters = append(m.Parameters, p)
	}
	for _, t := range j.tables {
		spec := t.spec
		if spec.Init = t.init; spec.Init.Kind == "" {
			wrong = append(wrong,
				fmt.Errorf("table %q does not say how its rows begin: want Normal, Uniform or Zeros", spec.Name))
			spec.Init = schema.Zeros()
		}
		spec.Optimizer = override(fmt.Sprintf("table %q", spec.Name), &t.optimizing)
		m.Tables = append(m.Tables, spec)
	}
	for _, change := range j.adjust {
		change(&m)
	}
	whole := m.WithDefaults()
	if err := j.from.begin(whole); err != nil {
		wrong = append(wrong, err)
	}
	if err := whole.Validate(); err != nil {
		wrong = append(wrong, err)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%w: job %q: %w", ErrConfig, m.Name, jobErrors(wrong))
	}
	return whole, nil
}

// jobErrors prints several errors in one line.
type jobErrors []error

// Error implements error.
func (e jobErrors) Error() string { return strings.ReplaceAll(errors.Join(e...).Error(), "\n", "; ") }

// Unwrap returns all errors.
func (e jobErrors) Unwrap() []error { return e }

// dataSettings adds to the manifest's settings the values on which trainers with one data set must agree.
func dataSettings(m *schema.Job, values map[string]int) {
	settings := map[string]string{}
	for name, value := range m.Settings {
		settings[name] = value
	}
	for name, value := range values {
		settings[name] = strconv.Itoa(value)
	}
	m.Settings = settings
}

// drawing sets the initial values of a Dense or a Table, which is B.
type drawing[B any] struct {
	self B
	init schema.Init
}

// Normal draws the initial values from a normal distribution with mean 0 and the given standard deviation.
func (d *drawing[B]) Normal(deviation float32) B { d.init = schema.Normal(deviation); return d.self }

// Uniform draws the initial values from [-bound, bound).
func (d *drawing[B]) Uniform(bound float32) B { d.init = schema.Uniform(bound); return d.self }

// Zeros sets the initial values to zero.
func (d *drawing[B]) Zeros() B { d.init = schema.Zeros(); return d.self }

// optimizing sets the optimizer of a Job, a Dense or a Table, which is B. Changes to a Dense or Table apply on top of
// the job's optimizer.
type optimizing[B any] struct {
	self    B
	changes []func(*schema.Optimizer)
	rated   bool // LR was called
}

// optimizer is an optimizing of any B.
type optimizer interface {
	hasRate() bool
	override(of schema.Optimizer) *schema.Optimizer
}

func (o *optimizing[B]) hasRate() bool { return o.rated }

// override returns the changes applied to the job's optimizer; nil if there are none.
func (o *optimizing[B]) override(of schema.Optimizer) *schema.Optimizer {
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

// kind sets another kind with its own defaults. Rate, decay, schedule and clipping stay.
func (o *optimizing[B]) kind(kind string, more func(*schema.Optimizer)) B {
	return o.change(func(to *schema.Optimizer) {
		*to = schema.Optimizer{Kind: kind, LR: to.LR, WeightDecay: to.WeightDecay, Schedule: to.Schedule, Clip: to.Clip}
		if more != nil {
			more(to)
		}
	})
}

// LR sets the learning rate. It applies to the mean gradient over the samples of a batch; see schema.Optimizer.
func (o *optimizing[B]) LR(rate float32) B {
	o.rated = true
	return o.change(func(to *schema.Optimizer) { to.LR = rate })
}

// Decay sets the weight decay. rate times the value is added to each gradient; AdamW instead subtracts it, times the
// learning rate, from the value.
func (o *optimizing[B]) Decay(rate float32) B {
	return o.change(func(to *schema.Optimizer) { to.WeightDecay = rate })
}

// SGD selects stochastic gradient descent, the default, with a momentum; 0: none.
func (o *optimizing[B]) SGD(momentum float32) B {
	return o.kind(schema.OptimizerSGD, func(to *schema.Optimizer) { to.Momentum = momentum })
}

// Nesterov enables Nesterov momentum for SGD.
func (o *optimizing[B]) Nesterov() B {
	return o.change(func(to *schema.Optimizer) { to.Nesterov = true })
}

// Exact also updates rows that the batch does not use, as plain SGD with momentum or decay would.
func (o *optimizing[B]) Exact() B {
	return o.change(func(to *schema.Optimizer) { to.Exact = true })
}

// Adagrad selects PyTorch's Adagrad with its defaults.
func (o *optimizing[B]) Adagrad() B { return o.kind(schema.OptimizerAdagrad, nil) }

// RowwiseAdagrad selects Adagrad with one sum of squares per row.
func (o *optimizing[B]) RowwiseAdagrad() B { return o.kind(schema.OptimizerRowwiseAdagrad, nil) }

// Adam selects PyTorch's Adam with its defaults.
func (o *optimizing[B]) Adam() B { return o.kind(schema.OptimizerAdam, nil) }

// AdamW selects PyTorch's AdamW with its defaults.
func (o *optimizing[B]) AdamW() B { return o.kind(schema.OptimizerAdamW, nil) }

// FTRL selects FTRL-Proximal with L1 and L2 regularization. It removes Decay.
func (o *optimizing[B]) FTRL(l1, l2 float32) B {
	return o.kind(schema.OptimizerFTRL, func(to *schema.Optimizer) { to.WeightDecay, to.L1, to.L2 = 0, l1, l2 })
}

// Betas sets the coefficients of Adam and AdamW.
func (o *optimizing[B]) Betas(first, second float32) B {
	return o.change(func(to *schema.Optimizer) { to.Beta1, to.Beta2 = first, second })
}

// Eps sets the term that keeps Adagrad and Adam from dividing by zero.
func (o *optimizing[B]) Eps(eps float32) B {
	return o.change(func(to *schema.Optimizer) { to.Eps = eps })
}

// Schedule sets the learning rate's change over the batches.
func (o *optimizing[B]) Schedule(s schema.Schedule) B {
	return o.change(func(to *schema.Optimizer) { to.Schedule = &s })
}

// ClipValue bounds the absolute value of each element of the mean gradient.
func (o *optimizing[B]) ClipValue(most float32) B { return o.clip(schema.ClipValue, most) }

// ClipRow bounds the norm of each row's mean gradient.
func (o *optimizing[B]) ClipRow(most float32) B { return o.clip(schema.ClipRow, most) }

// ClipGlobal bounds the joint norm of the mean gradients of all parameters and tables clipped this way.
func (o *optimizing[B]) ClipGlobal(most float32) B { return o.clip(schema.ClipGlobal, most) }

func (o *optimizing[B]) clip(kind string, most float32) B {
	return o.change(func(to *schema.Optimizer) { to.Clip = &schema.Clipping{Kind: kind, Max: most} })
}
