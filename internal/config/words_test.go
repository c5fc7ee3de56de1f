package config

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gradbus/internal/process"
)

// trainerLike is a program whose workloads have the flags that people look for under other names.
func trainerLike() (root *cobra.Command) {
	run := func(*cobra.Command, []string) error { return nil }
	root = &cobra.Command{Use: "trainer WORKLOAD", RunE: run, SilenceErrors: true, SilenceUsage: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return NotACommand(c, args[0])
			}
			return nil
		}}
	for _, name := range []string{"packages", "mnist"} {
		c := &cobra.Command{Use: name, RunE: run, Args: root.Args}
		set := c.Flags()
		for _, flag := range []string{"server", "token-file", "job", "id", "input", "route", "backend", "library", "wire",
			"save", "load", "placement", "peer"} {
			set.String(flag, "", "")
		}
		for _, flag := range []string{"trainers", "lanes", "epochs", "batch", "batches", "staleness", "replicas"} {
			set.Int(flag, 1, "")
		}
		set.Float64("lr", 20, "learning `rate`")
		AddFileFlag(set)
		Addresses(set, "server")
		root.AddCommand(c)
	}
	Program(root, "libgradbus")
	return root
}

// What people write who know other programs is answered by what is meant.
func TestWords(t *testing.T) {
	trainer := process.Invoked("trainer")
	for _, c := range []struct{ line, want string }{
		{"packages --learning-rate 1", "unknown flag --learning-rate (did you mean --lr?)"},
		{"packages --learning_rate 1", "unknown flag --learning_rate (did you mean --lr?)"},
		{"packages --batch-size 1", "(did you mean --batch?)"},
		{"packages --num-workers 2", "(did you mean --trainers?)"},
		{"packages --world-size 2", "(did you mean --trainers?)"},
		{"packages --epoch 2", "(did you mean --epochs?)"},
		{"packages --device cuda", "(did you mean --backend?)"},
		{"packages --host x", "(did you mean --server?)"},
		{"packages --port 4222", "(did you mean --server?)"},
		{"packages --data cluster", "(did you mean --input or --route?)"},
		{"packages --ahead 1", "--ahead is called --staleness now"},
		{"packages --standby-peers", "--standby-peers is --replicas 1 now"},
		{"packages --standby nats://b", "--standby is --replicas 1 and --peer URL now"},
		{"packages --sparse bags", "--sparse is gone: gradients of rows travel as rows or as bags, whichever is smaller"},
		{"--ahead 1", "name the workload first, as in " + trainer + " mnist --staleness "},
		{"packages --traners 2", "(did you mean --trainers?)"},
		{"packages --xy 2", "unknown flag --xy (" + trainer + " packages --help lists them)"},
		{"--trainers 2", "unknown flag --trainers: name the workload first, as in " + trainer +
			" mnist --trainers (known: mnist, packages)"},
		{"--learning-rate 2", "name the workload first, as in " + trainer + " mnist --lr "},
		{"packges", `unknown workload "packges" (did you mean packages?)`},
		{"cifar", `unknown workload "cifar" (known: completion, config, mnist, packages, version); settings are flags (see ` +
			trainer + " --help)"},
		{"packages more", `unexpected argument "more": settings are flags (see ` + trainer + " packages --help)"},
	} {
		root := trainerLike()
		root.SetArgs(strings.Fields(c.line))
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.line, err, c.want)
		}
	}
}

func TestNear(t *testing.T) {
	for word, want := range map[string]string{"staus": "status", "stat": "status", "tpo": "top", "xx": "",
		"doctr": "doctor", "": ""} {
		if got := near(word, []string{"status", "top", "doctor"}); got != want {
			t.Errorf("near %q is %q, want %q", word, got, want)
		}
	}
}
