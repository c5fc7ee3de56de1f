package philox_test

import (
	"fmt"

	"gradbus/philox"
)

// Every trainer draws the same dropout mask for lane 3 of batch 17.
func ExampleNew() {
	source := philox.New(1, "dropout", 17, 3, 0)
	mask := make([]float32, 8)
	source.Mask(mask, 0.5)
	fmt.Println(mask)
	// Output: [0 0 2 2 0 2 0 0]
}

func ExampleBlock() {
	fmt.Printf("%08x\n", philox.Block([4]uint32{}, [2]uint32{}))
	// Output: [6627e8d5 e169c58d bc57ac4c 9b00dbd8]
}

// Initial values depend on the seed and the name alone.
func ExampleFillTensor() {
	weight := make([]float32, 4)
	if err := philox.FillTensor(weight, philox.Uniform, 0.125, 1, "linear.weight"); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%.4f\n", weight)
	// Output: [0.0822 0.0860 0.0576 -0.0692]
}
