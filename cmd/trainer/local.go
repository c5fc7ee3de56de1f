package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/report"
	"gradbus/internal/verification"
	"gradbus/local"
	"gradbus/ps"
	"gradbus/ps/ops"
	"gradbus/ps/ops/display"
	"gradbus/schema"
	"gradbus/trainer"
)

// localFlags say how a job runs in this process alone.
type localFlags struct {
	on        bool
	shards    int
	memoryMiB int64
	http      string
}

func (f *localFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.on, "local", false, "run the whole job in this process, without a server")
	set.IntVar(&f.shards, "shards", 1, "`N`: shards, with --local")
	set.Int64Var(&f.memoryMiB, "memory-mib", 0,
		"`MIB`: memory that the job's shards may use, with --local; 0 is 3/4 of the machine's")
	set.StringVar(&f.http, "http", "",
		"`HOST:PORT`: address of a page for the job, with --local; port 0 picks a free port, empty is none")
}

// check refuses values that are out of range.
func (f *localFlags) check() error {
	switch {
	case !f.on:
	case f.shards < 1:
		return fmt.Errorf("shards %d: want 1 to 64", f.shards)
	case f.memoryMiB < 0 || f.memoryMiB > memoryMiBMax:
		return fmt.Errorf("memory-mib %d: want at most %d MiB, or 0 for three quarters of the machine's", f.memoryMiB,
			memoryMiBMax)
	}
	return nil
}

// idle are the flags that change nothing with --local, or without it.
func (f *localFlags) idle() []config.Idle {
	rules := []config.Idle{{When: !f.on, Flags: []string{"shards", "memory-mib", "http"},
		Why: "it is of a job in this process: want --local with it; elsewhere ./bin/ps has that flag"}}
	for _, r := range []config.Idle{
		{Flags: []string{"spawn"}, Why: "it starts every trainer as a process, and --local runs all of them in this one"},
		{Flags: []string{"id"}, Why: "it names one trainer, and --local runs all of them"},
		{Flags: []string{"server", "route", "token-file"}, Why: "it is of the way to a ps, and --local needs none"},
		{Flags: []string{"nats-creds"}, Why: "it is for a NATS server, and --local needs none"},
		{Flags: []string{"tls-cert", "tls-key", "tls-ca", "reconnect-timeout"},
			Why: "it is for connections, and --local has none"},
		{Flags: connect.Between, Why: "it says where other processes reach this one, and --local has no others"},
		{Flags: []string{"resume"},
			Why: "it is of jobs that outlive a process, and with --local nothing does"},
	} {
		r.When, r.Why = f.on, r.Why+": give one of the two"
		rules = append(rules, r)
	}
	return rules
}

// memoryMiBMax keeps --memory-mib within what a number of bytes can say.
const memoryMiBMax = 1 << 30

// trainLocal runs the whole job in this process, every trainer with its own part of what this process was told, and
// adds up their results.
func (o *common) trainLocal(ctx context.Context, backend cuda.Backend) (r report.Result, err error) {
	s := o.shared
	shown, err := o.openPage(ctx)
	if err != nil {
		return r, err
	}
	defer shown.Close()
	shards, err := local.Start(ctx, local.Options{Shards: o.local.shards, Backend: backend, Log: o.log,
		MemoryBytesMax: o.local.memoryMiB << 20, MemorySetting: "--memory-mib",
		Adjust: func(_ *ps.Config, to *ps.Options) {
			shown.Options(to)
			if o.gpus != nil {
				to.GPUs, to.Fit = verification.GPUs(backend, o.gpus), verification.Fit(backend, o.gpus.Fit)
			}
		}})
	if err != nil {
		return r, err
	}
	defer shards.Close()
	shown.Begin(shards.Server())
	results := make([]report.Result, s.Trainers)
	var training atomic.Int64
	training.Store(int64(s.Trainers))
	err = shards.Run(ctx, s.Trainers, func(ctx context.Context, i int, c trainer.Config) error {
		of := *o
		of.shards, of.id, of.quiet = shards, string(c.Member), i > 0
		if of.endTraining != nil {
			of.endTraining = func() {
				if training.Add(-1) == 0 {
					o.endTraining()
				}
			}
		}
		if i > 0 {
			of.save, of.saveEvery = "", 0
		}
		var err error
		results[i], err = of.trainOne(ctx, backend)
		return err
	})
	if err != nil {
		return r, because(ctx, err)
	}
	return report.Add(results, schema.ClockOf(s.Consistency).Common())
}

// openPage begins to serve the page of a job in this process; nil where none is wanted.
func (o *common) openPage(ctx context.Context) (*display.Display, error) {
	if o.local.http == "" || o.local.http == "off" {
		return nil, nil
	}
	if !strings.Contains(o.local.http, ":") {
		return nil, errors.New("--http " + o.local.http + ": want host:port, for example 127.0.0.1:8080")
	}
	shown, err := display.Open(ctx, ops.Config{Listen: o.local.http, Log: o.log})
	if err == nil {
		fmt.Fprintf(o.errOut, "The page:  %s\n", shown.URL())
	}
	return shown, err
}
