package trainer

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/schema"
)

// moduleOracle repeats in this process, step by step, what trainers have done with a hosted module.
type moduleOracle struct {
	t        *testing.T
	backend  cuda.Backend
	spec     *schema.ModuleSpec
	net      *nn.Net
	versions [][][]float32
	momentum [][]float32
	sgd      cuda.SGD
}

func newModuleOracle(t *testing.T, job *schema.Job, index int) *moduleOracle {
	o := &moduleOracle{t: t, backend: testBackend(t), spec: &job.Modules[index],
		sgd: cuda.SGD{LR: job.Optimizer.LR, Momentum: job.Optimizer.Momentum}}
	module, err := nn.Build([]byte(o.spec.Module))
	if err != nil {
		t.Fatal(err)
	}
	if o.net, err = nn.NewNet(module, o.spec.In, nn.Env{Backend: o.backend}); err != nil {
		t.Fatal(err)
	}
	first, err := nn.Initial(module, o.spec.Seed)
	if err != nil {
		t.Fatal(err)
	}
	o.versions = append(o.versions, first)
	for _, p := range first {
		o.momentum = append(o.momentum, make([]float32, len(p)))
	}
	o.net.GradX = true
	return o
}

// pass repeats one pass.
func (o *moduleOracle) pass(saw schema.Version, b, lane uint64, in, out int) (y, gradX []float32, grads [][]float32) {
	o.t.Helper()
	x, gradY := moduleInput(b, lane, in, out)
	params := o.versions[saw]
	y, err := o.net.Forward(params, x, nn.Mode{Train: true, Random: nn.Random{Seed: o.spec.Seed, Batch: b, Lane: lane}})
	if err != nil {
		o.t.Fatal(err)
	}
	y = slices.Clone(y)
	for _, p := range params {
		grads = append(grads, make([]float32, len(p)))
	}
	if gradX, err = o.net.Backward(params, gradY, func(i int) []float32 { return grads[i] }, nil); err != nil {
		o.t.Fatal(err)
	}
	return y, gradX, grads
}

// step makes the next version.
func (o *moduleOracle) step(sum [][]float32, samples float32) {
	o.t.Helper()
	now := o.versions[len(o.versions)-1]
	var next [][]float32
	for i := range now {
		out, m := make([]float32, len(now[i])), cuda.Float32s(o.momentum[i])
		if err := o.backend.ApplyDense(cuda.ApplyDense{Optimizer: o.sgd, Weight: samples, First: len(o.versions) == 1,
			Slots: []cuda.Slot{{Name: "momentum", Before: m, After: m}}, Param: cuda.Float32s(now[i]),
			Grad: cuda.Float32s(sum[i]), Out: cuda.Float32s(out)}); err != nil {
			o.t.Fatal(err)
		}
		next = append(next, out)
	}
	o.versions = append(o.versions, next)
}

// checkHosted repeats all steps in their order.
func checkHosted(t *testing.T, job *schema.Job, s *Session, steps []moduleStep) {
	t.Helper()
	slices.SortFunc(steps, func(a, b moduleStep) int { return int(a.made) - int(b.made) })
	o, behind := newModuleOracle(t, job, 1), 0
	for i, step := range steps {
		if step.made != schema.Version(i+1) {
			t.Fatalf("step %d made version %d", i, step.made)
		}
		if step.saw < schema.Version(i) {
			behind++
		}
		var sum [][]float32
		for k, lane := range step.lanes {
			y, gradX, grads := o.pass(step.saw, step.batch, lane, 600, 700)
			if k == 0 {
				sum = grads
				equalValues(t, fmt.Sprintf("output of step %d", i), step.y, y)
				if step.gradX != nil {
					equalValues(t, fmt.Sprintf("gradient by the input of step %d", i), step.gradX, gradX)
				}
				for p, g := range step.gradients {
					equalValues(t, fmt.Sprintf("gradient of %s of step %d", g.Name, i), g.Values, grads[p])
				}
				continue
			}
			for p := range sum {
				for j := range sum[p] {
					sum[p][j] += grads[p][j]
				}
			}
		}
		o.step(sum, float32(3*len(step.lanes)))
	}
	t.Logf("%d of %d steps were by passes on an older version", behind, len(steps))
	m, err := s.Module("net")
	if err != nil {
		t.Fatal(err)
	}
	weights, version, err := m.Weights(testContext(t))
	if err != nil || version != schema.Version(len(steps)) {
		t.Fatalf("weights of version %d: %v", version, err)
	}
	for i, w := range weights {
		equalValues(t, w.Name, w.Values, o.versions[version][i])
	}
}
