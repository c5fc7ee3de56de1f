package main

import (
	"github.com/spf13/cobra"

	"gradbus/bench/average"
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
