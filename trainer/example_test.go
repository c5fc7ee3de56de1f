package trainer_test

import (
	"context"
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// parity learns which of the numbers 0 to 3 are odd: a number's row and a bias are its logits.
type parity struct{ loss *nn.CrossEntropy }

// Keys: lane 0 has the even numbers, lane 1 the odd ones.
func (parity) Keys(_ schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	keys[0] = append(keys[0], uint64(l), uint64(l)+2)
	return 2, keys
}

func (p parity) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	ids, rows, bias := step.IDs(0), step.Rows(0), step.Param("bias")
	var logits, grad [4]float32 // of two samples and two classes
	for i := range logits {
		logits[i] = rows[ids[i/2]*2+int64(i%2)] + bias[i%2]
	}
	lossSum, err = p.loss.Loss(logits[:], []int32{int32(step.Lane), int32(step.Lane)}, grad[:])
	g := step.Grad("bias")
	g[0], g[1] = grad[0]+grad[2], grad[1]+grad[3]
	step.Done("bias") // travels from here on
	step.RowGrad(0, ids, grad[:])
	return lossSum, err
}

func Example() {
	ctx, losses := context.Background(), []float64{}
	backend, _ := cuda.Open(cuda.Options{})
	defer backend.Close()
	server, _ := ps.Start(ctx, ps.Config{}, ps.Options{Backend: backend}) // or ./bin/ps, in a process of its own
	defer server.Close()
	session, err := trainer.Join(ctx, trainer.Config{Server: server.URL(), Backend: backend}, &schema.Job{
		Name: "parity", Workload: "parity", Trainers: 1, Lanes: 2, Consistency: schema.ConsistencySync,
		Apply:  schema.ApplyUpdate,
		Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytes,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1, Momentum: 0.9},
		Parameters: []schema.Parameter{{Name: "bias", Shape: []int{2}, Init: schema.Init{Kind: schema.InitZeros}}},
		Tables: []schema.TableSpec{{Name: "numbers", Rows: 4, Dim: 2, Partitions: 4,
			Init: schema.Init{Kind: schema.InitZeros}}}})
	if err != nil {
		panic(err)
	}
	err = session.Run(ctx, parity{nn.NewCrossEntropy(backend, 2)}, 20,
		func(p trainer.Progress) { losses = append(losses, p.Loss) })
	rows, _ := session.Lookup(ctx, []trainer.Query{{Table: 0, Keys: []uint64{2, 3}}})
	fmt.Printf("loss %.4f, then %.4f\n", losses[0], losses[19])
	fmt.Println("2 is odd:", rows[0][1] > rows[0][0], " 3 is odd:", rows[0][3] > rows[0][2], " errors:", err,
		session.Close())
	// Output:
	// loss 0.6931, then 0.0005
	// 2 is odd: false  3 is odd: true  errors: <nil> <nil>
}

// Ids of users and items are not rows. They are hashed into them, with a salt for each table.
func ExampleHashID() {
	const usersRows, itemsRows = 1 << 20, 1 << 16
	fmt.Println(trainer.HashID(9_007_199_254_740_993, usersRows, 0))
	fmt.Println(trainer.HashID(trainer.HashString("item:42"), itemsRows, 1))
	fmt.Println(trainer.HashID(trainer.HashString("item:43"), itemsRows, 1))
	// Output:
	// 903323
	// 19710
	// 48959
}
