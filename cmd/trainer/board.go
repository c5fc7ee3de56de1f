package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gradbus/internal/tensorboard"
	"gradbus/schema"
	"gradbus/trainer"
)

// board is a run's curves for TensorBoard; nil draws none.
type board struct {
	o       *common
	writer  *tensorboard.Writer
	run     *tensorboard.Run
	session *trainer.Session
	batches uint64
}

// openBoard begins the curves of a trainer that has joined, where --tensorboard asks for them: each trainer in a folder
// of its own.
func (o *common) openBoard(session *trainer.Session) (*board, error) {
	if o.tensorboard == "" {
		return nil, nil
	}
	job := session.Job()
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	run := fmt.Sprintf("%s-%d", job.Name, session.RunID())
	w, err := tensorboard.Create(tensorboard.Config{Dir: filepath.Join(o.tensorboard, run, string(session.Member())),
		Host: host,
		PID:  os.Getpid(), Now: time.Now, Log: o.log.With("job", job.Name, "member", session.Member())})
	if err != nil {
		return nil, err
	}
	manifest, err := json.MarshalIndent(job, "    ", "  ") // four spaces are Markdown for text as it is
	if err == nil {
		w.Text(0, tensorboard.TagManifest, "    "+string(manifest))
	}
	return &board{o: o, writer: w, run: tensorboard.NewRun(w), session: session}, nil
}

func (b *board) batch(p trainer.Progress) {
	if b == nil {
		return
	}
	b.batches = uint64(p.Batch) + 1
	b.run.Batch(tensorboard.Batch{Batch: uint64(p.Batch), Last: p.Done == p.Batches, Samples: p.Samples,
		SamplesAll: p.SamplesAll, Loss: p.Loss,
		Elapsed: p.ElapsedTime, Totals: b.totals})
}

func (b *board) totals() tensorboard.Totals {
	s := b.session.Stats()
	t := tensorboard.Totals{Batches: s.Batches, Keys: duration(s.KeysSeconds), Lookup: duration(s.LookupSeconds),
		Compute: duration(s.ComputeSeconds), Send: duration(s.SendSeconds), Result: duration(s.ResultSeconds)}
	if s.GradientNorm != nil {
		norm := float64(*s.GradientNorm)
		t.Norm, t.NormBatch = &norm, uint64(s.GradientBatch)
	}
	return t
}

func duration(s schema.Real) time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

func (b *board) accuracy(x float64) {
	if b != nil {
		b.run.Accuracy(b.batches, x)
	}
}

// end closes the file. What could not be written is no reason for the run to fail.
func (b *board) end() {
	if b == nil {
		return
	}
	if err := b.writer.Close(); err != nil {
		b.o.log.Warn("the curves of this run have gaps", "job", b.session.Job().Name, "member",
			b.session.Member(), "err", err)
	}
}
