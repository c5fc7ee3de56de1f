package trainer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gradbus/nn"
	"gradbus/schema"
)

// Job describes a job: what is trained, and how. NewJob gives one in which everything that has an obvious value has it;
// its methods say the rest, in any order, and give back what they were called on, so that they can follow each other.
// What is wrong is said by Manifest, and so by Join and Train, all at once.
//
//	job := trainer.NewJob("mf", 1).LR(0.1)
//	job.Dense("mu", 1).LR(0.5)
//	job.Table("users", 20000, 32).Normal(0.1).Decay(0.01)
type Job struct {
	optimizing[*Job]
	manifest schema.Job
	dense    []*Dense
	tables   []*Table
	adjust   []func(*schema.Job)
	from     *Model
}

// NewJob begins the description of a job of so many trainers. Each of them runs the same program.
func NewJob(name string, trainers int) *Job {
	j := &Job{manifest: schema.Job{Name: schema.JobName(name), Trainers: trainers, Seed: 1}}
	j.self = j
	return j
}

// Lanes is the number of slices that every batch is cut into, and so the most trainers that the job can have with the
// same bits.
func (j *Job) Lanes(n int) *Job { return j.Adjust(func(m *schema.Job) { m.Lanes = n }) }

// Apply sets who keeps dense parameters and their optimizer: schema.ByShards or schema.ByTrainers.
func (j *Job) Apply(who schema.Party) *Job {
	return j.Adjust(func(m *schema.Job) {
		if m.Apply = schema.ApplyUpdate; who == schema.ByTrainers {
			m.Apply = schema.ApplyMean
		}
	})
}

// Reduce sets who adds up dense gradients: schema.ByShards or schema.ByTrainers.
func (j *Job) Reduce(who schema.Party) *Job {
	return j.Adjust(func(m *schema.Job) { m.Reduce = who.String() })
}

// From begins with the values of a saved model, which has the tensors of the job: the same names and shapes. Its
// optimizers start with empty state. Trainers whose model is another are refused.
//
//	m, err := trainer.OpenModel("films.safetensors")
//	job.From(m)
func (j *Job) From(m *Model) *Job { j.from = m; return j }

// Adjust changes the manifest at the end in whatever has no method of its own: consistency, wire, placement of tables,
// settings that all trainers must agree on.
//
//	job.Adjust(func(m *schema.Job) { m.Consistency, m.Ahead = schema.ConsistencyBounded, 2 })
func (j *Job) Adjust(change func(*schema.Job)) *Job {
	j.adjust = append(j.adjust, change)
	return j
}

// Dense adds a dense parameter, which begins at zero where nothing else is said.
func (j *Job) Dense(name string, shape ...int) *Dense {
	d := &Dense{name: name, shape: shape}
	d.optimizing.self, d.drawing = d, drawing[*Dense]{d, schema.Zeros()}
	j.dense = append(j.dense, d)
	return d
}

// Module adds the parameters of a module of nn, with the names and the first values that it says.
func (j *Job) Module(m nn.Module) *Job {
	for _, p := range m.Parameters() {
		j.Dense(p.Name, p.Shape...).init = schema.Init{Kind: p.Kind, Scale: p.Scale}
	}
	return j
}

// Table adds an embedding table: so many rows of dim values, by keys from 0 on. How the rows begin has to be said.
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

// PerRow divides the sum of a row's gradients by their own number, and not by the samples of the batch: the rate is
// then one for each row, however rare it is.
func (t *Table) PerRow() *Table { t.spec.PerRow = true; return t }

// Sum makes bags of the table's keys, of which a program uses the sum.
func (t *Table) Sum() *Table { t.spec.Pooling = schema.PoolingSum; return t }

// Mean makes bags of the table's keys, of which a program uses the mean.
func (t *Table) Mean() *Table { t.spec.Pooling = schema.PoolingMean; return t }

// Replicated keeps the whole table, with its optimizer, at every trainer.
func (t *Table) Replicated() *Table { t.spec.Replicated = true; return t }

// Reduce sets who adds up the gradients of a replicated table: schema.ByShards or schema.ByTrainers.
func (t *Table) Reduce(who schema.Party) *Table { t.spec.Reduce = who.String(); return t }

