// Package referencetest trains the packages model in one process, in the plainest way: no session, no frames, no
// shards, no layers, no distinct keys. What a job of any number of trainers and shards gives must have the same digest,
// bit for bit.
//
// It knows the arithmetic of package cuda, the lane tree, the random numbers and the examples. It must not know schema,
// fabric, ps, nn or trainer, not even for a constant: the digest's rules are written here a second time on purpose. A
// newcomer who changes the model changes it here too, by hand.
package referencetest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
	"gradbus/lane"
	"gradbus/philox"
)

// Options are the settings that determine the result, besides the examples.
type Options struct {
	Epochs, Batch, Dim, Lanes int
	LR, Momentum              float32
	Seed                      uint64
	Partitions                int          // of the table, for the digest
	Backend                   cuda.Backend // nil for the portable one
}

// Result is a trained model.
type Result struct {
	Digest    [32]byte
	Accuracy  float64 // on the test set
	Loss      float64 // mean over the samples of the last epoch
	Embedding []float32
	Weight    []float32
	Bias      []float32
}

// tensor is a parameter with its momentum.
type tensor struct {
	values, momentum []float32
}

type model struct {
	o       Options
	data    *corpus.Data
	backend cuda.Backend
	classes int

	table   tensor
	stepped []uint8 // of each row of the table: it has had a step
	weight  tensor
	bias    tensor
	first   bool // no dense step yet
}

// laneGrads are the sums over one lane's samples.
type laneGrads struct {
	node   lane.Node
	keys   []uint64
	rows   []float32
	weight []float32
	bias   []float32
	loss   float64
}

// Train runs all epochs and evaluates the model.
func Train(o Options, data *corpus.Data) (*Result, error) {
	m, err := newModel(o, data)
	if err != nil {
		return nil, err
	}
	loss := 0.0
	for epoch := range o.Epochs {
		if loss, err = m.epoch(uint64(epoch)); err != nil {
			return nil, fmt.Errorf("epoch %d: %w", epoch, err)
		}
	}
	accuracy, err := m.accuracy(&data.Test)
	if err != nil {
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	return &Result{
		Digest: m.digest(), Accuracy: accuracy, Loss: loss / float64(data.Train.Len()),
		Embedding: m.table.values, Weight: m.weight.values, Bias: m.bias.values,
	}, nil
}

func newModel(o Options, data *corpus.Data) (*model, error) {
	m := &model{o: o, data: data, backend: o.Backend, classes: len(data.Classes), first: true}
	if m.backend == nil {
		var err error
		if m.backend, err = cuda.Open(cuda.Options{Name: "go"}); err != nil {
			return nil, err
		}
	}
	make1 := func(n int) tensor { return tensor{make([]float32, n), make([]float32, n)} }
	m.table, m.stepped = make1(corpus.Rows*o.Dim), make([]uint8, corpus.Rows)
	m.weight, m.bias = make1(m.classes*o.Dim), make1(m.classes)
	for key := range corpus.Rows {
		row := m.table.values[key*o.Dim:][:o.Dim]
		if err := philox.FillRow(row, philox.Normal, 0.05, o.Seed, "embedding.weight", uint64(key)); err != nil {
			return nil, err
		}
	}
	bound := float32(1 / math.Sqrt(float64(o.Dim)))
	if err := philox.FillTensor(m.weight.values, philox.Uniform, bound, o.Seed, "linear.weight"); err != nil {
		return nil, err
	}
	return m, philox.FillTensor(m.bias.values, philox.Uniform, bound, o.Seed, "linear.bias")
}

// epoch runs through the training set once and returns the sum of the losses.
func (m *model) epoch(epoch uint64) (float64, error) {
	n := m.data.Train.Len()
	order := philox.Permutation(m.o.Seed, epoch, n)
	batches := (n + m.o.Batch - 1) / m.o.Batch
	loss := 0.0
	for b := range batches {
		batch := order[b*n/batches : (b+1)*n/batches]
		var lanes []laneGrads
		for l := range m.o.Lanes {
			lo, hi := lane.Slice(lane.Lane(l), m.o.Lanes, len(batch))
			if lo == hi {
				continue
			}
			g, err := m.lane(batch[lo:hi])
			if err != nil {
				return 0, fmt.Errorf("batch %d lane %d: %w", b, l, err)
			}
			g.node = lane.Node{First: lane.Lane(l), Count: 1}
			lanes = append(lanes, g)
			loss += g.loss
		}
		if err := m.step(lanes, float32(len(batch))); err != nil {
			return 0, fmt.Errorf("batch %d: %w", b, err)
		}
	}
	return loss, nil
}

// bags lists the keys of some examples and where each begins.
func bags(set *corpus.Examples, chosen []int32) (ids, offsets []int64, targets []int32) {
	offsets = []int64{0}
	for _, i := range chosen {
		for _, k := range set.KeysOf(int(i)) {
			ids = append(ids, int64(k))
		}
		offsets = append(offsets, int64(len(ids)))
		targets = append(targets, set.Labels[i])
	}
	return ids, offsets, targets
}

// forward gives the pooled rows [n, Dim] and the logits [n, classes].
func (m *model) forward(ids, offsets []int64) (pooled, logits []float32, err error) {
	n := len(offsets) - 1
	pooled, logits = make([]float32, n*m.o.Dim), make([]float32, n*m.classes)
	err = m.backend.BagForward(cuda.BagForward{Dim: m.o.Dim, Mode: cuda.Mean, Padding: cuda.NoPadding,
		Rows: cuda.Float32s(m.table.values), IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets),
		Out: cuda.Float32s(pooled)})
	if err != nil {
		return nil, nil, err
	}
	err = m.backend.MatMul(cuda.MatMul{M: n, N: m.classes, K: m.o.Dim, TransB: true,
		A: cuda.Float32s(pooled), B: cuda.Float32s(m.weight.values), Bias: cuda.Float32s(m.bias.values),
		C: cuda.Float32s(logits)})
	return pooled, logits, err
}

