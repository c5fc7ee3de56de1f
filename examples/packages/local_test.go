package packages_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/local"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// trainLocal runs a whole job in this process, without a server, and gives its digest, as its first trainer reads it.
func trainLocal(t *testing.T, s packages.Settings, data *corpus.Data, shards int) (digest [32]byte) {
	t.Helper()
	b := backend(t, "go")
	there, err := local.Start(t.Context(),
		local.Options{Shards: shards, Backend: b, Adjust: func(c *ps.Config, _ *ps.Options) { c.Deadline = 2 * patience }})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	err = there.Run(t.Context(), s.Trainers, func(ctx context.Context, i int, c trainer.Config) error {
		session, err := trainer.Join(ctx, c, packages.Job(s, data))
		if err != nil {
			return err
		}
		workload, err := packages.NewWorkload(s, data, b)
		if err == nil {
			err = session.Run(ctx, workload, s.Batches(data), nil)
		}
		if err == nil && i == 0 {
			digest, err = session.Digest(ctx)
		}
		if err != nil {
			return errors.Join(err, session.Abort(err))
		}
		return session.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// A job in one process ends with the weights of the same job on a server, bit for bit, however it is cut.
func TestLocalSameAsServer(t *testing.T) {
	data := small(t, 120)
	route := func(apply, reduce string) packages.Settings {
		s := settings(1, 4)
		s.Apply, s.Reduce, s.Epochs, s.Momentum, s.LR, s.Batch, s.Dim = apply, reduce, 1, 0.5, 1, 16, 2
		return s
	}
	for _, s := range []packages.Settings{route(schema.ApplyUpdate, ""), route(schema.ApplyMean, ""),
		route(schema.ApplyMean, schema.ReduceTrainers)} {
		two := s
		two.Trainers = 2
		want := train(t, two, data, 2, "go")[0]
		for _, trainers := range []int{1, 2, 4} {
			for _, shards := range []int{1, 2, 3} {
				if testing.Short() && (trainers+shards)%3 != 2 { // but 1 and 1, 2 and 3, 4 and 1: the others repeat
					continue
				}
				t.Run(fmt.Sprintf("%s %s %d trainers %d shards", s.Apply, s.Reduce, trainers, shards), func(t *testing.T) {
					s.Trainers = trainers
					if digest := trainLocal(t, s, data, shards); digest != want.digest {
						t.Errorf("weights %x, want %x", digest[:8], want.digest[:8])
					}
				})
			}
		}
	}
}
