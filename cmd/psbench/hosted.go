package main

import (
	"io"

	"github.com/spf13/cobra"

	"gradbus/bench/hosted"
)

func hostedCommand() *cobra.Command {
	f := hosted.DefaultConfig()
	c := &cobra.Command{
		Use:   "hosted",
		Short: "Measure a model that lives on the server: computed there, or pulled by trainers",
		Example: `  ./bin/psbench hosted
  ./bin/psbench hosted --input synthetic --batches 50
  ./bin/psbench hosted --mode pull --trainers 4 --epochs 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return measured(c, &f, func() (err error) {
				var found interface{ Print(io.Writer) error }
				if f.LocalStep {
					found, err = hosted.LocalStep(c.Context(), f)
				} else {
					found, err = hosted.Run(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
				}
				if err != nil {
					return err
				}
				return f.Show(c.OutOrStdout(), found)
			})
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`N`: trainers, each with its share of the data")
	set.IntVar(&f.Epochs, "epochs", f.Epochs, "`N`: epochs")
	set.IntVar(&f.Batches, "batches", f.Batches,
		"`N`: measured batches of each trainer, in place of --epochs")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`N`: batches of each trainer before the measured ones")
	set.StringVar(&f.Mode, "mode", f.Mode,
		"`MODE`: remote: the server computes; pull: trainers pull parameters, compute and push gradients")
	set.StringVar(&f.Sync, "sync", f.Sync,
		"`MODE`: consistency in --mode pull: async, sync, bounded, or reduce (between trainers)")
	f.Device.AddTo(set)
	set.StringVar(&f.Data, "input", f.Data, "`NAME`: data: mnist, fashion, or synthetic (generated)")
	set.StringVar(&f.DataDir, "data-dir", f.DataDir,
		"`DIR`: folder with the idx files of mnist or fashion; empty is data/NAME")
	set.IntVar(&f.BatchSize, "trainer-batch", f.BatchSize, "`N`: samples in a batch of one trainer")
	set.Float64Var(&f.LR, "lr", f.LR, "`RATE`: learning rate of SGD")
	set.Float64Var(&f.Momentum, "momentum", f.Momentum, "`MOMENTUM`: momentum of SGD")
	set.BoolVar(&f.LocalStep, "local-step", f.LocalStep, "measure a training step in this process instead")
	_ = set.MarkHidden("local-step") // it exists
	f.Flags.AddTo(set)
	return c
}
