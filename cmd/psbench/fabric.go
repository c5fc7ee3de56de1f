package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"gradbus/bench/exchange"
	"gradbus/bench/harness"
)

// fabric is what `psbench fabric` was told.
type fabric struct {
	exchange.Config
	windowMiB int
	json      bool
}

func fabricCommand() *cobra.Command {
	f := fabric{Config: exchange.DefaultConfig()}
	c := &cobra.Command{
		Use:   "fabric",
		Short: "Measure the exchange of gradients between processes as a share of one TCP connection",
		Example: `  ./bin/psbench fabric
  ./bin/psbench fabric --trainers 2 --bytes 1048576 --json
  ./bin/psbench fabric --turns 1 --rounds 10000      is memory flat?`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f.Progress = c.ErrOrStderr()
			return f.run(c.Context(), c.OutOrStdout())
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.IntVar(&f.Trainers, "trainers", f.Trainers, "`N`: trainers of the fan-in; full rounds have two")
	set.IntVar(&f.Shards, "shards", f.Shards, "`N`: shards")
	set.IntVar(&f.Bytes, "bytes", f.Bytes, "`BYTES`: float32 gradients of a trainer in a batch")
	set.IntVar(&f.ChunkBytes, "chunk", f.ChunkBytes, "`BYTES`: values in one frame")
	set.IntVar(&f.windowMiB, "window-mib", f.WindowBytes>>20, "`MIB`: window from each trainer to each shard")
	set.Float64Var(&f.Seconds, "seconds", f.Seconds, "`SECONDS`: time of each measurement in each turn")
	set.IntVar(&f.Rounds, "rounds", f.Rounds, "`N`: full rounds in each turn; 0 is as many as fit in --seconds")
	set.IntVar(&f.Turns, "turns", f.Turns, "`N`: turns; figures are medians over them")
	set.BoolVar(&f.json, "json", false, "print one line of JSON and nothing else")
	set.StringVar(&f.Profile, "profile", "",
		"`DIR`: write profiles of each process of the first turn to this folder")
	set.StringSliceVar(&f.Only, "only", nil, "`LIST`: measurements to take; the others are 0 in the result")
	for _, name := range []string{"profile", "only"} {
		_ = set.MarkHidden(name) // it exists
	}
	return c
}

func (f *fabric) run(ctx context.Context, out io.Writer) error {
	f.WindowBytes = f.windowMiB << 20
	found, err := exchange.Run(ctx, f.Config)
	if err != nil {
		return err
	}
	if f.json {
		return harness.PrintJSON(out, found)
	}
	return found.Print(out)
}