// Manifest is the manifest of the job, with defaults and found right.
func (j *Job) Manifest() (*schema.Job, error) {
	m := j.manifest
	m.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD}
	j.apply(&m.Optimizer)
	var wrong []error
	own := func(what string, o optimizer) *schema.Optimizer {
		if !j.rated && !o.hasRate() {
			wrong = append(wrong, fmt.Errorf("%s has no learning rate: want LR of it, or of the job", what))
		}
		return o.own(m.Optimizer)
	}
	for _, d := range j.dense {
		p := schema.Parameter{Name: d.name, Shape: d.shape, Init: d.init}
		p.Optimizer = own(fmt.Sprintf("parameter %q", p.Name), &d.optimizing)
		m.Parameters = append(m.Parameters, p)
	}
	for _, t := range j.tables {
		spec := t.spec
		if spec.Init = t.init; spec.Init.Kind == "" {
			wrong = append(wrong,
				fmt.Errorf("table %q does not say how its rows begin: want Normal, Uniform or Zeros", spec.Name))
			spec.Init = schema.Zeros()
		}
		spec.Optimizer = own(fmt.Sprintf("table %q", spec.Name), &t.optimizing)
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

// jobErrors are several errors in one line.
type jobErrors []error

// Error implements error.
func (e jobErrors) Error() string { return strings.ReplaceAll(errors.Join(e...).Error(), "\n", "; ") }

// Unwrap gives all of them.
func (e jobErrors) Unwrap() []error { return e }

// dataSettings notes what trainers must have in common to be given one set of data.
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

// drawing sets the initial values of a parameter or a table; B is which of them.
type drawing[B any] struct {
	self B
	init schema.Init
}

// Normal draws the first values from a normal distribution with mean 0 and a standard deviation.
func (d *drawing[B]) Normal(deviation float32) B { d.init = schema.Normal(deviation); return d.self }

// Uniform draws the first values from [-bound, bound).
func (d *drawing[B]) Uniform(bound float32) B { d.init = schema.Uniform(bound); return d.self }

// Zeros begins with zeros.
func (d *drawing[B]) Zeros() B { d.init = schema.Zeros(); return d.self }

// optimizing sets the optimizer of a job, a parameter or a table; B is which of them. A parameter or table for which
// anything is set has an optimizer of its own: the job's, with these changes.
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

// SGD sets the default optimizer, with a momentum; 0: none.
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

// Adagrad is PyTorch's Adagrad, with its defaults.
func (o *optimizing[B]) Adagrad() B { return o.kind(schema.OptimizerAdagrad, nil) }

// RowwiseAdagrad is Adagrad with one sum of squares for a row.
func (o *optimizing[B]) RowwiseAdagrad() B { return o.kind(schema.OptimizerRowwiseAdagrad, nil) }

// Adam is PyTorch's Adam, with its defaults.
func (o *optimizing[B]) Adam() B { return o.kind(schema.OptimizerAdam, nil) }

// AdamW is PyTorch's AdamW, with its defaults.
func (o *optimizing[B]) AdamW() B { return o.kind(schema.OptimizerAdamW, nil) }

// FTRL is FTRL-proximal, with its two regularisations; it has no Decay.
func (o *optimizing[B]) FTRL(l1, l2 float32) B {
	return o.kind(schema.OptimizerFTRL, func(to *schema.Optimizer) { to.WeightDecay, to.L1, to.L2 = 0, l1, l2 })
}

// Betas are those of Adam and AdamW.
func (o *optimizing[B]) Betas(first, second float32) B {
	return o.change(func(to *schema.Optimizer) { to.Beta1, to.Beta2 = first, second })
}

// Eps sets the number that keeps Adagrad and Adam from dividing by zero.
func (o *optimizing[B]) Eps(eps float32) B {
	return o.change(func(to *schema.Optimizer) { to.Eps = eps })
}

// Schedule changes the learning rate from batch to batch.
func (o *optimizing[B]) Schedule(s schema.Schedule) B {
	return o.change(func(to *schema.Optimizer) { to.Schedule = &s })
}

// ClipValue bounds each value of the mean gradient.
func (o *optimizing[B]) ClipValue(most float32) B { return o.clip(schema.ClipValue, most) }

// ClipRow bounds the norm of the mean gradient of each row.
func (o *optimizing[B]) ClipRow(most float32) B { return o.clip(schema.ClipRow, most) }

// ClipGlobal bounds the norm of the mean gradient of all that is clipped so.
func (o *optimizing[B]) ClipGlobal(most float32) B { return o.clip(schema.ClipGlobal, most) }

func (o *optimizing[B]) clip(kind string, most float32) B {
	return o.change(func(to *schema.Optimizer) { to.Clip = &schema.Clipping{Kind: kind, Max: most} })
}
