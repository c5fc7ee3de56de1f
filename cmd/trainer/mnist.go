package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// mnistOptions are what `trainer mnist` was told.
type mnistOptions struct {
	common
	settings mnist.Settings
	input    string
	dataDir  string
	library  string
	data     func() (*mnist.Data, error) // reads it, once
}

// classesShown is how many classes a prediction lists for people.
const classesShown = 3

func mnistCommand() *cobra.Command {
	o := mnistOptions{settings: mnist.Defaults()}
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
	o.add(c.Flags())
	return o.workloadCommand(c, o.run)
}

func (o *mnistOptions) add(set *pflag.FlagSet) {
	s := &o.settings
	o.addServer(set)
	o.addPlace(set, &s.Shared)
	set.StringVar(&o.input, "input", mnist.DataMNIST, "`NAME`: data set: "+strings.Join(mnist.DataNames(), ", "))
	set.StringVar(&o.dataDir, "data-dir", "",
		"`DIR`: folder with the four idx files of the data set; empty is data/NAME")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.Uint64Var(&s.Batches, "batches", s.Batches,
		"`N`: batches to train, in place of --epochs; 0 trains whole epochs")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most samples in a batch of all trainers together")
	o.addTraining(set, &s.Shared, "initial values, order and dropout", "")
	o.addOutput(set)
	set.StringVar(&o.library, "library", "auto",
		"`NAME`: dense library for products and convolutions: "+strings.Join(cuda.DenseNames(), ", "))
	set.StringVar(&o.predict, "predict", "", "`PATH`: PNG image to classify, with --load")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking("backend", "isa", "threads", "library")}
	o.own = func() []config.Idle {
		return []config.Idle{
			{When: s.Batches > 0, Flags: []string{"epochs"}, Why: "--batches says how long: give one of the two"},
			{When: o.input == mnist.DataSynthetic, Flags: []string{"data-dir"},
				Why: "synthetic images are generated: want --input mnist or fashion with it"}}
	}
}

func (o *mnistOptions) run(ctx context.Context) error {
	switch {
	case o.asks():
		return o.ask()
	case o.predict != "":
		return errors.New("--predict needs a model: name its file with --load")
	}
	if err := o.settings.Validate(); err != nil {
		return err
	}
	if err := o.writables(); err != nil {
		return err
	}
	o.data = sync.OnceValues(func() (*mnist.Data, error) { return mnist.Load(o.input, o.dataDir) })
	result, err := o.train(ctx)
	if err != nil {
		return err
	}
	return o.print(result)
}

// train runs the job, or this process's part of it.
func (o *mnistOptions) train(ctx context.Context) (r report.Result, err error) {
	if o.spawn {
		return o.trainAll(ctx, &o.settings.Shared, o.childArgs)
	}
	ctx, stop, err := o.watchGPUs(ctx)
	if err != nil {
		return r, err
	}
	defer stop()
	if !o.local.on {
		r, err := o.trainOne(ctx)
		return r, because(ctx, err)
	}
	backend, err := o.openBackend()
	if err != nil {
		return r, err
	}
	defer backend.Close()
	return o.trainLocal(ctx, backend, &o.settings.Shared, func(ctx context.Context, of common) (report.Result, error) {
		one := *o
		one.common = of
		return one.trainOne(ctx)
	})
}

// childArgs are the flags of the i-th trainer.
func (o *mnistOptions) childArgs(i int) []string {
	s := &o.settings
	return append([]string{"mnist", "--batches", strconv.FormatUint(s.Batches, 10), "--batch", strconv.Itoa(s.Batch),
		"--input", o.input, "--data-dir", o.dataDir, "--library", o.library}, o.common.childArgs(i, &s.Shared)...)
}

