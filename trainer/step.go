package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Step is the computation of the samples of one lane, for the function that Train calls. The function iterates over
// Samples, reads rows and parameters, adds to their gradients, and returns the sum of the losses of the samples.
// Gradients begin at zero and are sums over samples, never divided by the function: the library divides the sum over
// all lanes once, by the number of samples in the batch, or, for a table with PerRow, by the number of times that the
// lanes name the row's key.
//
// All slices are valid until the function returns. Rows and parameters are read-only. A name that the job does not
// have, or a sample number out of range, returns scratch memory, and Train fails with the reason.
type Step[T any] struct {
	lane   *LaneStep
	items  []T
	chosen []int32
	tables []stepTable
	params []stepParam
	failed error
}

// stepTable is the state of one table within a step.
type stepTable struct {
	name    string
	dim     int
	pooled  bool
	ready   bool      // rows are those of this lane
	rows    []float32 // of each sample if pooled, else the lane's distinct rows
	ids     []int64   // index into rows of each key, if not pooled
	offsets []int64   // of each sample's keys
	given   bool      // grads are initialized
	grads   []float32 // [samples, dim] if pooled, else [keys, dim]
}

type stepParam struct {
	name  string
	value []float32
	grad  []float32 // nil until Grad is called
}

func (s *Step[T]) begin(step *LaneStep, chosen []int32, offsets [][]int64) {
	s.lane, s.chosen, s.failed = step, chosen, nil
	for i := range s.tables {
		t := &s.tables[i]
		t.ready, t.given, t.offsets = false, false, offsets[i]
	}
	for i := range s.params {
		s.params[i].value, s.params[i].grad = nil, nil
	}
}

// end passes the gradients to the lane.
func (s *Step[T]) end() error {
	for i := range s.tables {
		switch t := &s.tables[i]; {
		case !t.given:
		case t.pooled:
			s.lane.PooledGrad(schema.Table(i), t.grads)
		default:
			s.lane.BagGrad(schema.Table(i), cuda.Sum, nil, t.grads)
		}
	}
	return s.failed
}

// Batch returns the number of the batch. Random numbers keyed by Batch and Lane are the same for every trainer that
// computes the lane.
func (s *Step[T]) Batch() schema.Batch { return s.lane.Batch }

// Lane returns the lane whose samples these are.
func (s *Step[T]) Lane() lane.Lane { return s.lane.Lane }

// Len returns the number of samples.
func (s *Step[T]) Len() int { return len(s.chosen) }

// Samples returns an iterator over the samples, with their numbers from 0 on.
func (s *Step[T]) Samples() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for n, i := range s.chosen {
			if !yield(n, s.items[i]) {
				return
			}
		}
	}
}

// Fail makes Train return err. The first call counts.
func (s *Step[T]) Fail(err error) {
	if s.failed == nil {
		s.failed = err
	}
}

// Row returns the row that sample n uses of a table, [dim]. For a table with a pooling, it is the sum or mean of the
// rows of the sample's keys. For a table without one, it is the row of the sample's only key, or, if it has several, of
// its key number key[0].
func (s *Step[T]) Row(table string, n int, key ...int) []float32 {
	t, at := s.place(table, n, key)
	if at < 0 {
		return s.scratchRow(t)
	}
	return t.row(at)
}

// RowGrad returns the memory to which the gradient of Row is added, [dim].
func (s *Step[T]) RowGrad(table string, n int, key ...int) []float32 {
	t, at := s.place(table, n, key)
	if at < 0 {
		return s.scratchRow(t)
	}
	return t.grad(at)
}

// Param returns a dense parameter, row-major.
func (s *Step[T]) Param(name string) []float32 {
	p := s.param(name)
	if p == nil {
		return s.lane.Param(name) // reports the unknown name
	}
	if p.value == nil {
		p.value = s.lane.Param(name)
	}
	return p.value
}

// Grad returns the memory to which the gradient of Param is added.
func (s *Step[T]) Grad(name string) []float32 {
	p := s.param(name)
	if p == nil {
		return s.lane.Grad(name)
	}
	if p.grad == nil {
		p.grad = s.lane.Grad(name)
		clear(p.grad)
	}
	return p.grad
}

// Done marks the gradient of a parameter as final, so it can be sent while others are computed.
func (s *Step[T]) Done(name string) {
	if p := s.param(name); p != nil {
		p.grad = nil // a further Grad is an error
	}
	s.lane.Done(name)
}

