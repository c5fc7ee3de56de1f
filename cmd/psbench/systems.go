package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gradbus/bench/average"
	"gradbus/bench/hosted"
	"gradbus/bench/hybrid"
	"gradbus/bench/update"
)

func averageCommand() *cobra.Command {
	f := average.DefaultConfig()
	return measured(&cobra.Command{
		Use:   "average",
		Short: "Measure data-parallel trainers whose gradients servers or all-reduce average",
		Example: `  ./bin/psbench average --sparse
  ./bin/psbench average --hook sparse-rpc --sparse --epochs 2 --csv tables
  ./bin/psbench average --hook allreduce --trace timeline.json      open it at ui.perfetto.dev
  ./bin/psbench diff tables/trainer_all.csv before/trainer_all.csv`,
	}, &f, &f.JSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		return nil, average.Run(ctx, f, out, errs)
	})
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
	return measured(&cobra.Command{
		Use:   "hosted",
		Short: "Measure a model that lives on the server: computed there, or pulled by trainers",
		Example: `  ./bin/psbench hosted
  ./bin/psbench hosted --input synthetic --batches 50
  ./bin/psbench hosted --mode pull --trainers 4 --epochs 3`,
	}, &f, &f.JSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		if f.LocalStep {
			return hosted.LocalStep(ctx, f)
		}
		return hosted.Run(ctx, f, out, errs)
	})
}

func hybridCommand() *cobra.Command {
	f := hybrid.DefaultConfig()
	return measured(&cobra.Command{
		Use:   "hybrid",
		Short: "Measure embeddings on servers with a dense part that trainers all-reduce",
		Example: `  ./bin/psbench hybrid
  ./bin/psbench hybrid --trainers 2 --servers 8 --mode sync --json
  ./bin/psbench hybrid --trainers 3 --servers 5 --dim 50 --placement rows`,
	}, &f, &f.JSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		if !f.JSON {
			if err := hybrid.Banner(out, &f); err != nil {
				return nil, err
			}
		}
		found, err := hybrid.Run(ctx, f, out, errs)
		if err != nil {
			return nil, fmt.Errorf("hybrid: %w", err)
		}
		return found, nil
	})
}

func updateCommand() *cobra.Command {
	f := update.DefaultConfig()
	return measured(&cobra.Command{
		Use:   "update",
		Short: "Measure a server that updates its model after every N gradients",
		Example: `  ./bin/psbench update
  ./bin/psbench update --update-size 2 --log --batches 4 --warmup 0
  ./bin/psbench update --trainers 4 --in 1024 --out 1024 --trainer-batch 32
  ./bin/psbench update --load begin.safetensors
  ./bin/psbench update --model convnet --trainers 5 --batches 6 --warmup 1`,
	}, &f, &f.JSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		return update.Run(ctx, f, out, errs)
	})
}
