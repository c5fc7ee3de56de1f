// Command psbench measures gradbus on this machine, as processes, next to what it is compared with.
//
// It holds flags and wiring only; what it computes from its runs are packages trainer/report, cuda/bench and bench/exchange.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gradbus"
	"gradbus/config"
)

func main() {
	os.Exit(config.Run("psbench", os.Stderr, command().ExecuteContext))
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "psbench BENCHMARK",
		Short:         "Measure gradbus on this machine",
		Version:       gradbus.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Example: `  ./bin/psbench packages               two trainers and two shards next to one PyTorch process
  ./bin/psbench packages --json        the same as one line of JSON
  ./bin/psbench kernels --threads 2    every kernel, as a share of the rate at which memory streams
  ./bin/psbench fabric                 the exchange of gradients, as a share of one TCP connection's rate`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown benchmark %q (known: packages, kernels, fabric)", args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("no benchmark given (known: packages, kernels, fabric); see psbench --help")
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(packagesCommand(), kernelsCommand(), fabricCommand(), fabricChildCommand())
	return root
}
