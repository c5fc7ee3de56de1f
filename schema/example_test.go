package schema_test

import (
	"fmt"

	"gradbus/lane"
	"gradbus/schema"
)

// A frame with the gradient of a dense chunk is built once, filled in place and sealed; its receiver verifies all of it
// before it reads any field.
func ExampleVerify() {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, Values: 3 * 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	f.SetHead(schema.Head{Batch: 7, Chunks: 1, Node: lane.Node{Count: 2}, Lanes: 4, Weight: 32})
	copy(f.Float32s(), []float32{1, -2, 0.5})
	message := f.Seal()

	v, err := schema.Verify(message, schema.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	head := v.Head()
	fmt.Println(head.Kind, head.Batch, head.Node, head.Weight, v.Float32s())

	message[len(message)-1] ^= 1
	_, err = schema.Verify(message, schema.Limits{})
	fmt.Println(schema.ReasonOf(err))
	// Output:
	// dense 7 [0,2) 32 [1 -2 0.5]
	// damaged
}

// WithDefaults completes a manifest, and a placement says which shard has which key.
func ExampleNewPlacement() {
	job := (&schema.Job{
		Name:      "clicks",
		Optimizer: schema.Optimizer{LR: 0.1},
		Tables:    []schema.TableSpec{{Name: "users", Rows: 1000, Dim: 8, Init: schema.Normal(0.1)}},
	}).WithDefaults()
	if err := job.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	place := schema.NewPlacement(job, 2)
	for _, key := range []uint64{0, 1, 65} {
		fmt.Println(key, place.Owner(place.OwnerOfKey(0, key)))
	}
	// Output:
	// 0 s0
	// 1 s1
	// 65 s0
}
