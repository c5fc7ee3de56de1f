package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gradbus/bench/harness"
	"gradbus/bench/hybrid"
)

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
