package faults

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"time"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/schema"
	"gradbus/trainer"
)

// Member is the configuration of a trainer process.
type Member struct {
	Server, Job      string
	Trainers, Epochs int
	Hybrid           bool // as of Config
}

// Run is a trainer. It writes a line for every batch when it is complete, with the run
// that it is of and the time, and one with the digest of the weights at the end.
func (m *Member) Run(ctx context.Context, out io.Writer, errs io.Writer) error {
	data, err := corpus.Load(ctx, "synthetic")
	if err != nil {
		return err
	}
	defer cutWhenTold()()
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	defer backend.Close()
	s := packages.Defaults()
	s.Job, s.Trainers, s.Epochs = m.Job, m.Trainers, m.Epochs
	if m.Hybrid {
		s.Apply, s.Reduce = schema.ApplyMean, schema.ReduceTrainers
	}
	config := trainer.Config{Server: m.Server, Backend: backend,
		Log: slog.New(slog.NewTextHandler(errs, nil))}
	job := packages.Job(s, data)
	session, err := trainer.Join(ctx, config, job)
	if err != nil {
		return err
	}
	err = m.train(ctx, session, s, data, backend, out)
	if leaving := session.Abort(err); err == nil {
		err = leaving
	}
	return err
}

func (m *Member) train(ctx context.Context, session *trainer.Session, s packages.Settings, data *corpus.Data,
	backend cuda.Backend, to io.Writer) error {
	w, err := packages.NewWorkload(s, data, backend)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(to, 4096)
	defer out.Flush()
	all, done := s.Batches(data), uint64(session.Version())
	last := time.Now()
	err = session.Run(ctx, w, all-min(all, done), func(p trainer.Progress) {
		now := time.Now()
		fmt.Fprintf(out, "batch %d %d %d\n", uint64(session.RunID()), uint64(p.Batch), now.UnixNano())
		if now.Sub(last) > 10*time.Millisecond {
			out.Flush()
			last = now
		}
	})
	if err != nil {
		return err
	}
	digest, err := session.Digest(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "digest %s\n", hex.EncodeToString(digest[:]))
	return err
}
