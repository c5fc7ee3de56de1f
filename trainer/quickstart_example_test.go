package trainer_test

import (
	"context"
	"errors"
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// README.md shows what stands between the two marks: TestQuickstart of internal/rules compares them.

// quickstart:

// squares learns the square of each number from 0 to 7: a table with a row of one value for each.
type squares struct{}

func (squares) Keys(_ schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	keys[0] = append(keys[0], uint64(l)) // lane l of every batch has one sample, the number l
	return 1, keys
}

func (squares) Lane(step *trainer.LaneStep) (loss float64, err error) {
	diff := step.Rows(0)[step.IDs(0)[0]] - float32(step.Lane*step.Lane)
	step.BagGrad(0, cuda.Sum, nil, []float32{diff}) // of the loss that follows; nil: one gradient for each key
	return float64(diff * diff / 2), nil
}

func train(ctx context.Context, server string) error {
	session, err := trainer.Join(ctx, trainer.Config{Server: server}, &schema.Job{
		Name: "squares", Optimizer: schema.Optimizer{LR: 4}, // of the mean over the batch's 8 samples
		Tables: []schema.TableSpec{{Name: "numbers", Rows: 8, Dim: 1, Init: schema.Zeros()}},
	})
	if err != nil {
		return err
	}
	err = session.Run(ctx, squares{}, 10, func(p trainer.Progress) { fmt.Printf("batch %d  loss %.3f\n", p.Batch, p.Loss) })
	return errors.Join(err, session.Close())
}

// :quickstart

func Example_quickstart() {
	server, _ := ps.Start(context.Background(), ps.Config{}, ps.Options{}) // or ./bin/ps, in a process of its own
	defer server.Close()
	fmt.Println(train(context.Background(), server.URL()))
	// Output:
	// batch 0  loss 292.250
	// batch 1  loss 73.062
	// batch 2  loss 18.266
	// batch 3  loss 4.566
	// batch 4  loss 1.142
	// batch 5  loss 0.285
	// batch 6  loss 0.071
	// batch 7  loss 0.018
	// batch 8  loss 0.004
	// batch 9  loss 0.001
	// <nil>
}
