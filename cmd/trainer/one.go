package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"time"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/internal/report"
	"gradbus/schema"
	"gradbus/trainer"
)

// barEvery is how often the bar on a terminal is drawn at most.
const barEvery = 100 * time.Millisecond

// trainOne is one trainer, from reading the data to leaving the job.
func (o *options) trainOne(ctx context.Context, backend cuda.Backend) (r report.Result, err error) {
	data, err := o.data()
	if err != nil {
		return r, err
	}
	if data.Synthetic && !o.quiet {
		o.log.Warn("the input is synthetic: its accuracy says nothing about real packages", "input", data.Source)
	}
	session, err := o.join(ctx, backend, packages.Job(o.settings, data))
	if err != nil {
		return r, err
	}
	defer func() { err = leave(ctx, session, err) }()
	workload, err := packages.NewWorkload(o.settings, data, backend)
	if err != nil {
		return r, err
	}
	m := newMeter(&o.common, o.settings.BatchesPerEpoch(data.Train.Len()), session)
	if m.board, err = o.openBoard(session); err != nil {
		return r, err
	}
	defer func() { m.board.end(err) }()
	m.batches = o.settings.Batches(data)
	err = session.Run(ctx, workload, left(m.batches, session), m.batch)
	m.show.End()
	if err != nil {
		return r, err
	}
	o.trained()
	r, err = o.conclude(ctx, session, backend, data, m)
	return r, o.blame(err)
}

// conclude measures what was trained, and saves it where asked to.
func (o *options) conclude(ctx context.Context, session *trainer.Session, backend cuda.Backend, data *corpus.Data,
	m *meter) (report.Result, error) {
	r := m.result(session, backend)
	r.Epochs = o.settings.Epochs
	r.Input, r.Synthetic, r.TestSamples = data.Source, data.Synthetic, data.Test.Len()
	var err error
	if r.Accuracy, err = packages.Evaluate(ctx, session, backend, o.settings.Dim, len(data.Classes),
		&data.Test); err != nil {
		return r, err
	}
	m.board.accuracy(r.Accuracy)
	digest, err := session.Digest(ctx)
	if err != nil {
		return r, err
	}
	r.WeightsSHA256 = hex.EncodeToString(digest[:])
	r.Suspect = o.suspect(ctx)
	if o.save != "" {
		model, err := packages.Collect(ctx, session, o.settings, data)
		if err == nil {
			model.Suspect = r.Suspect
			err = model.Save(o.save)
		}
		if err != nil {
			return r, err
		}
		r.Saved = o.save
	}
	return r, nil
}

// meter adds up what the batches report.
type meter struct {
	o        *common
	session  *trainer.Session
	run      schema.RunID // that the last batch was of
	show     shower
	board    *board
	perEpoch uint64
	batches  uint64  // of the job; 0: of the Run
	common   bool    // batches are those of all trainers
	samples  float64 // of all trainers where batches are common, else of this one
	own      float64 // of this trainer, in the epoch under way
	loss     float64 // sum over own
	last     trainer.Progress
}

func newMeter(o *common, perEpoch int, session *trainer.Session) *meter {
	return &meter{o: o, session: session, run: session.RunID(), show: newShower(o), perEpoch: uint64(perEpoch),
		common: session.Job().Plan().Clock.Common()}
}

func (m *meter) batch(p trainer.Progress) {
	if run := m.session.RunID(); run != m.run {
		m.restart(run)
	}
	if uint64(p.Batch)%m.perEpoch == 0 {
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
	m.board.batch(p)
	m.show.Show(report.Progress{Batch: uint64(p.Batch), Batches: cmp.Or(m.batches, p.Batches),
		Loss: p.Loss, SamplesPerSecond: m.rate()})
}

// restart begins the curves and the loss of another run, in which the job goes on from an earlier version.
func (m *meter) restart(run schema.RunID) {
	m.run, m.own, m.loss = run, 0, 0
	m.board.end(trainer.ErrRewound)
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

// result is what is known when the last batch is done. Traffic is that of the training alone.
func (m *meter) result(session *trainer.Session, backend cuda.Backend) report.Result {
	stats, job := session.Stats(), session.Job()
	of := ""
	if !m.common && job.Trainers > 1 {
		of = string(session.Member())
	}
	return report.Result{
		WeightsOf: of,
		Workload:  job.Workload, Job: string(job.Name), SamplesPerSecond: m.rate(), Samples: uint64(m.samples),
		Seconds: m.last.ElapsedTime.Seconds(),
		Loss:    m.loss / max(m.own, 1), LossSamples: uint64(m.own), Batches: m.last.Done,
		LanesSkipped: stats.LanesSkipped, Trainers: job.Trainers, Shards: session.Shards(),
		Lanes: job.Lanes, Backend: backend.Name() + " " + backend.ISA(),
		BytesSent: stats.Traffic.BytesSent, BytesReceived: stats.Traffic.BytesReceived,
		MessagesSent: stats.Traffic.MessagesSent, MessagesReceived: stats.Traffic.MessagesReceived,
		Time: report.Time{Keys: float64(stats.KeysSeconds), Rows: float64(stats.LookupSeconds),
			Compute: float64(stats.ComputeSeconds),
			Send:    float64(stats.SendSeconds), Results: float64(stats.ResultSeconds)},
	}
}
