package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/internal/config"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// classesShown is the number of classes in a prediction.
const classesShown = 3

func mnistCommand() *cobra.Command {
	s, input, folder := mnist.Defaults(), "", ""
	o := &common{shared: &s.Shared}
	c := &cobra.Command{
		Use:   "mnist",
		Short: "Classify small images (MNIST or Fashion-MNIST)",
		Long: `Classify small images with a convolutional model of 1,199,882 parameters.

The command joins a job as its next trainer, trains, and prints the result. It pulls parameters from the shards and computes
the model with the dense library of --library. The first trainer registers the job; the others need the same settings, data
and library. "make data" fetches the images; --input synthetic needs none.`,
		Example: `  ./bin/trainer mnist                                         a job of one trainer, on a server on this machine
  ./bin/trainer mnist --local                                 the same without a server, in this process alone
  ./bin/trainer mnist --spawn --trainers 2                    a job of two, both started here
  ./bin/trainer mnist --input fashion --save model.safetensors
  ./bin/trainer mnist --load model.safetensors --predict seven.png
  ./bin/trainer mnist --input synthetic --epochs 1 --json     without any data, the result as one line of JSON`,
	}
	set := c.Flags()
	o.addServer(set)
	o.addPlace(set)
	set.StringVar(&input, "input", mnist.DataMNIST, "`NAME`: data set: "+strings.Join(mnist.DataNames(), ", "))
	set.StringVar(&folder, "data-dir", "", "`DIR`: folder with the four idx files of the data set; empty is data/NAME")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.Uint64Var(&s.Batches, "batches", s.Batches,
		"`N`: batches to train, in place of --epochs; 0 trains whole epochs")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most samples in a batch of all trainers together")
	o.addTraining(set, "initial values, order and dropout", "")
	o.addOutput(set)
	set.StringVar(&o.library, "library", "auto",
		"`NAME`: dense library for products and convolutions: "+strings.Join(cuda.DenseNames(), ", "))
	set.StringVar(&o.predict, "predict", "", "`PATH`: PNG image to classify, with --load")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking("backend", "isa", "threads", "library")}
	o.own = func() []config.Idle {
		return []config.Idle{
			{When: s.Batches > 0, Flags: []string{"epochs"}, Why: "--batches says how long: give one of the two"},
			{When: input == mnist.DataSynthetic, Flags: []string{"data-dir"},
				Why: "synthetic images are generated: want --input mnist or fashion with it"}}
	}
	o.validate = func() error { return s.Validate() }
	o.load = func(context.Context) (*dataset, error) { return loadMNIST(&s, input, folder) }
	o.ask = o.askMNIST
	return o.command(c)
}

func loadMNIST(s *mnist.Settings, input, folder string) (*dataset, error) {
	data, err := mnist.Load(input, folder)
	if err != nil {
		return nil, err
	}
	m := mnist.Model()
	return &dataset{source: data.Source, synthetic: data.Synthetic, test: data.Test.Len(),
		perEpoch: s.BatchesPerEpoch(data.Train.Len()), batches: s.Run(data),
		job: func(e nn.Env) *schema.Job { return mnist.Job(*s, data, m, e.Dense.Name()) },
		workload: func(_ *trainer.Session, e nn.Env) (trainer.Workload, error) {
			return mnist.NewWorkload(*s, data, m, e)
		},
		accuracy: func(_ context.Context, session *trainer.Session, e nn.Env) (float64, error) {
			accuracy, _, err := mnist.Evaluate(session, m, e, &data.Test)
			return accuracy, err
		},
		metadata: mnist.Metadata(input)}, nil
}

func (o *common) askMNIST() error {
	model, err := mnist.LoadModel(o.model)
	if err != nil {
		return err
	}
	image, err := mnist.ReadPicture(o.predict)
	if err != nil {
		return fmt.Errorf("--predict: %w", err)
	}
	backend, err := o.openBackend()
	if err != nil {
		return err
	}
	defer backend.Close()
	e, end, err := o.openEnv(backend)
	if err != nil {
		return err
	}
	defer end()
	predictions, err := model.Predict(e, image)
	if err != nil {
		return err
	}
	var lines []string
	for _, p := range predictions[:classesShown] {
		lines = append(lines, fmt.Sprintf("%-12s %.4f", p.Name, p.Probability))
	}
	return o.answer(map[string]any{"file": filepath.Base(o.predict), "answer": predictions[0].Name,
		"predictions": predictions}, model.File, "images", lines)
}
