package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/internal/config"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// sectionsShown is the number of sections in a prediction.
const sectionsShown = 5

func packagesCommand() *cobra.Command {
	s, input := packages.Defaults(), ""
	o := &common{shared: &s.Shared}
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
	set := c.Flags()
	o.addServer(set)
	o.addPlace(set)
	set.StringVar(&input, "input", "",
		"`PATH`: package index, plain, gz, xz or lz4, or synthetic; empty is this machine's")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most samples in a batch of all trainers together")
	set.IntVar(&s.Dim, "dim", s.Dim, "`N`: columns of the embedding table")
	o.addTraining(set, "initial values and order", "dense ")
	set.StringVar(&s.Placement, "placement", "",
		"`HOW`: of the table: tables or columns (shards pool), rows (trainers pool); empty picks")
	o.addOutput(set)
	set.StringVar(&o.predict, "predict", "", "`TEXT`: text to predict the section of, with --load")
	set.StringVar(&o.dump, "dump", "", "`PATH`: write the examples to this file as text and exit")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking("backend", "isa", "threads"), dumping(&o.dump, "input")}
	o.validate = func() error { return s.Validate() }
	o.load = func(ctx context.Context) (*dataset, error) { return loadPackages(ctx, &s, input) }
	o.ask = o.askPackages
	return o.command(c)
}

func loadPackages(ctx context.Context, s *packages.Settings, input string) (*dataset, error) {
	data, err := corpus.Load(ctx, input)
	if err != nil {
		return nil, err
	}
	return &dataset{source: data.Source, synthetic: data.Synthetic, test: data.Test.Len(), dump: data.Dump,
		perEpoch: s.BatchesPerEpoch(data.Train.Len()), batches: s.Batches(data),
		job: func(nn.Env) *schema.Job { return packages.Job(*s, data) },
		workload: func(_ *trainer.Session, e nn.Env) (trainer.Workload, error) {
			return packages.NewWorkload(*s, data, e.Backend)
		},
		accuracy: func(ctx context.Context, session *trainer.Session, e nn.Env) (float64, error) {
			return packages.Evaluate(ctx, session, e.Backend, s.Dim, len(data.Classes), &data.Test)
		},
		metadata: packages.Metadata(data)}, nil
}

func (o *common) askPackages() error {
	model, err := packages.LoadModel(o.model)
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
	var lines []string
	for _, p := range predictions[:min(sectionsShown, len(predictions))] {
		lines = append(lines, fmt.Sprintf("%-16s %.4f", schema.Printable(p.Section), p.Probability))
	}
	return o.answer(map[string]any{"text": o.predict, "predictions": predictions}, model.File, "packages",
		lines)
}
