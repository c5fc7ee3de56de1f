package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gradbus/bench/harness"
	"gradbus/bench/suite"
)

// allCommand runs the reference systems and the other benchmarks.
func allCommand() *cobra.Command {
	json, inProcess := false, false
	c := &cobra.Command{
		Use:   "all",
		Short: "Run every benchmark in a small setting and print one table",
		Example: `  ./bin/psbench all
  ./bin/psbench all --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s := suite.Suite{Systems: suite.Systems(), Progress: c.ErrOrStderr()}
			if inProcess {
				s.More = []string{"--in-process"}
			}
			return runAll(c.Context(), s, json, c.OutOrStdout())
		},
	}
	set := c.Flags()
	set.BoolVar(&inProcess, "in-process", false,
		"run servers and trainers as goroutines of one process, for debugging")
	set.BoolVar(&json, "json", false, "print one line of JSON and nothing else")
	return c
}

func runAll(ctx context.Context, s suite.Suite, json bool, out io.Writer) (err error) {
	if s.Path, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	all, err := s.Run(ctx)
	if err != nil {
		return err
	}
	if json {
		err = harness.PrintJSON(out, struct {
			Systems []suite.Outcome `json:"systems"`
		}{all})
	} else {
		err = suite.Print(out, all)
	}
	if err != nil {
		return err
	}
	return suite.Failed(all)
}
