package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"gradbus/fabric"
	"gradbus/schema"
)

// takingOver is the flags of takeover.
type takingOver struct{ asking }

func takeoverCommand() *cobra.Command {
	var t takingOver
	c := &cobra.Command{
		Use:   "takeover JOB",
		Short: "Continue a job at the ps that has its replica",
		Long: `Continue a job at the ps that has its replica (--replicas 1 with --peer or --nats).

A job whose ps is out of reach continues by itself when more than half of its trainers have joined the other ps, or when
the ps is known to have ended. Otherwise it waits, and the log of the other ps and its trainers name who is missing. If you
know that the lost ps has ended, this command lets the job continue. With --nats, one of its trainers is enough, and the
command lets any trainer continue it that joins within a minute.

If the lost ps still runs, the job then runs twice: stop that ps first.`,
		Example: `  ./bin/ps takeover films --server nats://10.0.0.2:4222 --token-file secret`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d arguments: want the name of one job", len(args))
			}
			return schema.CheckName("job", args[0])
		},
	}
	set := c.Flags()
	t.addServer(set)
	set.DurationVar(&t.within, "timeout", 10*time.Second, "`DURATION`: longest wait for the answer of the ps")
	t.addOthers(set)
	c.RunE = func(c *cobra.Command, args []string) error {
		return t.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), schema.JobName(args[0]))
	}
	return c
}

func (t *takingOver) run(ctx context.Context, out, logTo io.Writer, job schema.JobName) error {
	o, err := t.operator(logTo)
	if err != nil {
		return err
	}
	if err = o.Takeover(ctx, job); err == nil {
		fmt.Fprintf(out, "job %s continues at %s when its trainers join\n", job, fabric.WithoutUser(o.Server.URL))
	}
	return exit(err)
}
