package nn_test

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/nn"
)

func ExampleDot() {
	fmt.Println(nn.Dot([]float32{1, 2, 3}, []float32{4, 5, 6}))
	// Output: 32
}

func ExampleAxpy() {
	y := []float32{1, 1}
	nn.Axpy(2, []float32{3, 4}, y)
	fmt.Println(y)
	// Output: [7 9]
}

// A linear layer and a ReLU over one sample, with the parameters that the caller has.
func ExampleNet() {
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	module := nn.Sequential(nn.LinearLayer{In: 2, Out: 2}, nn.ReLU{})
	net, err := nn.NewNet(module, []int{2}, nn.Env{Backend: backend})
	if err != nil {
		fmt.Println(err)
		return
	}
	weight, bias := []float32{1, 2, -3, -4}, []float32{10, 20}
	params := [][]float32{weight, bias}
	y, err := net.Forward(params, []float32{5, 6}, nn.Mode{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(y)

	gradients := [][]float32{make([]float32, 4), make([]float32, 2)}
	done := func(i int) { fmt.Println(net.Parameters()[i].Name, gradients[i]) }
	if _, err := net.Backward(params, []float32{1, 1}, func(i int) []float32 { return gradients[i] }, done); err != nil {
		fmt.Println(err)
	}
	// Output:
	// [27 0]
	// 0.bias [1 0]
	// 0.weight [5 6 0 0]
}
