package main

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gradbus/internal/config"
	"gradbus/internal/process"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/terminal"
)

// looking is the configuration of the commands that look at a running ps.
type looking struct {
	ps, tokenFile, ca string
	token             string // of tokenFile, once there is a client
	timeout           time.Duration
}

func (l *looking) add(c *cobra.Command) {
	set := c.Flags()
	set.SortFlags = false
	set.StringVar(&l.ps, "ps", terminal.URLDefault, "`URL`: page of the ps")
	set.StringVar(&l.tokenFile, "http-token-file", "", "`PATH`: file with the page's token (first line)")
	set.StringVar(&l.ca, "http-ca", "",
		"`PATH`: CA bundle (PEM) for an https:// page; default is the system's")
	set.DurationVar(&l.timeout, "timeout", 5*time.Second, "`DURATION`: longest wait for the answer of the ps")
}

func (l *looking) client() (*terminal.Client, error) {
	// net/http logs there that a server spoke first, as NATS does; the errors of the client say so
	stdlog.SetOutput(io.Discard)
	log, err := (&config.Log{Format: config.LogText, Level: "warn"}).Logger(os.Stderr)
	if err != nil {
		return nil, err
	}
	if l.token, err = config.Secret(l.tokenFile, log); err != nil {
		return nil, err
	}
	roots, err := config.RootCAs(l.ca)
	if err != nil {
		return nil, err
	}
	return terminal.NewClient(terminal.Config{URL: l.ps, Token: l.token, TLS: roots, Timeout: l.timeout})
}

// Exit statuses of ps status, beside 0: those of the plugins of monitoring systems.
const (
	exitWarning     = 1
	exitCritical    = 2
	exitUnreachable = 3
)

// wrongly gives a question that was wrong the status that no answer has: 1 would be a warning.
func wrongly(err error) error {
	if err == nil {
		return nil
	}
	return config.Exit{Status: exitUnreachable, Err: err}
}

// flagsWrongly has a command end with that status where its flags are wrong.
func flagsWrongly(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return wrongly(config.FlagError(c, err))
	})
}

// exitOf is the exit status of a level, or that of no answer.
func exitOf(level status.Level, err error) error {
	switch {
	case err != nil:
		return wrongly(err)
	case level == status.Critical:
		return config.Exit{Status: exitCritical}
	case level == status.Warning:
		return config.Exit{Status: exitWarning}
	}
	return nil
}

func statusCommand() *cobra.Command {
	var l looking
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running ps and its jobs",
		Long: `Show the state of a running ps and its jobs: the worst problem in one sentence, then tables of at most 32 rows.

The exit status is 0 if all is well, 1 after a warning, 2 if something does not work or results may be wrong, and 3 if no ps
answers or the command line is wrong.`,
		Example: `  ./bin/ps status
  ./bin/ps status --ps https://host:8080 --http-token-file secret --http-ca ca.pem
  ./bin/ps status --json | jq .why.text`,
		Args: func(c *cobra.Command, args []string) error { return wrongly(noArguments(c, args)) },
	}
	l.add(c)
	c.Flags().BoolVar(&asJSON, "json", false,
		"print one line of JSON, as GET /api/v1/status does")
	flagsWrongly(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return exitOf(l.status(c.Context(), c, asJSON))
	}
	return c
}

// status prints one, and gives its level.
func (l *looking) status(ctx context.Context, c *cobra.Command, asJSON bool) (status.Level, error) {
	client, err := l.client()
	if err != nil {
		return "", err
	}
	defer client.Close()
	status, raw, err := client.Status(ctx)
	if err != nil {
		return "", err
	}
	out := c.OutOrStdout()
	if asJSON {
		_, err = out.Write(append(raw, '\n'))
		return status.Why.Level, err
	}
	events, err := client.Events(ctx, 0)
	if err != nil {
		return "", err
	}
	_, err = io.WriteString(out, terminal.Text(status, events[max(0, len(events)-eventsShown):], time.Local,
		process.Invoked("ps")))
	return status.Why.Level, err
}

// eventsShown bounds the number of events that are shown.
const eventsShown = 10

// withdrawn refuses a command of earlier versions.
func withdrawn(name, instead string) *cobra.Command {
	return &cobra.Command{Use: name, Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error {
		return fmt.Errorf("%s: there is no such command any more: use %s", name, instead)
	}}
}

// noArguments refuses what is no flag.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return config.NotACommand(c, args[0])
	}
	return nil
}
