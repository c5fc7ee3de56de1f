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
		Short: "Embeddings on servers, which pool them, and a dense part that trainers all-reduce",
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
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`number` of trainers")
	set.IntVar(&f.Servers, "servers", f.Servers, "`number` of ps processes, each with one shard")
	set.IntVar(&f.Embeddings, "embeddings", f.Embeddings, "`rows` of the table, or of each server's")
	set.IntVar(&f.Dim, "dim", f.Dim, "`columns` for each server; the dense part has servers times as many inputs")
	set.IntVar(&f.Epochs, "epochs", f.Epochs, "`number` of epochs that are measured")
	set.IntVar(&f.Warmup, "warmup", f.Warmup, "`number` of epochs before them")
	set.IntVar(&f.Batches, "batches", f.Batches, "`number` of batches of an epoch, for each trainer")
	set.Float64Var(&f.LR, "lr", f.LR, "learning `rate`")
	set.StringVar(&f.Mode, "mode", f.Mode,
		"`how` gradients of tables are applied: async (each trainer's when it arrives), sync (their mean, once a batch)")
	set.StringVar(&f.Mean, "mean", f.Mean, harness.MeanUsage)
	set.StringVar(&f.Placement, "placement", f.Placement, "`where` the embeddings lie: columns, rows, tables")
	set.StringVar(&f.Dense, "library", f.Dense, "products: `name` is one of auto, onednn, openblas, own")
	set.IntVar(&f.ChunkBytes, "chunk", f.ChunkBytes,
		"`bytes` of dense gradients in one message; 0 is all of them, or half")
	f.Device.AddTo(set)
	f.Flags.AddTo(set)
	return c
}
