package trainer

import (
	"fmt"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Data is a set of samples, and how it is shuffled into batches and lanes: each sample once an epoch, in an order that
// follows from the seed (see package trainer/shuffle). Every trainer has the whole set.
type Data[T any] struct {
	items  []T
	batch  int
	seed   uint64
	keys   func(sample T, k *Keys)
	epochs int
}

// Samples makes a set of samples, in batches of at most batchSize of all lanes together. keys names the rows of tables
// that a sample uses.
//
//	data := trainer.Samples(ratings, 2000, 1, func(r rating, k *trainer.Keys) { k.Add("users", r.user); k.Add("films", r.film) })
func Samples[T any](items []T, batchSize int, seed uint64, keys func(sample T, k *Keys)) *Data[T] {
	return &Data[T]{items: items, batch: batchSize, seed: seed, keys: keys, epochs: 1}
}

// Epochs is the same data, to be gone through so many times.
func (d *Data[T]) Epochs(n int) *Data[T] {
	more := *d
	more.epochs = n
	return &more
}

// check says what is wrong with the data.
func (d *Data[T]) check() error {
	switch {
	case d == nil:
		return fmt.Errorf("%w: the data are nil: want Samples", ErrConfig)
	case d.keys == nil:
		return fmt.Errorf("%w: the data do not say which keys a sample has: want a function, which may add none", ErrConfig)
	case d.epochs < 1:
		return fmt.Errorf("%w: %d epochs: want at least 1", ErrConfig, d.epochs)
	case len(d.items) == 0:
		return fmt.Errorf("%w: the data have no samples: want at least one", ErrConfig)
	case d.batch < 1:
		return fmt.Errorf("%w: batches of %d samples: want at least 1", ErrConfig, d.batch)
	}
	_, err := shuffle.New(d.seed, len(d.items), d.batch, 1)
	return err
}

// Keys takes the keys of one sample after the other.
type Keys struct {
	tables []schema.TableSpec
	keys   [][]uint64
	err    error
}

// Add appends keys to those that the sample uses of a table. A table without a pooling has one key a sample as a rule;
// see Step.RowOf.
func (k *Keys) Add(table string, keys ...uint64) {
	for i := range k.tables {
		if k.tables[i].Name == table {
			k.keys[i] = append(k.keys[i], keys...)
			return
		}
	}
	if k.err == nil {
		names := make([]string, len(k.tables))
		for i := range names {
			names[i] = k.tables[i].Name
		}
		k.err = fmt.Errorf("keys of table %q: the job has %q", table, names)
	}
}

// sampled makes a workload of samples and a function that computes a lane of them.
type sampled[T any] struct {
	data     *Data[T]
	shuffler *shuffle.Shuffler
	keys     Keys
	compute  func(*Step[T]) float64
	step     Step[T]
	before   []int
	offsets  [][][]int64 // [lane][table] where each sample's keys begin, and where the last one ends
}

// Workload makes a workload for Run of the samples and of a function that computes some of them, for programs that join
// and run by themselves; Train does all of it. Each sample's keys are asked for once a batch.
func (d *Data[T]) Workload(s *Session, step func(b *Step[T]) (loss float64)) (Workload, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	return newSampled(s.Job(), d, step)
}

func newSampled[T any](job *schema.Job, d *Data[T], compute func(*Step[T]) float64) (*sampled[T], error) {
	shuffler, err := shuffle.New(d.seed, len(d.items), d.batch, job.Lanes)
	if err != nil {
		return nil, err
	}
	w := &sampled[T]{data: d, shuffler: shuffler, keys: Keys{tables: job.Tables}, compute: compute,
		offsets: make([][][]int64, job.Lanes)}
	for i := range w.offsets {
		w.offsets[i] = make([][]int64, len(job.Tables))
	}
	w.step.items = d.items
	for _, spec := range job.Tables {
		w.step.tables = append(w.step.tables, stepTable{name: spec.Name, dim: spec.Dim, pooled: spec.Pooling != ""})
	}
	for _, p := range job.Parameters {
		w.step.params = append(w.step.params, stepParam{name: p.Name})
	}
	return w, nil
}

// Keys implements Workload.
func (w *sampled[T]) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	chosen, offsets, k := w.shuffler.Samples(b, l), w.offsets[l], &w.keys
	k.keys = keys
	for table := range offsets {
		offsets[table] = append(offsets[table][:0], 0)
	}
	w.before = w.before[:0]
	for table := range keys {
		w.before = append(w.before, len(keys[table]))
	}
	for _, i := range chosen {
		w.data.keys(w.data.items[i], k)
		for table := range offsets {
			offsets[table] = append(offsets[table], int64(len(k.keys[table])-w.before[table]))
		}
	}
	return len(chosen), k.keys
}

// fault is what was wrong with the keys.
func (w *sampled[T]) fault() error { return w.keys.err }

// Bags implements Bagged: a sample's keys of a table are one bag.
func (w *sampled[T]) Bags(_ schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	for table := range offsets {
		if w.step.tables[table].pooled {
			offsets[table] = append(offsets[table], w.offsets[l][table]...)
		}
	}
	return offsets
}

// Lane implements Workload.
func (w *sampled[T]) Lane(step *LaneStep) (lossSum float64, err error) {
	defer func() { // memory that leads nowhere may be of a length that nobody expects: what came before is to be said
		if step.err != nil {
			if p := recover(); p != nil {
				err = fmt.Errorf("%v", p)
			}
		}
	}()
	w.step.begin(step, w.shuffler.Samples(step.Batch, step.Lane), w.offsets[step.Lane])
	lossSum = w.compute(&w.step)
	return lossSum, w.step.end()
}
