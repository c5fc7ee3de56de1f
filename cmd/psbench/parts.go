package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/bench/exchange"
	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/cuda/bench"
)

func fabricCommand() *cobra.Command {
	f := exchange.DefaultConfig()
	return benchmark(&cobra.Command{
		Use:   "fabric",
		Short: "Measure the exchange of gradients between processes as a share of one TCP connection",
		Example: `  ./bin/psbench fabric
  ./bin/psbench fabric --trainers 2 --bytes 1048576 --json
  ./bin/psbench fabric --turns 1 --rounds 10000      is memory flat?`,
	}, &f, &f.JSON, func(ctx context.Context, _, errs io.Writer) (result, error) {
		f.Progress = errs
		return exchange.Run(ctx, f)
	})
}

// kernels has the settings of `psbench kernels`.
type kernels struct {
	Backend string   `flag:"backend" default:"auto" help:"NAME: what computes: "`
	Threads int      `flag:"threads" default:"1" range:"1 1024" help:"N: threads of one call on the CPU"`
	ISA     string   `flag:"isa" help:"NAME: instruction set of the CPU: baseline, avx2 or avx512; empty is the best"`
	Ops     []string `flag:"ops" help:"LIST: operations to measure, of "`
	Quick   bool     `flag:"quick" help:"small sizes and short runs, to see that it works; the figures mean little"`
	JSON    bool     `flag:"json" help:"print one line of JSON and nothing else"`
}

// measurements are the results of all kernels.
type measurements []bench.Result

func (m measurements) Print(to io.Writer) error { return bench.Print(to, m) }

func kernelsCommand() *cobra.Command {
	var k kernels
	harness.SetDefaults(&k)
	c := benchmark(&cobra.Command{
		Use:   "kernels",
		Short: "Measure every kernel as a share of this machine's memory bandwidth",
		Example: `  ./bin/psbench kernels --threads 2
  ./bin/psbench kernels --ops bag_forward,coalesce --isa avx2 --json
  ./bin/psbench kernels --backend cuda`,
	}, &k, &k.JSON, k.run)
	c.Flags().Lookup("backend").Usage += strings.Join(cuda.Names(), ", ")
	c.Flags().Lookup("ops").Usage += strings.Join(bench.Ops(), ", ")
	return c
}

func (k *kernels) run(ctx context.Context, _, errs io.Writer) (found result, err error) {
	if err := harness.CheckSettings(k); err != nil {
		return nil, err
	}
	backend, err := cuda.Open(cuda.Options{Name: k.Backend, Threads: k.Threads, ISA: k.ISA})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	fmt.Fprintln(errs, cuda.Describe(backend))
	all, err := bench.Run(ctx, bench.Config{Backend: backend, Quick: k.Quick, Ops: k.Ops, Progress: errs})
	return measurements(all), err
}
