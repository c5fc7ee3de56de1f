package config

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/process"
)

func someFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("ps", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Int("shards", 2, "`number` of shards")
	flags.Duration("deadline", time.Second, "`time` of silence")
	flags.Float64("lr", 1, "`rate`")
	flags.Bool("insecure", false, "anybody")
	flags.Uint64("seed", 1, "`number`")
	flags.String("nats", "", "`URL`: of a server")
	flags.String("secret", "", "hidden")
	_ = flags.MarkHidden("secret")
	return flags
}

func TestFlagError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, want string }{
		{"--shards=abc", `--shards "abc": want a whole number`},
		{"--shards=2.5", `--shards "2.5": want a whole number`},
		{"--seed=-1", `--seed "-1": want a whole number from 0 on`},
		{"--deadline=5", `--deadline "5": want a time with its unit, for example 30s or 5m`},
		{"--lr=x", `--lr "x": want a number`},
		{"--insecure=maybe", `--insecure "maybe": want true or false`},
		{"--nats", "--nats: want a value after it (see PS top --help)"},
		{"--shard", "unknown flag --shard (did you mean --shards?)"},
		{"--secre", "unknown flag --secre (PS top --help lists them)"},
		{"--frobnicate", "unknown flag --frobnicate (PS top --help lists them)"},
		{"-x", "unknown flag -x (PS top --help lists them)"},
		{"--=x", "bad flag syntax: --=x"},
	} {
		c.want = strings.ReplaceAll(c.want, "PS", process.Invoked("ps"))
		root, top := &cobra.Command{Use: "ps"}, &cobra.Command{Use: "top"}
		root.AddCommand(top)
		flags := top.Flags()
		flags.AddFlagSet(someFlags())
		if err := FlagError(top, flags.Parse([]string{c.flag})); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.flag, err, c.want)
		}
	}
}

func TestSectioned(t *testing.T) {
	t.Parallel()
	run := func(*cobra.Command, []string) error { return nil }
	c := &cobra.Command{Use: "ps", RunE: run, SilenceErrors: true, SilenceUsage: true}
	c.Flags().AddFlagSet(someFlags())
	c.Flags().SortFlags = false
	below := &cobra.Command{Use: "top", RunE: run}
	below.Flags().String("job", "", "`name`")
	c.AddCommand(below)
	plain(c)
	Sectioned(c, []Section{{"Learning", "lr"}, {"Others", "nats"}})
	help := func(args ...string) string {
		var out strings.Builder
		c.SetOut(&out)
		c.SetArgs(append(args, "--help"))
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := help(); !strings.Contains(got, "\nLearning:\n      --lr rate ") || strings.Contains(got, "secret") {
		t.Errorf("help:\n%s", got)
	}
	if got := help("top"); !strings.Contains(got,
		"\nFlags:\n  -h, --help       help for top\n      --job name   name\n") || strings.Contains(got, "Learning") {
		t.Errorf("help of top:\n%s", got)
	}
	c.SetArgs([]string{"top", "--jo", "x"})
	if err := c.Execute(); err == nil || err.Error() != "unknown flag --jo (did you mean --job?)" {
		t.Errorf("error %v", err)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	const want = `Flags:
      --shards number   number of shards (default 2)
      --deadline time   time of silence (default 1s)

Learning:
      --lr rate       rate (default 1)
      --insecure      anybody
      --seed number   number (default 1)

Others:
      --nats URL   of a server`
	if got := help(someFlags(), []Section{{"Learning", "lr"}, {"Others", "nats"}}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a section of a flag that is not there")
		}
	}()
	help(someFlags(), []Section{{"Typo", "nat"}})
}
