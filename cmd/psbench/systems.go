package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gradbus/bench/average"
	"gradbus/bench/harness"
	"gradbus/bench/hosted"
	"gradbus/bench/hybrid"
	"gradbus/bench/update"
)

func averageCommand() *cobra.Command {
	settings := average.DefaultConfig()
	c := &cobra.Command{
		Use:   "average",
		Short: "Measure data-parallel trainers whose gradients servers or all-reduce average",
		Example: `  ./bin/psbench average --sparse
  ./bin/psbench average --hook sparse-rpc --sparse --epochs 2 --csv tables
  ./bin/psbench average --hook allreduce --trace timeline.json      open it at ui.perfetto.dev
  ./bin/psbench diff tables/trainer_all.csv before/trainer_all.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return measured(c, &settings, func() error {
				return average.Run(c.Context(), settings, c.OutOrStdout(), c.ErrOrStderr())
			})
		},
	}
	c.Flags().SortFlags = false
	settings.AddTo(c.Flags())
	return c
}

func diffCommand() *cobra.Command {
	output := ""
	c := &cobra.Command{
		Use:     "diff A.csv B.csv",
		Short:   "Compare two tables of metrics of psbench average or of the PyTorch program that it rebuilds",
		Example: `  ./bin/psbench diff tables/trainer_all.csv before/trainer_all.csv --output diff.csv`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return average.DiffFiles(args[0], args[1], output, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&output, "output", "", "`PATH`: write the difference to this file too")
	return c
}

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

func hybridCommand() *cobra.Command {
	f := hybrid.DefaultConfig()
	c := &cobra.Command{
		Use:   "hybrid",
		Short: "Measure embeddings on servers with a dense part that trainers all-reduce",
		Example: `  ./bin/psbench hybrid
  ./bin/psbench hybrid --trainers 2 --servers 8 --mode sync --json
  ./bin/psbench hybrid --trainers 3 --servers 5 --dim 50 --placement rows`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return measured(c, &f, func() error {
				if !f.JSON {
					if err := hybrid.Banner(c.OutOrStdout(), &f); err != nil {
						return err
					}
				}
				found, err := hybrid.Run(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
				if err != nil {
					return fmt.Errorf("hybrid: %w", err)
				}
				return f.Show(c.OutOrStdout(), found)
			})
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`N`: trainers")
	set.IntVar(&f.Servers, "servers", f.Servers, "`N`: ps processes, each with one shard")
	set.IntVar(&f.Embeddings, "embeddings", f.Embeddings, "`ROWS`: rows of the table, or of each server's table")
	set.IntVar(&f.Dim, "dim", f.Dim, "`N`: columns on each server; the dense part has servers*N inputs")
	set.IntVar(&f.Epochs, "epochs", f.Epochs, "`N`: measured epochs")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`N`: epochs before the measured ones")
	set.IntVar(&f.Batches, "batches", f.Batches, "`N`: batches of each trainer in an epoch")
	set.Float64Var(&f.LR, "lr", f.LR, "`RATE`: learning rate")
	set.StringVar(&f.Mode, "mode", f.Mode,
		"`MODE`: table gradients are applied on arrival (async) or as their mean once per batch (sync)")
	set.StringVar(&f.Mean, "mean", f.Mean, harness.MeanUsage)
	set.StringVar(&f.Placement, "placement", f.Placement, "`HOW`: embeddings are placed by columns, rows or tables")
	set.StringVar(&f.Dense, "library", f.Dense, "`NAME`: dense library: auto, onednn, openblas or own")
	set.IntVar(&f.ChunkBytes, "chunk", f.ChunkBytes,
		"`BYTES`: dense gradients in one message; 0 picks")
	f.Device.AddTo(set)
	f.Flags.AddTo(set)
	return c
}

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
