package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/cuda"
	"gradbus/cuda/bench"
)

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
