// Command trainer runs a workload as one trainer of a job, or as all of them.
//
// It holds flags and wiring only; the workloads are in examples.
package main

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/gpu"
	_ "gradbus/internal/timerslack" // in every process of this program
)

func main() {
	config.PaceCollector()
	os.Exit(config.Run("trainer", os.Stderr, command().ExecuteContext, syscall.SIGHUP))
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "trainer WORKLOAD",
		Short:         "Run a workload as one trainer or as all trainers of a job",
		SilenceErrors: true,
		SilenceUsage:  true,
		Example: `  ./bin/ps                                            the server, in another terminal
  ./bin/trainer packages                              a job of one trainer
  ./bin/trainer packages --spawn --trainers 2         a job of two, both started here
  ./bin/trainer packages --trainers 2                 one of two: start it twice
  ./bin/trainer mnist --spawn --trainers 2            digits from images (after make data)
  ./bin/trainer movielens --local                     films, in this process alone (after make data)`,
	}
	workloads := []*cobra.Command{packagesCommand(), mnistCommand(), movielensCommand()}
	var names []string
	for _, w := range workloads {
		names = append(names, w.Name())
	}
	known := strings.Join(names, ", ")
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return config.NotACommand(root, args[0])
		}
		return nil
	}
	root.RunE = func(*cobra.Command, []string) error {
		return errors.New("no workload given (known: " + known + "); see trainer --help")
	}
	root.AddCommand(workloads...)
	root.AddCommand(gpu.ProbeCommand())
	config.Program(root, cuda.Built())
	return root
}
