// Command psbench measures gradbus on this machine, as processes, next to what it is compared with.
//
// It holds flags and wiring only; what it computes from its runs are packages internal/report, cuda/bench and those
// below bench.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/bench/average"
	"gradbus/bench/exchange"
	"gradbus/bench/harness"
	"gradbus/bench/hosted"
	"gradbus/bench/hybrid"
	"gradbus/bench/update"
	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/kernelflag"
	_ "gradbus/internal/timerslack" // in every process of this program
)

func main() {
	os.Exit(config.Run("psbench", os.Stderr, command().ExecuteContext, syscall.SIGHUP))
}

// benchmarks are the commands, in the order of the help.
func benchmarks() []*cobra.Command {
	return []*cobra.Command{
		packagesCommand(),
		kernelsCommand(),
		fabricCommand(),
		faultsCommand(),
		hostedCommand(),
		hybridCommand(),
		allCommand(),
		averageCommand(),
		diffCommand(),
		updateCommand(),
	}
}

// roles returns the roles of member processes of all systems.
func roles() map[string]harness.Role {
	return merged(
		map[string]harness.Role{harness.RoleServer: harness.Server},
		average.Roles(),
		exchange.Roles(),
		hosted.Roles(),
		hybrid.Roles(),
		update.Roles(),
	)
}

// merged is all of the tables in one. Two roles of one name are a broken invariant: a process would be the wrong one.
func merged(tables ...map[string]harness.Role) map[string]harness.Role {
	all := map[string]harness.Role{}
	for _, table := range tables {
		for name, role := range table {
			if all[name] != nil {
				panic("two roles are called " + name)
			}
			all[name] = role
		}
	}
	return all
}

func command() *cobra.Command {
	all := benchmarks()
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name()
		if c.Flags().Lookup("json") != nil { // it runs something, with settings
			kernelflag.Add(c.Flags())
			config.AddFileFlag(c.Flags())
		}
	}
	known := "known: " + strings.Join(names, ", ")
	root := &cobra.Command{
		Use:           "psbench BENCHMARK",
		Short:         "Measure gradbus on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Example: `  ./bin/psbench packages               two trainers and two shards next to one PyTorch process
  ./bin/psbench packages --json        the same as one line of JSON
  ./bin/psbench kernels --threads 2    every kernel, as a share of the rate at which memory streams
  ./bin/psbench fabric                 the exchange of gradients, as a share of one TCP connection's rate`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return config.NotACommand(c, args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("no benchmark given (%s); see psbench --help", known)
		},
	}
	cobra.EnableCommandSorting = false // a variable of the library's
	root.AddCommand(all...)
	root.AddCommand(memberCommand())
	config.Program(root, cuda.Built())
	return root
}

// result is the result of a benchmark.
type result interface{ Print(to io.Writer) error }

// benchmark completes the command of a benchmark: its flags are the settings of a configuration, and run gives its result.
func benchmark(c *cobra.Command, configuration any, asJSON *bool, run func(ctx context.Context, out, errs io.Writer) (
	result, error)) *cobra.Command {
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		switch {
		case err != nil || found == nil:
			return err
		case *asJSON:
			return harness.PrintJSON(c.OutOrStdout(), found)
		}
		return found.Print(c.OutOrStdout())
	}
	harness.AddFlags(c.Flags(), configuration)
	return c
}

// system is the configuration of a measured system.
type system interface {
	Validate() error
	Idle() []config.Idle
	Layout() harness.Layout
	PrintHosts(to io.Writer, set *pflag.FlagSet, name string, l harness.Layout) error
	Elsewhere() bool
}

// measured completes the command of a system, which prints how to run the system on several hosts if that is asked for.
func measured(c *cobra.Command, s system, asJSON *bool, run func(ctx context.Context, out, errs io.Writer) (result,
	error)) *cobra.Command {
	return benchmark(c, s, asJSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		if err := cmp.Or(s.Validate(), config.RefuseIdle(c.Flags(), s.Idle())); err != nil {
			return nil, err
		}
		if s.Elsewhere() {
			return nil, s.PrintHosts(out, c.Flags(), c.Name(), s.Layout())
		}
		return run(ctx, out, errs)
	})
}

func memberCommand() *cobra.Command {
	return &cobra.Command{
		Use:    harness.ChildArgument,
		Short:  "One process of a measured system, told by its standard input what to be",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return harness.Child(c.Context(), roles(), c.InOrStdin(), c.OutOrStdout())
		},
	}
}
