package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"gradbus/schema"
	"gradbus/trainer/report"
	"gradbus/trainer/spawn"
)

// What a started trainer writes, as the value of --events.
const (
	eventsAll    = "all"
	eventsResult = "result" // no progress: one trainer's is enough
)

// trainAll starts every trainer of the job as a process and adds up their results.
func (o *options) trainAll(ctx context.Context) (report.Result, error) {
	if o.id != "" {
		return report.Result{}, fmt.Errorf("--id %s names one trainer, --spawn starts all: give one of the two", o.id)
	}
	self, err := os.Executable()
	if err != nil {
		return report.Result{}, fmt.Errorf("find this program: %w", err)
	}
	show := newShower(o)
	results := make([]report.Result, o.settings.Trainers)
	processes := make([]spawn.Process, o.settings.Trainers)
	for i := range processes {
		processes[i] = spawn.Process{Name: fmt.Sprintf("t%d", i), Path: self, Args: o.childArgs(i), OnLine: func(line []byte) {
			e, err := report.ParseEvent(line)
			switch {
			case err != nil:
				o.log.Warn("not an event", "trainer", i, "err", err)
			case e.Progress != nil:
				show.Show(*e.Progress)
			case e.Result != nil:
				results[i] = *e.Result
			}
		}}
	}
	err = spawn.Group{}.Run(ctx, processes)
	show.End()
	if err != nil {
		var failed *spawn.Error
		if errors.As(err, &failed) {
			failed.Said = strings.TrimPrefix(failed.Said, "trainer: ")
		}
		return report.Result{}, err
	}
	return report.Add(results, o.settings.Consistency != schema.ConsistencyAsync)
}

// childArgs are the flags of the i-th trainer: those of this process, from wherever it had them.
func (o *options) childArgs(i int) []string {
	s := o.settings
	args := []string{"packages", "--server", o.server, "--job", s.Job, "--trainers", strconv.Itoa(s.Trainers), "--lanes", strconv.Itoa(s.Lanes),
		"--id", fmt.Sprintf("t%d", i), "--epochs", strconv.Itoa(s.Epochs), "--batch", strconv.Itoa(s.Batch), "--dim", strconv.Itoa(s.Dim),
		"--lr", number(s.LR), "--momentum", number(s.Momentum), "--seed", strconv.FormatUint(s.Seed, 10),
		"--apply", s.Apply, "--reduce", s.Reduce, "--consistency", s.Consistency, "--ahead", strconv.Itoa(s.Ahead),
		"--wire", s.Wire.Gradients, "--error-feedback=" + strconv.FormatBool(s.Wire.ErrorFeedback), "--sparse", s.Wire.Sparse,
		"--backend", o.backend, "--isa", o.isa, "--threads", strconv.Itoa(o.threads), "--input", o.input, "--token-file", o.tokenFile,
		"--nats-creds", o.creds, "--nats-ca", o.ca, "--data", o.data,
		"--data-host", o.dataHost, "--advertise", o.advertise, "--back-within", o.backWithin.String(),
		"--window-mib", strconv.Itoa(o.windowMiB)}
	if i > 0 {
		return append(args, "--events", eventsResult)
	}
	return append(args, "--events", eventsAll, "--save", o.save)
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
