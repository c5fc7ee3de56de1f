package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"gradbus/nn"
	"gradbus/philox"
	"gradbus/ps"
	"gradbus/trainer"
)

// README.md and docs/programs.md show what stands between the two marks: TestQuickstart of internal/rules compares
// them.

// train learns a row of values for each user and film: their product and the mean make the rating (matrix
// factorisation).
func train(ctx context.Context, server string, ratings []rating, users, films int) error {
	// quickstart:
	job := trainer.NewJob("films", 1)
	job.Dense("mean", 1).LR(0.5)
	job.Table("users", users, 8).Normal(0.3).LR(0.1).Decay(0.01).PerRow()
	job.Table("films", films, 8).Normal(0.3).LR(0.1).Decay(0.01).PerRow()
	keys := func(r rating, k *trainer.Keys) { k.Add("users", r.user); k.Add("films", r.film) }
	data := trainer.Samples(ratings, 500, 1, keys).Epochs(10)
	s, err := trainer.Train(ctx, server, job, data, func(b *trainer.Step[rating]) (loss float64) {
		for n, r := range b.Samples() {
			user, film := b.Row("users", n), b.Row("films", n)
			e := b.Param("mean")[0] + nn.Dot(user, film) - r.stars
			nn.Axpy(e, film, b.RowGrad("users", n)) // the gradients of e*e/2
			nn.Axpy(e, user, b.RowGrad("films", n))
			b.Grad("mean")[0] += e
			loss += float64(e*e) / 2
		}
		return loss
	}, trainer.PrintEpochs)
	// :quickstart
	if err != nil {
		return err
	}
	return errors.Join(s.Save(ctx, "films.safetensors"), s.Close())
}

type rating struct {
	user, film uint64
	stars      float32
}

func Example_quickstart() {
	server, err := ps.Start(context.Background(), ps.Config{}, ps.Options{}) // or ./bin/ps, in a process of its own
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	defer os.Remove("films.safetensors")
	if err := train(context.Background(), server.URL(), someRatings(5000), 100, 60); err != nil {
		fmt.Println(err)
		return
	}
	model, err := trainer.OpenModel("films.safetensors") // without a server
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("user 7, film 9: %.1f stars\n", model.Param("mean")[0]+nn.Dot(model.Row("users", 7), model.Row("films", 9)))
	// Output:
	// epoch 1 of 10  loss 1.1575
	// epoch 2 of 10  loss 0.4456
	// epoch 3 of 10  loss 0.3776
	// epoch 4 of 10  loss 0.2744
	// epoch 5 of 10  loss 0.1619
	// epoch 6 of 10  loss 0.0873
	// epoch 7 of 10  loss 0.0573
	// epoch 8 of 10  loss 0.0471
	// epoch 9 of 10  loss 0.0436
	// epoch 10 of 10  loss 0.0418
	// user 7, film 9: 2.3 stars
}

// someRatings are drawn: a user likes films of its own kind, of three, give or take half a star.
func someRatings(n int) []rating {
	all, random := make([]rating, n), philox.New(1, "ratings", 0, 0, 0)
	for i := range all {
		r := rating{user: uint64(random.Below(100)), film: uint64(random.Below(60)),
			stars: 2 + float32(random.Below(100))/100}
		if r.user%3 == r.film%3 {
			r.stars += 2
		}
		all[i] = r
	}
	return all
}
