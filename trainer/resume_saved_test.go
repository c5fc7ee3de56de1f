package trainer

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// savedWork is the workload of the checkpoints below checkpoint/testdata/saved. Its gradients follow from values, batch and
// lane alone. Rows of a table named idle are not used.
type savedWork struct{ job *schema.Job }

// keys returns the keys of a table in a lane, of which two may be equal.
func (w savedWork) keys(b schema.Batch, l lane.Lane, table int) (keys []uint64) {
	t := &w.job.Tables[table]
	for i := range uint64(3) {
		if t.Name != "idle" {
			keys = append(keys, (7*uint64(b)+5*uint64(l)+3*i)%t.Rows)
		}
	}
	return keys
}

// Keys implements Workload.
func (w savedWork) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	for t := range keys {
		keys[t] = append(keys[t], w.keys(b, l, t)...)
	}
	return 2 + int(l), keys
}

// Bags implements Bagged: each key is a bag of its own.
func (w savedWork) Bags(b schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	for t := range offsets {
		if w.job.Tables[t].Pooling != "" {
			for i := range len(w.keys(b, l, t)) + 1 {
				offsets[t] = append(offsets[t], int64(i))
			}
		}
	}
	return offsets
}

// Lane implements Workload.
func (w savedWork) Lane(step *LaneStep) (float64, error) {
	at := float32(uint64(step.Batch)%4+1) * float32(step.Lane+1)
	for i := len(w.job.Parameters) - 1; i >= 0; i-- {
		name := w.job.Parameters[i].Name
		grad, values := step.Grad(name), step.Param(name)
		for k := range grad {
			grad[k] = float32(0.25*values[k]) + float32(0.125*at)*float32(k%5)
		}
		step.Done(name)
	}
	for t := range w.job.Tables {
		spec, table := &w.job.Tables[t], schema.Table(t)
		var values []float32
		switch keys := w.keys(step.Batch, step.Lane, t); {
		case len(keys) == 0:
			continue
		case spec.Pooling != "":
			values = append(values, step.Pooled(table)...)
		default:
			rows := step.Rows(table)
			for _, id := range step.IDs(table) {
				values = append(values, rows[int(id)*spec.Dim:(int(id)+1)*spec.Dim]...)
			}
		}
		for k := range values {
			values[k] = float32(0.5*values[k]) + float32(0.0625*at)*float32(k%3)
		}
		if spec.Pooling != "" {
			step.PooledGrad(table, values)
		} else {
			step.BagGrad(table, cuda.Sum, nil, values)
		}
	}
	return 0, nil
}

// Jobs of every kind resume from the checkpoints that an earlier build wrote, on other numbers of shards, with the
// values of that build, and go on with its bits.
func TestResumeSavedByAnEarlierBuild(t *testing.T) {
	const saved = "../checkpoint/testdata/saved"
	text, err := os.ReadFile(filepath.Join(saved, "digests.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		t.Run(fields[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, fields[0]), os.DirFS(filepath.Join(saved, fields[0]))); err != nil {
				t.Fatal(err)
			}
			resumeSaved(t, dir, fields)
		})
	}
}

// resumeSaved resumes the job of a kind, of which the line of digests.txt has these fields.
func resumeSaved(t *testing.T, dir string, fields []string) {
	found, err := checkpoint.List(dir, schema.JobName(fields[0]))
	if err != nil || len(found) == 0 || found[0].Err != nil {
		t.Fatalf("checkpoints %+v: %v", found, err)
	}
	m := found[0].Manifest
	model := slices.Contains([]string{"mean-bounded", "mean-replicated-by-trainers"}, fields[0])
	if err := m.Job.Validate(); (err == nil) == model {
		t.Fatalf("manifest: %v; want it refused: %v", err, model)
	}
	if model { // its modes are no longer legal together
		openSaved(t, dir, m)
		return
	}
	policy := checkpoint.Policy{Dir: dir, Every: time.Hour}
	config := testConfig(t, startServerWith(t, ps.Config{Shards: 3, Checkpoints: policy}))
	config.Resume = true
	if !m.Job.NeedsShards() { // its trainers wrote it: it is a model now
		job := *m.Job
		job.Policy = schema.PolicyFail
		_, err := Join(testContext(t), config, &job)
		checkError(t, err, &Refused{}, "its shards add up nothing")
		return
	}
	sessions := joinAll(t, config, m.Job)
	if got, want := sessions[0].Version(), m.Job.Counted(m.ID.Version); got != want {
		t.Errorf("resumed at version %d, want %d", got, want)
	}
	checkSaved(t, sessions, fields[3], "-")
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() {
			var err error
			if len(m.Job.Modules) > 0 {
				_, body := bodyJob("", 1, schema.ApplyUpdate)
				err = trainBody(testContext(t), s, body, 5)
			} else {
				err = s.Run(testContext(t), savedWork{m.Job}, 5, nil)
			}
			if err != nil {
				t.Errorf("trainer %d: %v", i, err)
			}
		})
	}
	if all.Wait(); !t.Failed() {
		checkSaved(t, sessions, fields[4], fields[6])
	}
}

// openSaved exports a checkpoint, and opens the model.
func openSaved(t *testing.T, dir string, m *checkpoint.Manifest) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := m.Export(dir, path); err != nil {
		t.Fatal(err)
	}
	if model, err := OpenModel(path); err != nil || model.Version != m.ID.Version {
		t.Errorf("%+v, %v", model, err)
	}
}

// checkSaved compares the weights of all trainers with a digest, and those of the module with another; "-" is any.
func checkSaved(t *testing.T, sessions []*Session, weights, module string) {
	t.Helper()
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() {
			if got, err := s.Digest(testContext(t)); err != nil || weights != "-" && hex.EncodeToString(got[:]) != weights {
				t.Errorf("trainer %d: weights %x, want %s: %v", i, got, weights, err)
			}
		})
	}
	all.Wait()
	if module == "-" {
		return
	}
	head, err := sessions[0].Module("head")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := head.Digest(testContext(t)); err != nil || hex.EncodeToString(got[:]) != module {
		t.Errorf("module %x, want %s: %v", got, module, err)
	}
}
