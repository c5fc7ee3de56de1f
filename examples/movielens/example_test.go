package movielens_test

import (
	"context"
	"fmt"

	"gradbus/examples/movielens"
	"gradbus/local"
	"gradbus/nn"
	"gradbus/trainer"
)

// A recommender by itself, in this process alone: tables by name, samples, and a function that computes them.
func Example() {
	ctx := context.Background()
	data, err := movielens.Load(movielens.InputSynthetic, movielens.SplitUser) // or a ratings.csv
	if err != nil {
		fmt.Println(err)
		return
	}
	const rows = 4096
	user := func(r movielens.Rating) uint64 { return trainer.HashID(r.User, rows, 0) }
	film := func(r movielens.Rating) uint64 { return trainer.HashID(r.Movie, rows, 1) }
	score := func(p, q []float32) float32 { return data.Mean + p[0] + q[0] + nn.Dot(p[1:], q[1:]) }

	job := trainer.NewJob("films", 1).Adagrad().LR(0.05)
	job.Table("users", rows, 9).Normal(0.03)
	job.Table("films", rows, 9).Normal(0.03)
	samples := trainer.Samples(data.Train, 128, 1, func(r movielens.Rating, k *trainer.Keys) {
		k.Add("users", user(r))
		k.Add("films", film(r))
	}).Epochs(20)
	shards, err := local.Start(ctx, local.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer shards.Close()
	session, err := trainer.Train(ctx, shards.Config(), job, samples,
		func(b *trainer.Step[movielens.Rating]) (loss float64) {
			for n, r := range b.Samples() {
				p, q := b.Row("users", n), b.Row("films", n)
				gradP, gradQ := b.RowGrad("users", n), b.RowGrad("films", n)
				e := score(p, q) - r.Stars
				gradP[0], gradQ[0] = gradP[0]+e, gradQ[0]+e
				nn.Axpy(e, q[1:], gradP[1:])
				nn.Axpy(e, p[1:], gradQ[1:])
				loss += float64(e*e) / 2
			}
			return loss
		})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	model, err := session.Weights(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	first := data.Test[0]
	fmt.Printf("user %d gave film %d %.1f stars; foretold: %.1f\n", first.User, first.Movie, first.Stars,
		score(model.Row("users", user(first)), model.Row("films", film(first))))
	// Output:
	// user 1 gave film 49 4.5 stars; foretold: 4.7
}
