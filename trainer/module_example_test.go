package trainer_test

import (
	"context"
	"fmt"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// A shard holds the module and computes; the trainer has the data and the loss.
func ExampleModule() {
	ctx := context.Background()
	backend, _ := cuda.Open(cuda.Options{})
	defer backend.Close()
	server, _ := ps.Start(ctx, ps.Config{}, ps.Options{Backend: backend}) // or ./bin/ps, in a process of its own
	defer server.Close()
	session, err := trainer.Join(ctx, trainer.Config{Server: server.URL(), Backend: backend}, &schema.Job{
		Name: "line", Workload: "line", Trainers: 1, Lanes: 1, Consistency: schema.ConsistencyAsync,
		Apply:  schema.ApplyUpdate,
		Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytes,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.3},
		Modules: []schema.ModuleSpec{{Name: "line", In: []int{1}, Module: `[{"linear":{"in":1,"out":1}}]`, Samples: 8,
			Contexts: 2}}})
	if err != nil {
		panic(err)
	}
	line, err := session.Module("line")
	if err != nil {
		panic(err)
	}
	x, target, gradY := []float32{-1, 0, 1}, []float32{-1, 1, 3}, make([]float32, 3) // y = 2x + 1
	for b := range schema.Batch(200) {
		pass, y, err := line.Forward(ctx, b, 0, x)
		if err != nil {
			panic(err)
		}
		if _, err := nn.MSE(y, target, gradY, 1); err != nil {
			panic(err)
		}
		if _, err := pass.BackwardStep(ctx, gradY, len(x)); err != nil {
			panic(err)
		}
	}
	y, err := line.Evaluate(ctx, []float32{10})
	fmt.Printf("%.2f %v %v\n", y, err, session.Close())
	// Output:
	// [21.00] <nil> <nil>
}
