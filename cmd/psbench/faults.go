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
	"time"

	"github.com/spf13/cobra"

	"gradbus/bench/faults"
	"gradbus/bench/harness"
)

func faultsCommand() *cobra.Command {
	c := faults.Config{}
	asJSON, member := false, ""
	command := &cobra.Command{
		Use: "faults",
		Short: "Kill trainers and ps of running jobs: pauses, batches computed again, and whether a bit of the weights " +
			"differs",
		Example: `  ./bin/psbench faults --kills 200
  ./bin/psbench faults --kills 20 --replicas 1 --only "ps killed"
  ./bin/psbench faults --kills 20 --replicas 1 --servers 3 --only "ps killed"
  ./bin/psbench faults --kills 20 --only "trainer killed" --json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if member != "" {
				return runMember(command.Context(), member, command.OutOrStdout(), command.ErrOrStderr())
			}
			c.Progress = command.ErrOrStderr()
			return runFaults(command.Context(), c, asJSON, command.OutOrStdout())
		},
	}
	set := command.Flags()
	set.SortFlags = false
	set.IntVar(&c.Kills, "kills", 20, "`number` of faults in all, at moments drawn by the seed")
	set.IntVar(&c.Trainers, "trainers", 3, "`number` of trainers of each job")
	set.IntVar(&c.Epochs, "epochs", 400, "`number` of epochs of each job, of 43 batches")
	set.Uint64Var(&c.Seed, "seed", 1, "`number` that moments and victims follow from")
	set.IntVar(&c.Replicas, "replicas", 0,
		"`number` of copies of each shard, 0 or 1: on the other of two ps, or with --servers on one of the others")
	set.IntVar(&c.Servers, "servers", 1, "`number` of ps that have shards of each job; several have a NATS server")
	set.BoolVar(&c.Hybrid, "hybrid", false,
		"trainers add dense gradients up among themselves, tables are on shards, and all go back to what is durable")
	set.StringSliceVar(&c.Only, "only", nil, "`kinds` of faults, of: "+strings.Join(faults.Kinds(), ", ")+"; none is all")
	set.DurationVar(&c.Every, "every", time.Second, "`time` between two versions that become durable")
	set.BoolVar(&asJSON, "json", false, "print one line of JSON and nothing else")
	set.StringVar(&member, "member", "", "what a trainer process of this command is told")
	_ = set.MarkHidden("member") // it exists
	return command
}

func runFaults(ctx context.Context, c faults.Config, asJSON bool, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c.Server = filepath.Join(filepath.Dir(self), "ps")
	c.Member = func(m faults.Member) *exec.Cmd {
		text, _ := json.Marshal(m) // of strings and numbers
		return exec.CommandContext(ctx, self, "faults", "--member", string(text))
	}
	found, err := faults.Run(ctx, c)
	if err != nil {
		return err
	}
	if asJSON {
		return harness.PrintJSON(out, found)
	}
	return found.Print(out)
}

func runMember(ctx context.Context, text string, out, errs io.Writer) error {
	var m faults.Member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return fmt.Errorf("member: %w", err)
	}
	return m.Run(ctx, out, errs)
}
