package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/bench/exchange"
	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/cuda/bench"
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

// kernels is what `psbench kernels` was told.
type kernels struct {
	backend, isa string
	threads      int
	ops          []string
	quick, json  bool
	progress     io.Writer
}

func kernelsCommand() *cobra.Command {
	k := kernels{}
	c := &cobra.Command{
		Use:   "kernels",
		Short: "Measure every kernel as a share of this machine's memory bandwidth",
		Example: `  ./bin/psbench kernels --threads 2
  ./bin/psbench kernels --ops bag_forward,coalesce --isa avx2 --json
  ./bin/psbench kernels --backend cuda`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			k.progress = c.ErrOrStderr()
			return k.run(c.Context(), c.OutOrStdout())
		},
	}
	set := c.Flags()
	set.SortFlags = false
	set.StringVar(&k.backend, "backend", "auto", "`NAME`: what computes: "+strings.Join(cuda.Names(), ", "))
	set.IntVar(&k.threads, "threads", 1, "`N`: threads of one call on the CPU")
	set.StringVar(&k.isa, "isa", "",
		"`NAME`: instruction set of the CPU: baseline, avx2 or avx512; empty is the best")
	set.StringSliceVar(&k.ops, "ops", nil, "`LIST`: operations to measure, of "+strings.Join(bench.Ops(), ", "))
	set.BoolVar(&k.quick, "quick", false,
		"small sizes and short runs, to see that it works; the figures mean little")
	set.BoolVar(&k.json, "json", false, "print one line of JSON and nothing else")
	return c
}

func (k *kernels) run(ctx context.Context, out io.Writer) (err error) {
	if k.threads < 1 {
		return fmt.Errorf("threads %d: want at least 1", k.threads)
	}
	backend, err := cuda.Open(cuda.Options{Name: k.backend, Threads: k.threads, ISA: k.isa})
	if err != nil {
		return err
	}
	defer func() {
		if e := backend.Close(); err == nil {
			err = e
		}
	}()
	fmt.Fprintln(k.progress, cuda.Describe(backend))
	results, err := bench.Run(ctx, bench.Config{Backend: backend, Quick: k.quick, Ops: k.ops, Progress: k.progress})
	if err != nil {
		return err
	}
	if k.json {
		return bench.PrintJSON(out, results)
	}
	return bench.Print(out, results)
}
