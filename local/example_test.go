package local_test

import (
	"context"
	"fmt"

	"gradbus/local"
	"gradbus/trainer"
)

// A whole job in this process: two shards, and one trainer that learns the mean of four numbers.
func Example() {
	ctx := context.Background()
	shards, err := local.Start(ctx, local.Options{Shards: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer shards.Close()

	job := trainer.NewJob("mean", 1)
	job.Dense("mean", 1).LR(0.5)
	noKeys := func(float32, *trainer.Keys) {} // no tables
	data := trainer.Samples([]float32{1, 2, 3, 6}, 4, 1, noKeys).Epochs(20)
	session, err := trainer.Train(ctx, shards.Config(), job, data, func(b *trainer.Step[float32]) (loss float64) {
		for _, x := range b.Samples() {
			e := b.Param("mean")[0] - x
			b.Grad("mean")[0] += e
			loss += float64(e*e) / 2
		}
		return loss
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	fmt.Printf("%.3f\n", session.Param("mean")[0])
	// Output: 3.000
}
