package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// barEvery is the shortest interval between two drawings of the bar on a terminal.
const barEvery = 100 * time.Millisecond

// workload has the parts in which the commands of workloads differ.
type workload struct {
	validate func() error                                // nil where the settings are usable
	load     func(ctx context.Context) (*dataset, error) // reads the data
	ask      func() error                                // answers --predict with the model of --load; no server is needed
	own      func() []config.Idle                        // flags that change nothing; nil for none
	library  string                                      // dense library; empty: the workload needs none
	dump     string                                      // file that the data is written to in place of training; empty: none
}

// dataset is the data of a workload, and how a trainer computes it.
type dataset struct {
	source    string // where it is from, for people
	synthetic bool   // generated: results say nothing about real data
	test      int    // samples of the test set
	perEpoch  int    // batches of an epoch
	batches   uint64 // of the whole job
	job       func(e nn.Env) *schema.Job
	workload  func(session *trainer.Session, e nn.Env) (trainer.Workload, error)
	dump      func(to io.Writer) error // nil where no flag asks for it
	// epoch measures the model after each epoch and gives a line about it; nil: only the whole run is measured.
	epoch func(ctx context.Context, session *trainer.Session, r *report.Result) (note string, err error)
	// accuracy measures the trained model on the test set; nil where epoch does.
	accuracy func(ctx context.Context, session *trainer.Session, e nn.Env) (float64, error)
	metadata map[string]string // of the file of a model
}

// run does what the command was told.
func (o *common) run(ctx context.Context) error {
	switch {
	case o.asks():
		return o.ask()
	case o.predict != "":
		return errors.New("--predict needs a model: name its file with --load")
	}
	if err := cmp.Or(o.validate(), o.writables()); err != nil {
		return err
	}
	o.data = sync.OnceValues(func() (*dataset, error) { return o.load(ctx) })
	if o.dump != "" {
		return o.dumpData()
	}
	result, err := o.train(ctx)
	if err != nil {
		return err
	}
	return o.print(result)
}

func (o *common) dumpData() error {
	data, err := o.data()
	if err != nil {
		return err
	}
	if err := atomicfile.Write(o.dump, 0o666, data.dump); err != nil {
		return fmt.Errorf("dump data: %w", err)
	}
	return nil
}

// train runs the job, or this process's part of it.
func (o *common) train(ctx context.Context) (r report.Result, err error) {
	if o.spawn {
		return o.trainAll(ctx)
	}
	ctx, stop, err := o.watchGPUs(ctx)
	if err != nil {
		return r, err
	}
	defer stop()
	backend, err := o.openBackend()
	if err != nil {
		return r, err
	}
	defer backend.Close()
	if o.local.on {
		return o.trainLocal(ctx, backend)
	}
	r, err = o.trainOne(ctx, backend)
	return r, because(ctx, err)
}

// openEnv gives what a model is computed with: the backend, and the dense library of a workload that has one.
func (o *common) openEnv(backend cuda.Backend) (e nn.Env, end func(), err error) {
	e.Backend = backend
	if o.library == "" {
		return e, func() {}, nil
	}
	e.Dense, err = cuda.OpenDense(backend, cuda.DenseOptions{Library: o.library, Log: o.log})
	return e, func() { e.Dense.Close() }, err
}

// trainOne is one trainer, from reading the data to leaving the job.
func (o *common) trainOne(ctx context.Context, backend cuda.Backend) (r report.Result, err error) {
	data, err := o.data()
	if err != nil {
		return r, err
	}
	if data.synthetic && !o.quiet {
		o.log.Warn("input is synthetic; results say nothing about real data", "input", data.source)
	}
	e, end, err := o.openEnv(backend)
	if err != nil {
		return r, err
	}
	defer end()
	session, err := o.join(ctx, backend, data.job(e))
	if err != nil {
		return r, err
	}
	defer func() { err = o.leave(ctx, session, err) }()
	w, err := data.workload(session, e)
	if err != nil {
		return r, err
	}
	m := newMeter(ctx, o, data, session)
	if m.board, err = o.openBoard(session); err != nil {
		return r, err
	}
	defer func() { m.board.end() }() // that of the last run
	err = m.train(ctx, w)
	m.show.End()
	if err != nil {
		return r, err
	}
	o.trained()
	err = m.conclude(ctx, e)
	return m.found, o.blame(err)
}

// train trains the batches that are to come, and measures the model after each epoch of a workload that wants it.
func (m *meter) train(ctx context.Context, w trainer.Workload) error {
	session, per := m.session, uint64(m.data.perEpoch)
	if m.data.epoch == nil {
		return session.Run(ctx, w, left(m.data.batches, session), m.batch)
	}
	var before time.Duration // of the epochs that are over, without the measuring
	all := m.data.batches / per
	for epoch := uint64(session.Version()) / per; epoch < all; epoch++ {
		done := uint64(session.Version()) // more than epochs that are over, where the job was resumed
		err := session.Run(ctx, w, (epoch+1)*per-done, func(p trainer.Progress) {
			p.Batches, p.Done, p.ElapsedTime = m.data.batches, done+p.Done, before+p.ElapsedTime
			m.batch(p)
		})
		if err != nil {
			return err
		}
		before = m.last.ElapsedTime
		note, err := m.data.epoch(ctx, session, &m.found)
		if err != nil {
			return err
		}
		m.show.Note(fmt.Sprintf("epoch %d of %d  %s", epoch+1, all, note))
	}
	return nil
}

