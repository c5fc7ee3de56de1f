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

// Step is some samples of a batch, those of one lane, in the hands of the function that Train was given. The function
// goes through Samples, reads rows and parameters, adds to their gradients, and returns the sum of the losses of the
// samples. Gradients begin at zero and are sums over samples, never divided: the library adds up those of all lanes and
// divides once.
//
// Everything that it gives is valid until the function returns. Rows and parameters are read only. A name that the job
// lacks, or a sample that the step lacks, gives memory that leads nowhere, and Train fails with the reason.
type Step[T any] struct {
	lane   *LaneStep
	items  []T
	chosen []int32
	tables []stepTable
	params []stepParam
	failed error
}

// stepTable is one table within a step.
type stepTable struct {
	name    string
	dim     int
	pooled  bool
	ready   bool      // rows are those of this lane
	rows    []float32 // pooled: one for each sample
	ids     []int64   // not pooled: of each key
	offsets []int64   // of each sample's keys
	given   bool      // grads are zero, or what was added
	grads   []float32 // [samples, dim] where pooled, else [keys, dim]
}

type stepParam struct {
	name  string
	value []float32
	grad  []float32 // nil before it is asked for
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

// end gives the gradients.
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

// Batch and Lane say which samples these are: random numbers that are keyed by them are the same for every trainer that computes the
// lane.
func (s *Step[T]) Batch() schema.Batch { return s.lane.Batch }
func (s *Step[T]) Lane() lane.Lane     { return s.lane.Lane }

// Len is the number of samples.
func (s *Step[T]) Len() int { return len(s.chosen) }

// Samples goes through the samples, with their numbers from 0 on.
func (s *Step[T]) Samples() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for n, i := range s.chosen {
			if !yield(n, s.items[i]) {
				return
			}
		}
	}
}

// Fail makes Train end with an error.
func (s *Step[T]) Fail(err error) {
	if s.failed == nil {
		s.failed = err
	}
}

// Row is the row of a table that sample n uses, [dim]: that of its one key, or, where the table has a pooling, the sum or
// the mean of those of its keys. Of a table without a pooling whose samples have several keys, key is the number of one
// among those of the sample.
func (s *Step[T]) Row(table string, n int, key ...int) []float32 {
	t, at := s.place(table, n, key)
	if at < 0 {
		return s.scratchRow(t)
	}
	return t.row(at)
}

// RowGrad is where the gradient of Row is to be added, [dim].
func (s *Step[T]) RowGrad(table string, n int, key ...int) []float32 {
	t, at := s.place(table, n, key)
	if at < 0 {
		return s.scratchRow(t)
	}
	return t.grad(at)
}

// Param is a dense parameter, row-major.
func (s *Step[T]) Param(name string) []float32 {
	p := s.param(name)
	if p == nil {
		return s.lane.Param(name) // which says what is wrong
	}
	if p.value == nil {
		p.value = s.lane.Param(name)
	}
	return p.value
}

// Grad is where the gradient of Param is to be added.
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

// Done says that the gradient of a parameter will not change any more, so that it may travel while others are computed.
func (s *Step[T]) Done(name string) {
	if p := s.param(name); p != nil {
		p.grad = nil // a further Grad is an error
	}
	s.lane.Done(name)
}

// table is a table by its name, with the rows of this lane; few names are found faster one by one than by hash.
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

// place returns a table and the place of a row of a sample in it; -1 for none.
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

// scratchRow is memory in place of a row of a table, or of one that the job lacks.
func (s *Step[T]) scratchRow(t *stepTable) []float32 {
	if t == nil {
		return s.lane.scratch()
	}
	return make([]float32, t.dim)
}

// row returns the row at a place; the key of the place has it among the distinct rows, if they are not pooled.
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

// Train joins a job, trains it on data with a function that computes some samples at a time (Step), and gives the
// session, from which the weights can be read and saved; it is to be closed. server is the address of a ps ("" for that
// of ./bin/ps on this machine), or a whole Config, such as that of package local, which needs no server. Every trainer of
// the job runs the same program with the same data, and is told which samples are its. The data's size, batches, seed and
// epochs are noted in the manifest, so that a trainer with others is refused.
//
// It is Join and Run with a Workload made of the function. The functions of after are called after each epoch; their
// error ends the training. After an error there is no session, and the other trainers hear the reason. If the job
// restarts from an earlier version, epochs since then are computed and reported again.
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
	defer func() { // a panic, or an end of this goroutine, leaves no caller that could close the session
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

// trainEpochs runs what is left of all epochs.
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

// errPanicked is the reason that the other trainers receive if a function of the program did not return.
var errPanicked = errors.New("the program's function did not return")

// Epoch is one time through the data, as this trainer sees it.
type Epoch struct {
	Number, Of int      // from 1
	Loss       float64  // mean over this trainer's samples, each as it was when its batch was computed
	Session    *Session // to look at the weights: Lookup, Param, Save
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

// epochs counts batches up to epochs.
type epochs struct {
	session *Session
	after   []func(Epoch) error
	each    uint64
	of      int
	done    uint64 // batches of the job, as of the last report
	samples uint64
	loss    float64
	err     error // of one of after
}

// batch takes a batch that is complete.
func (r *epochs) batch(p Progress) {
	r.err = nil                    // a restart followed it
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
// see Step.Row.
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

// fault returns the error in the keys.
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
	defer func() { // memory that leads nowhere may be of an unexpected length: what came before is to be said
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