// lane computes the gradient of some training examples.
func (m *model) lane(chosen []int32) (g laneGrads, err error) {
	n, dim := len(chosen), m.o.Dim
	ids, offsets, targets := bags(&m.data.Train, chosen)
	pooled, logits, err := m.forward(ids, offsets)
	if err != nil {
		return g, err
	}
	losses, gradLogits := make([]float32, n), make([]float32, n*m.classes)
	err = m.backend.SoftmaxCrossEntropy(cuda.SoftmaxCrossEntropy{Classes: m.classes,
		Logits: cuda.Float32s(logits), Targets: cuda.Int32s(targets),
		Loss: cuda.Float32s(losses), Grad: cuda.Float32s(gradLogits)})
	if err != nil {
		return g, err
	}
	for _, l := range losses {
		g.loss += float64(l)
	}
	g.weight, g.bias = make([]float32, m.classes*dim), make([]float32, m.classes)
	err = m.backend.MatMul(cuda.MatMul{M: m.classes, N: dim, K: n, TransA: true,
		A: cuda.Float32s(gradLogits), B: cuda.Float32s(pooled), C: cuda.Float32s(g.weight)})
	if err != nil {
		return g, err
	}
	every := make([]int64, n) // one bag of all samples: the sum of each column, in canonical order
	for i := range every {
		every[i] = int64(i)
	}
	err = m.backend.BagForward(cuda.BagForward{Dim: m.classes, Mode: cuda.Sum, Padding: cuda.NoPadding,
		Rows: cuda.Float32s(gradLogits),
		IDs:  cuda.Int64s(every), Offsets: cuda.Int64s([]int64{0, int64(n)}), Out: cuda.Float32s(g.bias)})
	if err != nil {
		return g, err
	}
	gradPooled := make([]float32, n*dim)
	err = m.backend.MatMul(cuda.MatMul{M: n, N: dim, K: m.classes,
		A: cuda.Float32s(gradLogits), B: cuda.Float32s(m.weight.values), C: cuda.Float32s(gradPooled)})
	if err != nil {
		return g, err
	}
	keys, rows := make([]int64, len(ids)), make([]float32, len(ids)*dim)
	distinct, err := m.backend.BagBackward(cuda.BagBackward{Dim: dim, Mode: cuda.Mean, Padding: cuda.NoPadding,
		R: corpus.Rows, IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets),
		GradOut: cuda.Float32s(gradPooled), Keys: cuda.Int64s(keys), Out: cuda.Float32s(rows)})
	if err != nil {
		return g, err
	}
	g.rows = rows[:distinct*dim]
	for _, k := range keys[:distinct] {
		g.keys = append(g.keys, uint64(k))
	}
	return g, nil
}

// step adds the lanes up along their tree and moves every parameter.
func (m *model) step(lanes []laneGrads, samples float32) error {
	sgd := cuda.SGD{LR: m.o.LR, Momentum: m.o.Momentum}
	var weights, biases []cuda.Term
	var rows []cuda.RowsTerm
	keys := 0
	for _, g := range lanes {
		first, count := uint16(g.node.First), g.node.Count
		weights = append(weights, cuda.Term{First: first, Count: count, Values: cuda.Float32s(g.weight)})
		biases = append(biases, cuda.Term{First: first, Count: count, Values: cuda.Float32s(g.bias)})
		rows = append(rows, cuda.RowsTerm{First: first, Count: count,
			Keys: cuda.Uint64s(g.keys), Rows: cuda.Float32s(g.rows)})
		keys += len(g.keys)
	}
	for _, dense := range []struct {
		to    *tensor
		terms []cuda.Term
	}{{&m.weight, weights}, {&m.bias, biases}} {
		if err := m.stepDense(sgd, dense.to, dense.terms, samples); err != nil {
			return err
		}
	}
	m.first = false
	merged, mergedRows := make([]uint64, keys), make([]float32, keys*m.o.Dim)
	n, err := m.backend.Merge(cuda.Merge{Dim: m.o.Dim, Lanes: m.o.Lanes, Terms: rows,
		OutKeys: cuda.Uint64s(merged), OutRows: cuda.Float32s(mergedRows)})
	if err != nil {
		return err
	}
	return m.stepRows(sgd, merged[:n], mergedRows[:n*m.o.Dim], samples)
}

