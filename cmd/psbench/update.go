package main

import (
	"github.com/spf13/cobra"

	"gradbus/bench/update"
)

func updateCommand() *cobra.Command {
	f := update.DefaultConfig()
	c := &cobra.Command{
		Use:   "update",
		Short: "Measure a server that updates its model after every N gradients",
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
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`N`: trainers")
	set.IntVar(&f.Batches, "batches", f.Batches, "`N`: measured batches of each trainer")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`N`: batches of each trainer before the measured ones")
	set.IntVar(&f.In, "in", f.In, "`N`: inputs of the linear model")
	set.IntVar(&f.Out, "out", f.Out, "`N`: outputs of the linear model")
	set.IntVar(&f.BatchSize, "trainer-batch", f.BatchSize, "`N`: samples in a batch of one trainer")
	set.Float64Var(&f.LR, "lr", f.LR, "`RATE`: learning rate of the server's SGD")
	set.Float64Var(&f.Momentum, "momentum", f.Momentum, "`MOMENTUM`: momentum of the server's SGD")
	set.IntVar(&f.UpdateSize, "update-size", f.UpdateSize,
		"`N`: gradients that make an update; 0 is the number of trainers")
	set.StringVar(&f.Model, "model", f.Model, "`NAME`: linear (L1 loss) or convnet (squared error)")
	set.StringVar(&f.Load, "load", f.Load,
		"`PATH`: safetensors file with the server's initial weights; empty draws them")
	f.Device.AddTo(set)
	set.BoolVar(&f.Log, "log", f.Log, "log every step")
	set.IntVar(&f.Procs, "procs", f.Procs,
		"`N`: GOMAXPROCS of each process; 0 is the number of processors")
	set.DurationVar(&f.TelemetryEvery, "telemetry-every", f.TelemetryEvery,
		"`DURATION`: between two telemetry reports of a trainer")
	set.DurationVar(&f.HeartbeatEvery, "heartbeat-every", f.HeartbeatEvery,
		"`DURATION`: between two heartbeats of a trainer")
	for _, name := range []string{"procs", "telemetry-every", "heartbeat-every"} {
		_ = set.MarkHidden(name) // it exists
	}
	f.Flags.AddTo(set)
	return c
}
