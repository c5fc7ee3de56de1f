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
		Short: "A model of images that the server computes, or whose parameters trainers pull, compute with and push to",
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
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`number` of trainers, each with its share of the data")
	set.IntVar(&f.Epochs, "epochs", f.Epochs, "`number` of epochs")
	set.IntVar(&f.Batches, "batches", f.Batches,
		"`number` of batches of each trainer that are measured, in place of epochs")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`number` of batches of each trainer that are not measured")
	set.StringVar(&f.Mode, "mode", f.Mode,
		"`mode`: remote, the server computes, or pull, trainers pull parameters, compute, and push gradients")
	set.StringVar(&f.Sync, "sync", f.Sync,
		"how trainers keep together in mode pull: `async`, sync, bounded, or reduce, between trainers")
	f.Device.AddTo(set)
	set.StringVar(&f.Data, "input", f.Data, "`data`: mnist, fashion, or synthetic, which is generated")
	set.StringVar(&f.DataDir, "data-dir", f.DataDir, "`folder` with the idx files of mnist or fashion; empty is data/NAME")
	set.IntVar(&f.BatchSize, "trainer-batch", f.BatchSize, "`number` of samples in a batch of one trainer")
	set.Float64Var(&f.LR, "lr", f.LR, "learning `rate` of SGD")
	set.Float64Var(&f.Momentum, "momentum", f.Momentum, "`momentum` of SGD")
	set.BoolVar(&f.LocalStep, "local-step", f.LocalStep, "measure a training step in this process instead")
	_ = set.MarkHidden("local-step") // it exists
	f.Flags.AddTo(set)
	return c
}
