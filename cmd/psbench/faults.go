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
		Use:   "faults",
		Short: "Kill trainers and ps of running jobs and check that the weights keep their bits",
		Example: `  ./bin/psbench faults --kills 200
  ./bin/psbench faults --kills 20 --replicas 1 --only "ps killed"
  ./bin/psbench faults --kills 20 --replicas 1 --servers 3 --only "ps killed"
  ./bin/psbench faults --kills 20 --replicas 1 --cut
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
	set.IntVar(&c.Kills, "kills", 20, "`N`: faults in all, at times drawn from the seed")
	set.IntVar(&c.Trainers, "trainers", 3, "`N`: trainers of each job")
	set.IntVar(&c.Epochs, "epochs", 400, "`N`: epochs of each job, of 43 batches each")
	set.Uint64Var(&c.Seed, "seed", 1, "`SEED`: determines times and victims")
	set.IntVar(&c.Replicas, "replicas", 0,
		"`N`: copies of each shard, 0 or 1: on the other of two ps, or with --servers on one of the others")
	set.IntVar(&c.Servers, "servers", 1, "`N`: ps that hold shards of each job; several use a NATS server")
	set.BoolVar(&c.Hybrid, "hybrid", false,
		"trainers reduce dense gradients, shards hold tables; every loss restarts from a checkpoint")
	set.StringSliceVar(&c.Only, "only", nil,
		"`LIST`: kinds of faults, default all: "+strings.Join(faults.Kinds(), ", "))
	set.BoolVar(&c.Cut, "cut", false,
		"also cut links: of trainers to the ps of their job, and with --replicas between the two ps")
	set.DurationVar(&c.Every, "every", time.Second, "`DURATION`: between two checkpoints")
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