// open gives what the model is computed with.
func (o *mnistOptions) open() (e nn.Env, closeAll func(), err error) {
	b, err := o.openBackend()
	if err != nil {
		return e, nil, err
	}
	d, err := cuda.OpenDense(b, cuda.DenseOptions{Library: o.library, Log: o.log})
	if err != nil {
		b.Close()
		return e, nil, err
	}
	return nn.Env{Backend: b, Dense: d}, func() { d.Close(); b.Close() }, nil
}

// trainOne is one trainer, from reading the data to leaving the job.
func (o *mnistOptions) trainOne(ctx context.Context) (r report.Result, err error) {
	data, err := o.data()
	if err != nil {
		return r, err
	}
	if data.Synthetic && !o.quiet {
		o.log.Warn("the input is synthetic: its accuracy says nothing about real images", "input", data.Source)
	}
	e, closeAll, err := o.open()
	if err != nil {
		return r, err
	}
	defer closeAll()
	m := mnist.Model()
	w, err := mnist.NewWorkload(o.settings, data, m, e)
	if err != nil {
		return r, err
	}
	session, err := o.join(ctx, e.Backend, mnist.Job(o.settings, data, m, e.Dense.Name()))
	if err != nil {
		return r, err
	}
	defer func() { err = leave(ctx, session, err) }()
	meter := newMeter(&o.common, o.settings.BatchesPerEpoch(data.Train.Len()), session)
	if meter.board, err = o.openBoard(session); err != nil {
		return r, err
	}
	defer func() { meter.board.end(err) }()
	meter.batches = o.settings.Run(data)
	err = session.Run(ctx, w, left(meter.batches, session), meter.batch)
	meter.show.End()
	if err != nil {
		return r, err
	}
	o.trained()
	r, err = o.conclude(ctx, session, e, data, m, meter)
	return r, o.blame(err)
}

// conclude measures what was trained, and saves it where asked to.
func (o *mnistOptions) conclude(ctx context.Context, session *trainer.Session, e nn.Env, data *mnist.Data, m nn.Module,
	meter *meter) (report.Result, error) {
	r := meter.result(session, e.Backend)
	r.Backend += " " + e.Dense.Name()
	r.Epochs = o.settings.Epochs
	r.Input, r.Synthetic, r.TestSamples = data.Source, data.Synthetic, data.Test.Len()
	digest, err := session.Digest(ctx)
	if err != nil {
		return r, err
	}
	r.WeightsSHA256 = hex.EncodeToString(digest[:])
	if r.Accuracy, _, err = mnist.Evaluate(session, m, e, &data.Test); err != nil {
		return r, err
	}
	meter.board.accuracy(r.Accuracy)
	r.Suspect = o.suspect(ctx)
	if o.save != "" {
		saved := mnist.Collect(session, o.settings, o.input, data, m)
		saved.Suspect = r.Suspect
		if err := saved.Save(o.save); err != nil {
			return r, err
		}
		r.Saved = o.save
	}
	return r, nil
}

// ask answers --predict with a saved model; no server is needed.
func (o *mnistOptions) ask() error {
	model, err := mnist.LoadModel(o.load)
	if err != nil {
		return err
	}
	image, err := mnist.ReadPicture(o.predict)
	if err != nil {
		return fmt.Errorf("--predict: %w", err)
	}
	e, closeAll, err := o.open()
	if err != nil {
		return err
	}
	defer closeAll()
	predictions, err := model.Predict(e, image)
	if err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(o.out).Encode(map[string]any{"file": filepath.Base(o.predict), "answer": predictions[0].Name,
			"synthetic": model.Synthetic, "predictions": predictions})
	}
	if model.Suspect != "" {
		fmt.Fprintf(o.errOut, suspectNote, schema.Printable(model.Suspect))
	}
	if model.Synthetic {
		fmt.Fprintln(o.errOut, "note: this model was trained on synthetic images; its answers say nothing about real ones")
	}
	for _, p := range predictions[:classesShown] {
		if _, err := fmt.Fprintf(o.out, "%-12s %.4f\n", p.Name, p.Probability); err != nil {
			return err
		}
	}
	return nil
}
