package mnist_test

import (
	"testing"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/nn"
	"gradbus/schema"
)

// BenchmarkStep is one local step of the model, batch 32 on one thread: images are normalised, forward, loss, backward,
// and SGD's step over all parameters.
//
//	go test -tags native ./examples/mnist -run '^$' -bench Step
func BenchmarkStep(b *testing.B) {
	for _, library := range cuda.DenseNames() {
		b.Run(library, func(b *testing.B) { benchmarkStep(b, library) })
	}
}

func benchmarkStep(b *testing.B, library string) {
	backend, err := cuda.Open(cuda.Options{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{Library: library})
	if err != nil {
		b.Skip(err)
	}
	defer dense.Close()
	m := mnist.Model()
	net, err := nn.NewNet(m, mnist.Input(), nn.Env{Backend: backend, Dense: dense})
	if err != nil {
		b.Fatal(err)
	}
	params, err := nn.Initial(m, 1)
	if err != nil {
		b.Fatal(err)
	}
	grads := make([][]float32, len(params))
	for i, p := range params {
		grads[i] = make([]float32, len(p))
	}
	const batch = 32
	feed, err := mnist.NewFeed(1, &mnist.Synthetic(10*batch, 1).Train, batch, 1)
	if err != nil {
		b.Fatal(err)
	}
	grad := func(i int) []float32 { return grads[i] }
	x, targets, gradY := []float32(nil), []int32(nil), make([]float32, batch*mnist.Classes)
	at := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		x, targets = feed.Fill(schema.Batch(at), 0, x[:0], targets[:0])
		y, err := net.Forward(params, x, nn.Mode{Train: true, Random: nn.Random{Batch: at}})
		if err == nil {
			_, err = nn.NLL(y, mnist.Classes, targets, gradY)
		}
		if err == nil {
			_, err = net.Backward(params, gradY, grad, nil)
		}
		for i, p := range params {
			for j, g := range grads[i] {
				p[j] -= 0.03 / batch * g
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		at++
	}
	b.ReportMetric(batch*float64(b.N)/b.Elapsed().Seconds(), "images/s")
}