// conclude measures what was trained, and saves it where asked to.
func (m *meter) conclude(ctx context.Context, e nn.Env) (err error) {
	o, data, r := m.o, m.data, &m.found
	m.count(e)
	if data.accuracy != nil {
		if r.Accuracy, err = data.accuracy(ctx, m.session, e); err != nil {
			return err
		}
		m.board.accuracy(r.Accuracy)
	}
	digest, err := m.session.Digest(ctx)
	if err != nil {
		return err
	}
	r.WeightsSHA256 = hex.EncodeToString(digest[:])
	r.Suspect = o.suspect(ctx)
	if o.save != "" {
		about := maps.Clone(data.metadata)
		about[syntheticEntry] = strconv.FormatBool(data.synthetic)
		if r.Suspect != "" {
			about[suspectEntry] = r.Suspect
		}
		if err := m.session.Save(ctx, o.save, trainer.Extra{Metadata: about}); err != nil {
			return err
		}
		r.Saved = o.save
	}
	return nil
}

// Entries of the metadata of every saved model.
const (
	syntheticEntry = "synthetic" // whether it was trained on generated data
	suspectEntry   = "suspect"   // why it may be wrong: memory of a GPU was, while it was trained
)

// answer writes what a saved model says: as JSON, or in lines behind notes on what the model is worth. trainedOn names
// its data.
func (o *common) answer(said map[string]any, model *trainer.Model, trainedOn string, lines []string) error {
	synthetic := model.Metadata[syntheticEntry] == "true"
	if o.json {
		said["synthetic"] = synthetic
		return json.NewEncoder(o.out).Encode(said)
	}
	if suspect := model.Metadata[suspectEntry]; suspect != "" {
		fmt.Fprintf(o.errOut, "note: this model may be wrong, and should be trained again: %s\n", schema.Printable(suspect))
	}
	if synthetic {
		fmt.Fprintf(o.errOut, "note: this model was trained on synthetic %s; its answers say nothing about real ones\n",
			trainedOn)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(o.out, line); err != nil {
			return err
		}
	}
	return nil
}

// meter adds up what the batches report.
type meter struct {
	ctx     context.Context // of the training
	o       *common
	session *trainer.Session
	run     schema.RunID // that the last batch was of
	show    shower
	board   *board
	data    *dataset
	found   report.Result
	common  bool    // batches are those of all trainers
	samples float64 // of all trainers where batches are common, else of this one
	own     float64 // of this trainer, in the epoch under way
	loss    float64 // sum over own
	last    trainer.Progress
}

func newMeter(ctx context.Context, o *common, data *dataset, session *trainer.Session) *meter {
	return &meter{ctx: ctx, o: o, session: session, run: session.RunID(), show: newShower(o), data: data,
		common: session.Job().Plan().Clock.Common()}
}

func (m *meter) batch(p trainer.Progress) {
	if run := m.session.RunID(); run != m.run {
		m.restart(run)
	}
	if uint64(p.Batch)%uint64(m.data.perEpoch) == 0 {
		m.own, m.loss = 0, 0
	}
	if m.common {
		m.samples += p.SamplesAll
	} else {
		m.samples += float64(p.Samples)
	}
	m.own += float64(p.Samples)
	m.loss += p.Loss * float64(p.Samples)
	m.last = p
	m.o.saveWhileRunning(m.ctx, m.session, p.Version)
	m.board.batch(p)
	m.show.Show(report.Progress{Batch: uint64(p.Batch), Batches: m.data.batches,
		Loss: p.Loss, SamplesPerSecond: m.rate()})
}

// restart begins the curves and the loss of another run, in which the job goes on from an earlier version.
func (m *meter) restart(run schema.RunID) {
	m.run, m.own, m.loss = run, 0, 0
	m.board.end()
	var err error
	if m.board, err = m.o.openBoard(m.session); err != nil {
		m.o.log.Warn("curves end with the run", "job", m.session.Job().Name, "err", err)
	}
}

func (m *meter) rate() float64 {
	if m.last.ElapsedTime <= 0 {
		return 0
	}
	return m.samples / m.last.ElapsedTime.Seconds()
}

// count sets what is known when the last batch is done. Traffic is that of the training alone.
func (m *meter) count(e nn.Env) {
	stats, job, r := m.session.Stats(), m.session.Job(), &m.found
	if !m.common && job.Trainers > 1 {
		r.WeightsOf = string(m.session.Member())
	}
	r.Workload, r.Job, r.SamplesPerSecond, r.Samples = job.Workload, string(job.Name), m.rate(), uint64(m.samples)
	r.Input, r.Synthetic, r.TestSamples, r.Epochs = m.data.source, m.data.synthetic, m.data.test, m.o.shared.Epochs
	r.Seconds, r.Loss, r.LossSamples = m.last.ElapsedTime.Seconds(), m.loss/max(m.own, 1), uint64(m.own)
	r.Batches, r.LanesSkipped = m.last.Done, stats.LanesSkipped
	r.Trainers, r.Shards, r.Lanes = job.Trainers, m.session.Shards(), job.Lanes
	r.Backend = e.Backend.Name() + " " + e.Backend.ISA()
	if e.Dense != nil {
		r.Backend += " " + e.Dense.Name()
	}
	r.BytesSent, r.BytesReceived = stats.Traffic.BytesSent, stats.Traffic.BytesReceived
	r.MessagesSent, r.MessagesReceived = stats.Traffic.MessagesSent, stats.Traffic.MessagesReceived
	r.Time = report.Time{Keys: float64(stats.KeysSeconds), Rows: float64(stats.LookupSeconds),
		Compute: float64(stats.ComputeSeconds), Send: float64(stats.SendSeconds), Results: float64(stats.ResultSeconds)}
}
