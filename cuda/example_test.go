package cuda_test

import (
	"fmt"

	"gradbus/cuda"
)

// The worked examples of docs/kernels.md.

func ExampleBackend_order() {
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	sum := func(rows []float32) float32 {
		keys, out := make([]int64, len(rows)), make([]float32, 1) // one key, 0
		if _, err := b.Coalesce(cuda.Coalesce{
			Dim: 1, Keys: cuda.Int64s(keys), Rows: cuda.Float32s(rows), OutKeys: cuda.Int64s(make([]int64, 1)),
			OutRows: cuda.Float32s(out),
		}); err != nil {
			panic(err)
		}
		return out[0]
	}
	rows := make([]float32, 130)
	for i := range rows {
		rows[i] = 1
	}
	rows[0] = 1 << 24
	fmt.Printf("large first %.0f\n", sum(rows))
	rows[0], rows[129] = 1, 1<<24
	fmt.Printf("large last %.0f\n", sum(rows))
	// Output:
	// large first 16777282
	// large last 16777344
}

func ExampleBackend_lanes() {
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	sum := func(lanes ...uint16) float32 {
		var terms []cuda.Term
		for _, lane := range lanes {
			value := []float32{1}
			if lane == 0 {
				value[0] = 1 << 24
			}
			terms = append(terms, cuda.Term{First: lane, Count: 1, Values: cuda.Float32s(value)})
		}
		out := make([]float32, 1)
		if err := b.Average(cuda.Average{Lanes: 5, Weight: 1, Terms: terms, Out: cuda.Float32s(out)}); err != nil {
			panic(err)
		}
		return out[0]
	}
	fmt.Printf("all of five lanes %.0f\n", sum(0, 1, 2, 3, 4))
	fmt.Printf("without lane 3 %.0f\n", sum(0, 1, 2, 4))
	// Output:
	// all of five lanes 16777220
	// without lane 3 16777216
}

func ExampleSGD() {
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	p, m := []float32{1}, []float32{8}
	slot := cuda.Slot{Name: "momentum", Before: cuda.Float32s(m), After: cuda.Float32s(m)}
	if err := b.ApplyDense(cuda.ApplyDense{
		Optimizer: cuda.SGD{LR: 0.5, Momentum: 0.5}, Weight: 2, Slots: []cuda.Slot{slot},
		Param: cuda.Float32s(p), Grad: cuda.Float32s([]float32{4}), Out: cuda.Float32s(p),
	}); err != nil {
		panic(err)
	}
	fmt.Println("p", p[0], "m", m[0])
	// Output: p -2 m 6
}