func (m *model) stepDense(sgd cuda.SGD, to *tensor, terms []cuda.Term, samples float32) error {
	sum := make([]float32, len(to.values))
	if err := m.backend.Average(cuda.Average{Lanes: m.o.Lanes, Weight: 1, Terms: terms, Out: cuda.Float32s(sum)}); err !=
		nil {
		return err
	}
	a := cuda.ApplyDense{Optimizer: sgd, Weight: samples, First: m.first,
		Param: cuda.Float32s(to.values), Grad: cuda.Float32s(sum), Out: cuda.Float32s(to.values)}
	if sgd.Momentum != 0 {
		m := cuda.Float32s(to.momentum)
		a.Slots = []cuda.Slot{{Name: "momentum", Before: m, After: m}}
	}
	return m.backend.ApplyDense(a)
}

func (m *model) stepRows(sgd cuda.SGD, keys []uint64, grad []float32, samples float32) error {
	dim := m.o.Dim
	out := make([]float32, len(grad))
	a := cuda.ApplyRows{Dim: dim, Optimizer: sgd, Weight: samples,
		Table: cuda.Float32s(m.table.values), Grad: cuda.Float32s(grad), Out: cuda.Float32s(out)}
	index, news, momentum := make([]int64, len(keys)), make([]uint8, len(keys)), make([]float32, len(grad))
	for i, k := range keys {
		index[i], news[i] = int64(k), 1-m.stepped[k]
	}
	a.Index = cuda.Int64s(index)
	if sgd.Momentum != 0 {
		a.First = cuda.Uint8s(news)
		a.Slots = []cuda.Slot{{Name: "momentum", Before: cuda.Float32s(m.table.momentum), After: cuda.Float32s(momentum)}}
	}
	if err := m.backend.ApplyRows(a); err != nil {
		return err
	}
	for i, k := range keys {
		copy(m.table.values[int(k)*dim:][:dim], out[i*dim:])
		m.stepped[k] = 1
		if sgd.Momentum != 0 {
			copy(m.table.momentum[int(k)*dim:][:dim], momentum[i*dim:])
		}
	}
	return nil
}

// accuracy is the share of examples whose largest logit, the first of equal ones, is that of their class.
func (m *model) accuracy(set *corpus.Examples) (float64, error) {
	all := make([]int32, set.Len())
	for i := range all {
		all[i] = int32(i)
	}
	ids, offsets, targets := bags(set, all)
	_, logits, err := m.forward(ids, offsets)
	if err != nil {
		return 0, err
	}
	right := 0
	for i, target := range targets {
		best, row := 0, logits[i*m.classes:][:m.classes]
		for c, v := range row {
			if v > row[best] {
				best = c
			}
		}
		if int32(best) == target {
			right++
		}
	}
	return float64(right) / float64(len(targets)), nil
}

// digest is the SHA-256 over the tensors in the order of their names, values as little-endian float32; the table by
// partition, and within a partition by key.
func (m *model) digest() (sum [32]byte) {
	h := sha256.New()
	var buffer []byte
	write := func(values []float32) {
		buffer = buffer[:0]
		for _, v := range values {
			buffer = binary.LittleEndian.AppendUint32(buffer, math.Float32bits(v))
		}
		h.Write(buffer)
	}
	partitions := make([][]int, m.o.Partitions)
	for key := range corpus.Rows {
		p := partitionOf(uint64(key), uint64(m.o.Partitions))
		partitions[p] = append(partitions[p], key)
	}
	for _, keys := range partitions {
		for _, key := range keys {
			write(m.table.values[key*m.o.Dim:][:m.o.Dim])
		}
	}
	write(m.bias.values)
	write(m.weight.values)
	h.Sum(sum[:0])
	return sum
}

// partitionOf says where a key belongs: each group of as many keys as there are partitions is turned by a hash of its
// number.
func partitionOf(key, partitions uint64) uint64 {
	return (key%partitions + mix(key/partitions)>>32*partitions>>32) % partitions
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
