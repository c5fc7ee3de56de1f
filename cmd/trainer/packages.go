package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gradbus/config"
	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/trainer/packages"
	"gradbus/trainer/packages/corpus"
	"gradbus/trainer/report"
)

// options are what `trainer packages` was told.
type options struct {
	settings packages.Settings

	server, tokenFile, id string
	creds, ca, data       string
	dataHost, advertise   string
	backWithin            time.Duration
	windowMiB             int
	backend, isa          string
	threads               int
	input                 string
	spawn, json           bool
	save, load            string
	predict, dump         string
	events                string // of a trainer that another one started: what it writes

	out    io.Writer
	errOut *os.File
	log    *slog.Logger
}

const serverDefault = "nats://127.0.0.1:4222"

func packagesCommand() *cobra.Command {
	o := options{settings: packages.Defaults()}
	c := &cobra.Command{
		Use:   "packages",
		Short: "Predict the section of a Debian package from its name and description",
		Long: `Predict the section of a Debian package from its name and description.

Joins a job as its next trainer, trains, and says how it went. The first trainer of a job registers it; the others must
want the same settings and have the same data. The default data are this machine's own package index.`,
		Example: `  ./bin/trainer packages                                     a job of one trainer, on a server on this machine
  ./bin/trainer packages --spawn --trainers 2 --lanes 4      a job of two, both started here
  ./bin/trainer packages --trainers 2 --lanes 4              one of two: start it twice, here or on another machine
  ./bin/trainer packages --spawn --trainers 2 --json         the result as one line of JSON
  ./bin/trainer packages --input Packages.xz --save model.safetensors
  ./bin/trainer packages --load model.safetensors --predict "text editor with syntax highlighting"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: settings are flags (see trainer packages --help)", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := config.LoadFlagged(c.Flags()); err != nil {
				return err
			}
			o.out, o.errOut = c.OutOrStdout(), os.Stderr
			o.log = slog.New(slog.NewTextHandler(o.errOut, nil))
			return o.run(c.Context())
		},
	}
	o.add(c)
	return c
}

func (o *options) add(c *cobra.Command) {
	s, set := &o.settings, c.Flags()
	set.SortFlags = false
	set.StringVar(&o.server, "server", serverDefault, "`address` of the ps, or of the NATS server where several ps find each other")
	set.StringVar(&o.tokenFile, "token-file", "", "`file` whose first line is the server's token")
	set.StringVar(&o.creds, "nats-creds", "", "`file` with credentials, where --server is a NATS server that wants them")
	set.StringVar(&o.ca, "nats-ca", "", "`file` with the certificates that vouch for --server, where the system's do not")
	set.StringVar(&o.data, "data", schema.DataDirect, "`way` to the shards: direct dials every ps; cluster goes by --server alone, and is slower")
	set.StringVar(&o.dataHost, "data-host", "", "`host` at which this trainer listens to the others, with --reduce trainers; empty is 127.0.0.1. Others than loopback need --token-file")
	set.StringVar(&o.advertise, "advertise", "", "`host` by which the other trainers reach it, where --data-host does not say it")
	set.DurationVar(&o.backWithin, "back-within", 30*time.Second, "`time` that a lost connection to shards may take to come back")
	set.IntVar(&o.windowMiB, "window-mib", 0, "`MiB` of gradients on the way to each shard at most; 0 is what the server grants, 4 as a rule. With less, requests wait less behind them")
	set.StringVar(&s.Job, "job", s.Job, "`name` of the job")
	set.IntVar(&s.Trainers, "trainers", s.Trainers, "`number` of trainers that the job has")
	set.IntVar(&s.Lanes, "lanes", s.Lanes, "`number` of lanes that each batch is cut into; 0 is one for each trainer")
	set.StringVar(&o.id, "id", "", "member `id` to ask for, t0, t1, ...; empty is the next free one")
	set.BoolVar(&o.spawn, "spawn", false, "start all trainers of the job, as processes")
	set.StringVar(&o.input, "input", "", "package index `file`, plain, gz, xz or lz4, or \"synthetic\"; empty is this machine's own")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`number` of times to go through the training set")
	set.IntVar(&s.Batch, "batch", s.Batch, "most `samples` in a batch")
	set.IntVar(&s.Dim, "dim", s.Dim, "`values` in an embedding row")
	set.Float64Var(&s.LR, "lr", s.LR, "learning `rate`")
	set.Float64Var(&s.Momentum, "momentum", s.Momentum, "`momentum` of SGD, from 0 to below 1")
	set.Uint64Var(&s.Seed, "seed", s.Seed, "`number` that initial values and order follow from")
	set.StringVar(&s.Reduce, "reduce", s.Reduce, "`who` adds gradients up: shards, or trainers among themselves, who then keep everything (needs --apply mean)")
	set.StringVar(&s.Apply, "apply", s.Apply, "`who` owns the dense parameters and their optimizer: update is the shards, mean the trainers")
	set.StringVar(&s.Consistency, "consistency", schema.ConsistencySync, "`mode`: sync waits for every batch, bounded lets trainers run ahead, async waits for nobody")
	set.IntVar(&s.Ahead, "ahead", 0, "`number` of batches that a trainer may run ahead, in bounded")
	set.StringVar(&s.Wire.Gradients, "wire", schema.GradientsFloat32, "`type` in which gradients travel: float32, bfloat16 or float16")
	set.BoolVar(&s.Wire.ErrorFeedback, "error-feedback", false, "add what rounding took from a dense gradient to the next batch's, with 16-bit types")
	set.StringVar(&s.Wire.Sparse, "sparse", schema.SparseRows, "`form` of row gradients: rows, bags, or auto for whichever is smaller")
	set.StringVar(&o.backend, "backend", "auto", "arithmetic: `name` is one of "+strings.Join(cuda.Names(), ", "))
	set.StringVar(&o.isa, "isa", "", "instruction `set` of the cpu backend: baseline, avx2 or avx512; the best where empty")
	set.IntVar(&o.threads, "threads", 1, "`number` of threads that one call of the cpu backend may use; results do not depend on it")
	set.BoolVar(&o.json, "json", false, "print one line of JSON and nothing else on standard output")
	set.StringVar(&o.save, "save", "", "safetensors `file` to write the trained model to")
	set.StringVar(&o.load, "load", "", "safetensors `file` to read a model from instead of training")
	set.StringVar(&o.predict, "predict", "", "`text` to name the most probable sections of, with --load")
	set.StringVar(&o.dump, "dump", "", "write the examples to this `file` as text, and train nothing")
	config.AddFileFlag(set)
	set.StringVar(&o.events, "events", "", "write events instead of text")
	_ = set.MarkHidden("events") // of the protocol between --spawn and what it starts
}

func (o *options) run(ctx context.Context) error {
	switch {
	case o.load != "":
		return o.ask()
	case o.predict != "":
		return errors.New("--predict needs a model: name its file with --load")
	case o.dump != "":
		return o.dumpExamples(ctx)
	}
	if err := o.settings.Validate(); err != nil {
		return err
	}
	if err := writable(o.save); err != nil {
		return err
	}
	backend, err := cuda.Open(cuda.Options{Name: o.backend, ISA: o.isa, Threads: o.threads, Log: o.log})
	if err != nil {
		return err
	}
	defer backend.Close()
	var result report.Result
	if o.spawn {
		result, err = o.trainAll(ctx)
	} else {
		result, err = o.trainOne(ctx, backend)
	}
	if err != nil {
		return err
	}
	switch {
	case o.events != "":
		return report.Event{Result: &result}.Write(o.out)
	case o.json:
		return result.PrintJSON(o.out)
	}
	return result.Print(o.out)
}

// writable fails where path cannot become a file, so that this is known before the training and not after it.
func writable(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--save %s: it is a directory, want the name of a file", path)
	}
	probe, err := os.CreateTemp(filepath.Dir(path), ".probe-*")
	if err != nil {
		return fmt.Errorf("--save %s: cannot be written: %w", path, err)
	}
	probe.Close()
	return os.Remove(probe.Name())
}

func (o *options) dumpExamples(ctx context.Context) (err error) {
	data, err := corpus.Load(ctx, o.input)
	if err != nil {
		return err
	}
	file, err := os.Create(o.dump)
	if err != nil {
		return fmt.Errorf("dump examples: %w", err)
	}
	return errors.Join(data.Dump(file), file.Close())
}
