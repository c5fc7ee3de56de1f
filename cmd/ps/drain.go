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

// draining is the configuration of ps drain.
type draining struct{ asking }

func drainCommand() *cobra.Command {
	var d draining
	c := &cobra.Command{
		Use:   "drain [ID]",
		Short: "Stop a running ps without losing a batch",
		Long: `Stop a running ps without losing a batch, and wait until it has answered. A ps with --replicas 1 hands its jobs to the ps
that holds the replicas; a ps with --checkpoint-dir writes a last checkpoint of each job. Ctrl-C and SIGTERM do the same.
A ps ends only on Ctrl-C or SIGTERM if the other one was updated to another protocol, and a job has no checkpoint.

Without ID, the ps at --server stops. If several ps share a NATS server, give the ID that ./bin/ps status shows.`,
		Example: `  ./bin/ps drain
  ./bin/ps drain --server nats://10.0.0.1:4222 --token-file secret
  ./bin/ps drain box-4223 --server nats://10.0.0.9:4222`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%d arguments: want one id of a ps, or none for the one at --server", len(args))
			}
			return nil
		},
	}
	set := c.Flags()
	d.addServer(set)
	set.DurationVar(&d.within, "timeout", 10*time.Second,
		"`DURATION`: longest wait for the answer of the ps")
	d.addOthers(set)
	c.RunE = func(c *cobra.Command, args []string) error {
		id := ""
		if len(args) == 1 {
			id = args[0]
		}
		return d.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), id)
	}
	return c
}

func (d *draining) run(ctx context.Context, out, logTo io.Writer, id string) error {
	o, err := d.operator(logTo)
	if err != nil {
		return err
	}
	last, err := o.Drain(ctx, id)
	if err != nil {
		return err
	}
	for i := range last.Jobs {
		fmt.Fprintln(out, drained(&last.Jobs[i]))
	}
	fmt.Fprintf(out, "ps %s has ended\n", last.Server)
	return nil
}

// drained says what has become of a job, as far as its ps has told.
func drained(j *schema.JobProgress) string {
	at := fmt.Sprintf("job %s, at batch %d: ", j.Job, j.Version)
	switch {
	case j.To != "":
		return at + "handed over to the ps at " + fabric.WithoutUser(j.To)
	case j.Kept > j.Durable:
		return at + fmt.Sprintf("version %d is kept by other ps, with which it goes on", j.Kept)
	case j.Durable > 0 && j.Kept > 0:
		return at + fmt.Sprintf("version %d is durable, with which it goes on", j.Durable)
	case j.Durable > 0:
		return at + fmt.Sprintf("version %d is durable, with which it goes on when the ps is there again", j.Durable)
	}
	return at + "nothing of it is durable, and no ps has a replica: it is lost"
}