// table returns a table by its name, with the rows of this lane. For few names a linear search is faster than a hash.
func (s *Step[T]) table(name string) *stepTable {
	for i := range s.tables {
		t := &s.tables[i]
		if t.name != name {
			continue
		}
		if !t.ready {
			t.ready = true
			if t.pooled {
				t.rows = s.lane.Pooled(schema.Table(i))
			} else {
				t.rows, t.ids = s.lane.Rows(schema.Table(i)), s.lane.IDs(schema.Table(i))
			}
		}
		return t
	}
	names := make([]string, len(s.tables))
	for i := range names {
		names[i] = s.tables[i].name
	}
	s.lane.broken("table %q: the job has %q", name, names)
	return nil
}

func (s *Step[T]) param(name string) *stepParam {
	for i := range s.params {
		if s.params[i].name == name {
			return &s.params[i]
		}
	}
	return nil
}

// place returns a table and the position of a sample's row in it; -1 if there is none.
func (s *Step[T]) place(table string, n int, key []int) (*stepTable, int) {
	t := s.table(table)
	switch {
	case t == nil:
		return t, -1
	case uint(n) >= uint(len(s.chosen)):
		s.lane.broken("table %q: sample %d: the step has %d samples", t.name, n, len(s.chosen))
		return t, -1
	case t.pooled && len(key) == 0:
		return t, n
	case t.pooled:
		s.lane.broken("table %q: its rows are pooled: want no number of a key", t.name)
		return t, -1
	}
	first, keys := t.offsets[n], t.offsets[n+1]-t.offsets[n]
	if len(key) == 0 && keys == 1 {
		return t, int(first)
	}
	if len(key) != 1 {
		s.lane.broken("table %q: sample %d has %d keys, and the table no pooling: want one key, its number, or Sum or Mean "+
			"of the table", t.name, n, keys)
		return t, -1
	}
	if k := key[0]; k < 0 || int64(k) >= keys {
		s.lane.broken("table %q: key number %d of sample %d, which has %d", t.name, k, n, keys)
		return t, -1
	}
	return t, int(first) + key[0]
}

// scratchRow returns memory in place of a row of a table, or of an unknown table.
func (s *Step[T]) scratchRow(t *stepTable) []float32 {
	if t == nil {
		return s.lane.scratch()
	}
	return make([]float32, t.dim)
}

// row returns the row at a position. Without pooling, the position is a key's, and ids has its row.
func (t *stepTable) row(at int) []float32 {
	if !t.pooled {
		at = int(t.ids[at])
	}
	return t.rows[at*t.dim : (at+1)*t.dim : (at+1)*t.dim]
}

func (t *stepTable) grad(at int) []float32 {
	if !t.given {
		places := int(t.offsets[len(t.offsets)-1])
		if t.pooled {
			places = len(t.offsets) - 1
		}
		t.given, t.grads = true, grown(t.grads, places*t.dim)
		clear(t.grads)
	}
	return t.grads[at*t.dim : (at+1)*t.dim : (at+1)*t.dim]
}

// Train joins a job, trains it on data, and returns the session, from which the program reads and saves the weights;
// the caller must close it. step computes the samples of one lane. server is the URL of a ps ("" for
// nats://127.0.0.1:4222), or a whole Config, such as that of package local, which needs no server. Every trainer of the
// job runs the same program with the same data; the coordinator assigns the lanes. Train records the data's size, batch
// size, seed and epochs in the manifest, so a trainer with different values is refused.
//
// Train calls the functions of after once per epoch; their error ends the training. If the job restarts from an earlier
// version, the epochs since then are computed and reported again. After an error Train returns no session, and the
// other trainers receive the reason.
//
// Programs that need more call Join and Run; Data.Workload makes the Workload.
func Train[S string | Config, T any](ctx context.Context, server S, job *Job, data *Data[T],
	step func(b *Step[T]) (loss float64), after ...func(Epoch) error) (*Session, error) {
	if job == nil || step == nil {
		return nil, fmt.Errorf("%w: the job or the function that computes a step is nil", ErrConfig)
	}
	if err := data.check(); err != nil {
		return nil, err
	}
	manifest, err := job.Manifest()
	if err != nil {
		return nil, err
	}
	dataSettings(manifest, map[string]int{"samples": len(data.items), "batch": data.batch, "data_seed": int(data.seed),
		"epochs": data.epochs})
	config, whole := any(server).(Config)
	if !whole {
		config = Config{Server: any(server).(string)}
	}
	if job.from != nil {
		config.From = job.from
	}
	s, err := Join(ctx, config, manifest)
	if err != nil {
		return nil, err
	}
	returned := false
	defer func() { // a panic or runtime.Goexit leaves no caller that could close the session
		if !returned {
			_ = s.Abort(errPanicked)
		}
	}()
	err = trainEpochs(ctx, s, data, step, after)
	returned = true
	if err != nil {
		return nil, errors.Join(err, s.Abort(err))
	}
	return s, nil
}

