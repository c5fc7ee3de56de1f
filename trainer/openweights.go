package trainer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gradbus/internal/safetensors"
	"gradbus/schema"
)

// ErrWeights: a file has no weights that a job can begin with; the text says what is wrong with them, and what would be
// right.
var ErrWeights = errors.New("no weights for job")

// OpenWeights reads the values that a job is to begin with (Job.From, Config.From) from a safetensors file of whoever
// wrote it: of PyTorch's state_dict, an export of a checkpoint, a model that Save wrote. The file has the tensors of
// the job, float32, by their names and in their shapes, a table as [rows, dim], and no others. The digest of a file
// that Save wrote is checked. Errors: ErrWeights, which names all tensors that do not fit, and that of opening the
// file.
//
//	m, err := trainer.OpenWeights("begin.safetensors", job)
func OpenWeights(path string, job *schema.Job) (*Model, error) {
	of := func(metadata map[string]string, tensors map[string]safetensors.Tensor) (m *Model, err error) {
		if _, saved := metadata[manifestEntry]; saved {
			m, err = unweighed(metadata, tensors)
		} else {
			m, err = weightsOf(metadata, tensors, job)
		}
		if err == nil {
			err = errors.Join(m.fits(job)...)
		}
		return m, err
	}
	m, err := safetensors.ReadAny(path, of)
	var unfit *safetensors.ContentError
	switch {
	case err == nil:
		err = m.checkDigests()
	case errors.As(err, &unfit):
		err = unfit.Err
	case errors.Is(err, safetensors.ErrFormat):
		return nil, fmt.Errorf("%w %q: %w", ErrWeights, job.Name, err)
	default:
		return nil, fmt.Errorf("open weights: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w %q: %s: %w", ErrWeights, job.Name, path, jobErrors{err})
	}
	m.open = func() (*Model, error) { return OpenWeights(path, job) }
	return m, nil
}

// weightsOf makes a model of tensors, whose values may be missing: those that are called as a table of the job are
// tables, if their shapes allow.
func weightsOf(metadata map[string]string, tensors map[string]safetensors.Tensor, job *schema.Job) (*Model, error) {
	has := *job
	has.Parameters, has.Tables, has.Start = nil, nil, nil
	m := &Model{Metadata: metadata, job: &has}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if t := tensors[name]; t.DType != "" {
			return nil, fmt.Errorf("%s has dtype %q, want F32", name, t.DType)
		}
	}
	take := func(name string) (t safetensors.Tensor, ok bool) {
		t, ok = tensors[name]
		delete(tensors, name)
		return t, ok
	}
	for _, spec := range job.Tables {
		if t, ok := take(spec.Name); ok && len(t.Shape) == 2 {
			spec.Rows, spec.Dim = uint64(t.Shape[0]), t.Shape[1]
			has.Tables, m.tables = append(has.Tables, spec), append(m.tables, t.Values)
		} else if ok {
			return nil, fmt.Errorf("tensor %q has the shape %v: want the [%d %d] of the table", spec.Name, t.Shape, spec.Rows,
				spec.Dim)
		}
	}
	for _, p := range job.Parameters {
		if t, ok := take(p.Name); ok {
			p.Shape = t.Shape
			has.Parameters, m.params = append(has.Parameters, p), append(m.params, t.Values)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) { // which the job has none of
		has.Parameters = append(has.Parameters, schema.Parameter{Name: name, Shape: tensors[name].Shape})
		m.params = append(m.params, tensors[name].Values)
	}
	return m, nil
}
