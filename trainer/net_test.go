package trainer

import (
	"slices"
	"testing"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// A net as a workload has the gradients of the net by itself: one lane of two samples, one step.
func TestNetWorkload(t *testing.T) {
	t.Parallel()
	module := nn.Sequential(nn.LinearLayer{In: 3, Out: 2}, nn.Dropout{P: 0.5})
	net, err := nn.NewNet(module, []int{3}, nn.Env{Backend: testBackend(t)})
	if err != nil {
		t.Fatal(err)
	}
	net.GradX = true
	x, gradX := []float32{1, 2, 3, 4, 5, 6}, []float32(nil)
	w := &NetWorkload{Net: net, Seed: 5, Samples: func(schema.Batch, lane.Lane) int { return 2 },
		Input: func(*LaneStep) ([]float32, error) { return x, nil },
		Loss: func(_ *LaneStep, y, gradY []float32) (loss float64, err error) {
			for i := range y {
				gradY[i], loss = y[i], loss+float64(y[i]*y[i]/2)
			}
			return loss, nil
		},
		InputGrad: func(_ *LaneStep, g []float32) { gradX = slices.Clone(g) }}
	manifest, err := NewJob("net", 1).Lanes(1).LR(0.5).Module(module).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	s := joinAll(t, testConfig(t, startServer(t, 1)), manifest)[0]
	params := [][]float32{slices.Clone(s.Param("0.weight")), slices.Clone(s.Param("0.bias"))}
	if err := s.Run(testContext(t), w, 1, nil); err != nil {
		t.Fatal(err)
	}
	y, err := net.Forward(params, x, nn.Mode{Train: true, Random: nn.Random{Seed: 5}})
	if err != nil {
		t.Fatal(err)
	}
	grads := [][]float32{make([]float32, 6), make([]float32, 2)}
	want, err := net.Backward(params, slices.Clone(y), func(i int) []float32 { return grads[i] }, nil)
	if err != nil || !slices.Equal(gradX, want) {
		t.Errorf("gradient of the input %v, want %v: %v", gradX, want, err)
	}
	for i, name := range []string{"0.weight", "0.bias"} {
		for k := range params[i] {
			params[i][k] -= 0.5 * (grads[i][k] / 2)
		}
		if !slices.Equal(s.Param(name), params[i]) {
			t.Errorf("%s %v, want %v", name, s.Param(name), params[i])
		}
	}
}