// trainEpochs runs the remaining batches of all epochs.
func trainEpochs[T any](ctx context.Context, s *Session, data *Data[T], step func(b *Step[T]) (loss float64),
	after []func(Epoch) error) error {
	w, err := newSampled(s.Job(), data, step)
	if err != nil {
		return err
	}
	r := &epochs{session: s, after: after, each: uint64(w.shuffler.PerEpoch()), of: data.epochs, done: uint64(s.Version())}
	all := r.each * uint64(data.epochs)
	if err := s.Run(ctx, w, all-min(all, r.done), r.batch); err != nil {
		return err
	}
	return r.err
}

// errPanicked is the reason that the other trainers receive if a function of the program does not return.
var errPanicked = errors.New("the program's function did not return")

// Epoch is one pass over the data, as this trainer sees it.
type Epoch struct {
	Number, Of int      // number of this epoch, from 1, and of all epochs
	Loss       float64  // mean over this trainer's samples, each at the time of its batch
	Session    *Session // session for reading weights: Lookup, Param, Save
}

// PrintEpochs writes a line to standard output after each epoch of Train.
func PrintEpochs(e Epoch) error { return e.print(os.Stdout) }

func (e Epoch) print(to io.Writer) error {
	who := ""
	if e.Session.job.Trainers > 1 {
		who = string(e.Session.Member()) + "  "
	}
	_, err := fmt.Fprintf(to, "%sepoch %d of %d  loss %.4f\n", who, e.Number, e.Of, e.Loss)
	return err
}

// epochs groups completed batches into epochs.
type epochs struct {
	session *Session
	after   []func(Epoch) error
	each    uint64
	of      int
	done    uint64 // batches of the job at the last report
	samples uint64
	loss    float64
	err     error // first error of after
}

// batch counts a completed batch, and calls after at the end of an epoch.
func (r *epochs) batch(p Progress) {
	r.err = nil                    // a restart followed an earlier error
	if uint64(p.Batch) != r.done { // the job continued from an earlier version
		r.samples, r.loss = 0, 0
	}
	r.samples, r.loss = r.samples+uint64(p.Samples), r.loss+p.Loss*float64(p.Samples)
	if r.done = uint64(p.Batch) + 1; r.done%r.each != 0 {
		return
	}
	e := Epoch{Number: int(r.done / r.each), Of: r.of, Loss: r.loss / float64(max(1, r.samples)),
		Session: r.session}
	for _, f := range r.after {
		if err := f(e); err != nil {
			r.err = fmt.Errorf("after epoch %d: %w", e.Number, err)
			r.session.fail(r.err)
			return
		}
	}
	r.samples, r.loss = 0, 0
}

// Data is a set of samples, shuffled into batches and lanes: each sample occurs once per epoch, in an order that the
// seed determines (see package trainer/shuffle). Every trainer has the whole set.
type Data[T any] struct {
	items  []T
	batch  int
	seed   uint64
	keys   func(sample T, k *Keys)
	epochs int
}

// Samples returns a set of samples in batches of at most batchSize samples, over all lanes. keys adds the keys that a
// sample uses of each table.
//
//	data := trainer.Samples(ratings, 2000, 1, func(r rating, k *trainer.Keys) {
//		k.Add("users", r.user)
//		k.Add("films", r.film)
//	})
func Samples[T any](items []T, batchSize int, seed uint64, keys func(sample T, k *Keys)) *Data[T] {
	return &Data[T]{items: items, batch: batchSize, seed: seed, keys: keys, epochs: 1}
}

// Epochs returns a copy of the data for n epochs. The default is 1.
func (d *Data[T]) Epochs(n int) *Data[T] {
	more := *d
	more.epochs = n
	return &more
}

// check returns an ErrConfig for invalid data, or nil.
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

// Keys collects the keys of samples.
type Keys struct {
	tables []schema.TableSpec
	keys   [][]uint64
	err    error
}

// Add appends keys that the sample uses of a table. A table without a pooling usually has one key per sample; see
// Step.Row.
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

// sampled is the workload of Data and a function that computes a lane.
type sampled[T any] struct {
	data     *Data[T]
	shuffler *shuffle.Shuffler
	keys     Keys
	compute  func(*Step[T]) float64
	step     Step[T]
	before   []int
	offsets  [][][]int64 // [lane][table] offsets of the samples' keys
}

// Workload returns a Workload for Run that computes the data with step, for programs that call Join and Run instead of
// Train. It calls the keys function of Samples once per sample and batch.
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

// fault returns the first error of Keys.Add.
func (w *sampled[T]) fault() error { return w.keys.err }

// Bags implements Bagged: the keys of a sample in a table are one bag.
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
	defer func() { // scratch memory may have an unexpected length: report the invalid call, not the panic
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
