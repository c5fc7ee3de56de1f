package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gradbus/bench/faults"
	"gradbus/bench/harness"
)

func faultsCommand() *cobra.Command {
	f := struct {
		faults.Config
		Trainer string `flag:"member" hidden:"yes" help:"what a trainer process of this command is told"`
	}{}
	harness.SetDefaults(&f)
	c := benchmark(&cobra.Command{
		Use:   "faults",
		Short: "Kill trainers and ps of running jobs and check that the weights keep their bits",
		Example: `  ./bin/psbench faults --kills 200
  ./bin/psbench faults --kills 20 --replicas 1 --only "ps killed"
  ./bin/psbench faults --kills 20 --replicas 1 --servers 3 --only "ps killed"
  ./bin/psbench faults --kills 20 --replicas 1 --cut
  ./bin/psbench faults --kills 20 --only "trainer killed" --json`,
	}, &f, &f.JSON, func(ctx context.Context, out, errs io.Writer) (result, error) {
		if f.Trainer != "" {
			return nil, runMember(ctx, f.Trainer, out, errs)
		}
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		f.Server, f.Progress = filepath.Join(filepath.Dir(self), "ps"), errs
		f.Member = func(m faults.Member) *exec.Cmd {
			text, _ := json.Marshal(m) // of strings and numbers
			return exec.CommandContext(ctx, self, "faults", "--member", string(text))
		}
		return faults.Run(ctx, f.Config)
	})
	c.Flags().Lookup("only").Usage += strings.Join(faults.Kinds(), ", ")
	return c
}

func runMember(ctx context.Context, text string, out, errs io.Writer) error {
	var m faults.Member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return fmt.Errorf("member: %w", err)
	}
	return m.Run(ctx, out, errs)
}
