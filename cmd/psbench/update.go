package main

import (
	"github.com/spf13/cobra"

	"gradbus/bench/update"
)

func updateCommand() *cobra.Command {
	f := update.DefaultConfig()
	c := &cobra.Command{
		Use:   "update",
		Short: "A server that updates its model for every so many gradients and answers those who sent them",
		Example: `  ./bin/psbench update
  ./bin/psbench update --update-size 2 --log --batches 4 --warmup 0
  ./bin/psbench update --trainers 4 --in 1024 --out 1024 --trainer-batch 32
  ./bin/psbench update --load begin.safetensors
  ./bin/psbench update --model convnet --trainers 5 --batches 6 --warmup 1`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return measured(c, &f, func() error {
				found, err := update.Run(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
				if err != nil {
					return err
				}
				return f.Show(c.OutOrStdout(), found)
			})
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`number` of trainers")
	set.IntVar(&f.Batches, "batches", f.Batches, "`number` of batches of each trainer that are measured")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`number` of batches of each trainer before these")
	set.IntVar(&f.In, "in", f.In, "`number` of inputs of the linear model")
	set.IntVar(&f.Out, "out", f.Out, "`number` of its outputs")
	set.IntVar(&f.BatchSize, "trainer-batch", f.BatchSize, "`number` of samples in a batch of one trainer")
	set.Float64Var(&f.LR, "lr", f.LR, "learning `rate` of the server's SGD")
	set.Float64Var(&f.Momentum, "momentum", f.Momentum, "`momentum` of the server's SGD")
	set.IntVar(&f.UpdateSize, "update-size", f.UpdateSize,
		"`number` of gradients that make an update, 1 to the number of trainers; 0 is all of them")
	set.StringVar(&f.Model, "model", f.Model, "`model`: linear, with the L1 loss, or convnet, with squared errors")
	set.StringVar(&f.Load, "load", f.Load,
		"safetensors `file` with the weights that the server begins with, of its model's names and shapes; empty draws them")
	f.Device.AddTo(set)
	set.BoolVar(&f.Log, "log", f.Log, "say what happens, line by line")
	set.IntVar(&f.Procs, "procs", f.Procs,
		"`number` of processors of Go's scheduler in each process; 0 is as many as there are")
	set.DurationVar(&f.TelemetryEvery, "telemetry-every", f.TelemetryEvery,
		"`time` between two telemetry reports of a trainer")
	set.DurationVar(&f.HeartbeatEvery, "heartbeat-every", f.HeartbeatEvery,
		"`time` between two heartbeats of a trainer")
	for _, name := range []string{"procs", "telemetry-every", "heartbeat-every"} {
		_ = set.MarkHidden(name) // it exists
	}
	f.Flags.AddTo(set)
	return c
}
