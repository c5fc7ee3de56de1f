package trainer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"gradbus/lane"
	"gradbus/schema"
)

// begin notes in a manifest that the job begins with the values of the model, or compares them with those that it
// notes. A nil Model is none.
func (m *Model) begin(job *schema.Job) error {
	if m == nil {
		return nil
	}
	digest := hex.EncodeToString(m.digest[:])
	if job.Start != nil && job.Start.Digest != digest {
		return fmt.Errorf("%w: job %q begins with a model whose digest is %s: the model given has %s", ErrConfig, job.Name,
			job.Start.Digest, digest)
	}
	if err := errors.Join(m.fits(job)...); err != nil {
		return fmt.Errorf("%w: job %q cannot begin with the model: %w", ErrConfig, job.Name, jobErrors{err})
	}
	if job.Start == nil {
		job.Start = job.NewStart(digest)
		if m.dense {
			job.Start = &schema.StartModel{Digest: digest, Batches: 1, Dense: true}
		}
	}
	if job.Start.Dense != m.dense {
		return fmt.Errorf("%w: job %q begins with dense values alone: %v, and the model given has them alone: %v", ErrConfig,
			job.Name, job.Start.Dense, m.dense)
	}
	return nil
}

// denseModel is a model of dense values alone, of which a job begins with tables that are drawn.
func denseModel(job *schema.Job, values map[string][]float32) (*Model, error) {
	parameters := *job
	parameters.Tables = nil
	m := &Model{job: &parameters, dense: true}
	for _, p := range job.Parameters {
		v, ok := values[p.Name]
		if !ok || len(v) != p.Elements() {
			return nil, fmt.Errorf("%w: job %q: Dense has %d values of parameter %q: want %d", ErrConfig, job.Name, len(v),
				p.Name, p.Elements())
		}
		m.params = append(m.params, slices.Clone(v))
	}
	if len(values) > len(m.params) {
		return nil, fmt.Errorf("%w: job %q: Dense has %d parameters: want the %d of the manifest alone", ErrConfig, job.Name,
			len(values), len(m.params))
	}
	var err error
	m.digest, err = m.weigh()
	return m, err
}

// fits lists how the tensors of the model differ from those of a job, and values that no gradient may have.
func (m *Model) fits(job *schema.Job) (wrong []error) {
	has := map[string][]int{}
	for i, p := range m.job.Parameters {
		has["parameter "+p.Name] = p.Shape
		wrong = append(wrong, finite("parameter", p.Name, m.params[i]))
	}
	for i, t := range m.job.Tables {
		has["table "+t.Name] = []int{int(t.Rows), t.Dim}
		wrong = append(wrong, finite("table", t.Name, m.tables[i]))
	}
	wants := func(kind, name string, shape []int) {
		saved, ok := has[kind+" "+name]
		switch delete(has, kind+" "+name); {
		case !ok:
			wrong = append(wrong, fmt.Errorf("%s %q: the model has none of that name: want one of shape %v", kind, name, shape))
		case !slices.Equal(saved, shape):
			wrong = append(wrong, fmt.Errorf("%s %q: the model's has the shape %v: want %v", kind, name, saved, shape))
		}
	}
	for _, p := range job.Parameters {
		wants("parameter", p.Name, p.Shape)
	}
	for _, t := range job.Tables {
		if m.dense {
			break
		}
		wants("table", t.Name, []int{int(t.Rows), t.Dim})
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		wrong = append(wrong, fmt.Errorf("the model has a %s of shape %v: the job has none", name, has[name]))
	}
	return wrong
}

func finite(kind, name string, values []float32) error {
	for i, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%s %q of the model: value %d is %v: want finite values", kind, name, i, v)
		}
	}
	return nil
}

// assigning is the workload of these batches: lane 0 has one sample, which uses a stretch of the rows of every table,
// and gives values as gradients. Parameters have one in every batch, since a gradient that is not given is zero.
type assigning struct {
	model *Model
	job   *schema.Job
}

// stretch is the rows of a table in a batch.
func (w *assigning) stretch(t int, b schema.Batch) (lo, hi int) {
	if w.job.Start.Dense {
		return 0, 0
	}
	rows, batches := int(w.job.Tables[t].Rows), w.job.Start.Batches
	return rows/batches*int(b) + min(int(b), rows%batches), rows/batches*(int(b)+1) + min(int(b)+1, rows%batches)
}

// Keys implements Workload.
func (w *assigning) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if l != 0 {
		return 0, keys
	}
	for t := range keys {
		lo, hi := w.stretch(t, b)
		for key := lo; key < hi; key++ {
			keys[t] = append(keys[t], uint64(key))
		}
	}
	return 1, keys
}

// Bags implements Bagged: each key is a bag of its own.
func (w *assigning) Bags(b schema.Batch, _ lane.Lane, offsets [][]int64) [][]int64 {
	for t := range offsets {
		if w.job.Tables[t].Pooling == "" {
			continue
		}
		lo, hi := w.stretch(t, b)
		for at := range hi - lo + 1 {
			offsets[t] = append(offsets[t], int64(at))
		}
	}
	return offsets
}

// Lane implements Workload.
func (w *assigning) Lane(step *LaneStep) (float64, error) {
	for i := len(w.job.Parameters) - 1; i >= 0; i-- { // in which order they travel
		name := w.job.Parameters[i].Name
		copy(step.Grad(name), w.model.Param(name))
		step.Done(name)
	}
	for t := range w.job.Tables {
		spec := &w.job.Tables[t]
		lo, hi := w.stretch(t, step.Batch)
		if lo == hi {
			continue
		}
		values := w.model.Table(spec.Name)[lo*spec.Dim : hi*spec.Dim]
		if p := spec.Padding; p != nil && uint64(lo) <= *p && *p < uint64(hi) {
			values = slices.Clone(values)
			clear(values[(int(*p)-lo)*spec.Dim:][:spec.Dim])
		}
		switch table := schema.Table(t); {
		case pooledByShards(*spec):
			step.PooledGrad(table, values)
		default:
			step.RowGrad(table, slices.Clone(step.IDs(table)), values) // keys ascend: each is the next row
		}
	}
	return 0, nil
}
