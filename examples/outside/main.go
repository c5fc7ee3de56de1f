// Command outside is a training program in a module of its own: which films do people like? It learns a row of values
// for each person and each film, whose product is how well one likes the other (matrix factorisation).
//
//	go run .                                    a server in this process, one trainer
//	go run . -server nats://127.0.0.1:4222      a trainer of a job at ./bin/ps
//	go run . -trainers 2 -server ...            one of two: start it twice; the digest is the same
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

const (
	people, films = schema.Table(0), schema.Table(1)

	peopleCount, filmCount = 400, 100
	dim                    = 8
	samplesPerLane         = 64
)

// taste is the workload. Its samples are drawn from (batch, lane), so that they do not depend on who computes the lane.
type taste struct{}

// Keys draws who watched what, and remembers nothing: Lane draws the same again.
func (taste) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	random := rand.New(rand.NewPCG(uint64(b), uint64(l)))
	for range samplesPerLane {
		keys[people] = append(keys[people], random.Uint64N(peopleCount))
		keys[films] = append(keys[films], random.Uint64N(filmCount))
	}
	return samplesPerLane, keys
}

// liked is what a person thinks of a film, which is what is to be learnt: people like films of their own kind.
func liked(person, film uint64) float32 {
	if person%4 == film%4 {
		return 1
	}
	return -1
}

// Lane computes loss and gradients of one lane: the squared error of each sample, and its derivatives, summed and never
// divided.
func (t taste) Lane(step *trainer.LaneStep) (loss float64, err error) {
	keys := [][]uint64{nil, nil}
	n, keys := t.Keys(step.Batch, step.Lane, keys)
	rows := [][]float32{step.Rows(people), step.Rows(films)}
	ids := [][]int64{step.IDs(people), step.IDs(films)}
	grads := [][]float32{make([]float32, n*dim), make([]float32, n*dim)}
	for i := range n {
		p, f := rows[people][ids[people][i]*dim:][:dim], rows[films][ids[films][i]*dim:][:dim]
		score := float32(0)
		for d := range dim {
			score += float32(p[d] * f[d])
		}
		diff := score - liked(keys[people][i], keys[films][i])
		loss += float64(diff * diff / 2)
		for d := range dim {
			grads[people][i*dim+d], grads[films][i*dim+d] = diff*f[d], diff*p[d]
		}
	}
	step.BagGrad(people, cuda.Sum, nil, grads[people]) // nil: one gradient for each key
	step.BagGrad(films, cuda.Sum, nil, grads[films])
	return loss, nil
}

// train joins the job and trains; out gets a line now and then, and the digest of the weights at the end.
func train(ctx context.Context, out io.Writer, server string, trainers, batches int) (loss float64, digest [32]byte,
	err error) {
	session, err := trainer.Join(ctx, trainer.Config{Server: server}, &schema.Job{
		Name: "taste", Seed: 1, Trainers: trainers,
		// of the mean over a batch of 512, in which a person has one sample and a film five
		Optimizer: schema.Optimizer{LR: 40},
		Tables: []schema.TableSpec{
			{Name: "people", Rows: peopleCount, Dim: dim, Init: schema.Uniform(0.3)},
			{Name: "films", Rows: filmCount, Dim: dim, Init: schema.Uniform(0.3)},
		},
	})
	if err != nil {
		return 0, digest, err
	}
	err = session.Run(ctx, taste{}, uint64(batches), func(p trainer.Progress) {
		if loss = p.Loss; p.Done%50 == 0 {
			fmt.Fprintf(out, "batch %d  loss %.4f\n", p.Done, p.Loss)
		}
	})
	if err == nil {
		digest, err = session.Digest(ctx)
	}
	if err != nil {
		session.Abort(err) // the others hear why
		return 0, digest, err
	}
	fmt.Fprintf(out, "weights %x by %s\n", digest, session.Backend().Name())
	return loss, digest, session.Close()
}

func run(ctx context.Context) error {
	server := flag.String("server", "", "address of a ps; empty starts one in this process")
	trainers := flag.Int("trainers", 1, "number of trainers of the job")
	batches := flag.Int("batches", 300, "number of batches")
	flag.Parse()
	if *server == "" {
		started, err := ps.Start(ctx, ps.Config{}, ps.Options{})
		if err != nil {
			return err
		}
		defer started.Close()
		*server = started.URL()
	}
	_, _, err := train(ctx, os.Stdout, *server, *trainers, *batches)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "outside:", err)
		os.Exit(1)
	}
}
