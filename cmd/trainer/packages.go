package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/schema"
)

// options are what `trainer packages` was told.
type options struct {
	common
	settings packages.Settings
	input    string
	dump     string
	data     func() (*corpus.Data, error) // reads it, once
}

func packagesCommand() *cobra.Command {
	o := options{settings: packages.Defaults()}
	c := &cobra.Command{
		Use:   "packages",
		Short: "Predict the section of a Debian package from its name and description",
		Long: `Predict the section of a Debian package from its name and description.

The command joins a job as its next trainer, trains, and prints the result. The first trainer registers the job; the others
need the same settings and data. The default data is this machine's package index.`,
		Example: `  ./bin/trainer packages                                     a job of one trainer, on a server on this machine
  ./bin/trainer packages --local                             the same without a server, in this process alone
  ./bin/trainer packages --spawn --trainers 2                a job of two, both started here
  ./bin/trainer packages --trainers 2                        one of two: start it twice, here or on another machine
  ./bin/trainer packages --spawn --trainers 2 --json         the result as one line of JSON
  ./bin/trainer packages --input Packages.xz --save model.safetensors
  ./bin/trainer packages --load model.safetensors --predict "text editor with syntax highlighting"`,
	}
	o.add(c.Flags())
	return o.workloadCommand(c, o.run)
}

func (o *options) add(set *pflag.FlagSet) {
	s := &o.settings
	o.addServer(set)
	o.addPlace(set, &s.Shared)
	set.StringVar(&o.input, "input", "",
		"`PATH`: package index, plain, gz, xz or lz4, or synthetic; empty is this machine's")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most samples in a batch of all trainers together")
	set.IntVar(&s.Dim, "dim", s.Dim, "`N`: columns of the embedding table")
	o.addTraining(set, &s.Shared, "initial values and order", "dense ")
	set.StringVar(&s.Placement, "placement", "",
		"`HOW`: of the table: tables or columns (shards pool), rows (trainers pool); empty picks")
	o.addOutput(set)
	set.StringVar(&o.predict, "predict", "", "`TEXT`: text to predict the section of, with --load")
	set.StringVar(&o.dump, "dump", "", "`PATH`: write the examples to this file as text and exit")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking("backend", "isa", "threads"), dumping(&o.dump, "input")}
}

func (o *options) run(ctx context.Context) error {
	switch {
	case o.asks():
		return o.ask()
	case o.predict != "":
		return errors.New("--predict needs a model: name its file with --load")
	case o.dump != "":
		return o.dumpExamples(ctx)
	}
	if err := o.settings.Validate(); err != nil {
		return err
	}
	if err := o.writables(); err != nil {
		return err
	}
	if !o.spawn {
		watched, stop, err := o.watchGPUs(ctx)
		if err != nil {
			return err
		}
		defer stop()
		ctx = watched
	}
	backend, err := o.openBackend()
	if err != nil {
		return err
	}
	defer backend.Close()
	o.data = sync.OnceValues(func() (*corpus.Data, error) { return corpus.Load(ctx, o.input) })
	var result report.Result
	switch {
	case o.spawn:
		result, err = o.trainAll(ctx, &o.settings.Shared, o.childArgs)
	case o.local.on:
		result, err = o.trainLocal(ctx, backend, &o.settings.Shared,
			func(ctx context.Context, of common) (report.Result, error) {
				one := *o
				one.common = of
				return one.trainOne(ctx, backend)
			})
	default:
		result, err = o.trainOne(ctx, backend)
		err = because(ctx, err)
	}
	if err != nil {
		return err
	}
	return o.print(result)
}

// childArgs are the flags of the i-th trainer.
func (o *options) childArgs(i int) []string {
	s := &o.settings
	return append([]string{"packages", "--batch", strconv.Itoa(s.Batch), "--dim", strconv.Itoa(s.Dim), "--placement",
		s.Placement,
		"--input", o.input}, o.common.childArgs(i, &s.Shared)...)
}

func (o *options) dumpExamples(ctx context.Context) (err error) {
	data, err := corpus.Load(ctx, o.input)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(o.dump, 0o666, data.Dump); err != nil {
		return fmt.Errorf("dump examples: %w", err)
	}
	return nil
}

// sectionsShown is how many sections a prediction lists for people.
const sectionsShown = 5

// suspectNote is what is said of a model that was saved as suspect.
const suspectNote = "note: this model may be wrong, and should be trained again: %s\n"

// ask answers --predict with a saved model; no server is needed.
func (o *options) ask() error {
	model, err := packages.LoadModel(o.load)
	if err != nil {
		return err
	}
	backend, err := cuda.Open(cuda.Options{Name: o.backend, ISA: o.isa, Threads: o.threads})
	if err != nil {
		return err
	}
	defer backend.Close()
	predictions, err := model.Predict(backend, o.predict, "")
	if err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(o.out).Encode(map[string]any{"text": o.predict, "synthetic": model.Synthetic,
			"predictions": predictions})
	}
	if model.Suspect != "" {
		fmt.Fprintf(o.errOut, suspectNote, schema.Printable(model.Suspect))
	}
	if model.Synthetic {
		fmt.Fprintln(o.errOut,
			"note: this model was trained on the synthetic corpus; its answers say nothing about real packages")
	}
	for _, p := range predictions[:min(sectionsShown, len(predictions))] {
		if _, err := fmt.Fprintf(o.out, "%-16s %.4f\n", schema.Printable(p.Section), p.Probability); err != nil {
			return err
		}
	}
	return nil
}
