package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"gradbus/fabric"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/ps/ops/tap"
)

// tapping is the configuration of ps tap.
type tapping struct {
	tap.Config
	way           connect.Flags
	batch, bucket string
	log           config.Log
}

func tapCommand() *cobra.Command {
	var t tapping
	c := &cobra.Command{
		Use:   "tap [JOB]",
		Short: "Print the frames of a job as they are sent",
		Long: `Print the frames of a job or of all jobs, one line per frame: time, sender, receiver, kind, batch, bucket, size, and whether
the checksum is right. The job is not slowed down: frames that arrive faster than they can be printed are dropped and
counted. Trainers that reduce among themselves (--reduce trainers) use their own servers; --server can name one of them.`,
		Example: `  ./bin/ps tap
  ./bin/ps tap packages --kind dense --batch 12
  ./bin/ps tap packages --from t0 --count 100 --json`,
		Args: cobra.MaximumNArgs(1),
	}
	set := c.Flags()
	set.SortFlags = false
	t.way.AddServer(set, "nats://127.0.0.1:4222")
	set.StringVar(&t.From, "from", "", "`MEMBER`: sender: t0, s1, coordinator, ...; empty is all")
	set.StringVar(&t.To, "to", "", "`MEMBER`: receiver: t0, s1, all, ...; empty is any")
	set.StringVar(&t.Kind, "kind", "",
		"`KIND`: dense, sparse, mean, lookup, pool, rows, pull, ack, ctl, beat, module or reduce; empty is all")
	set.StringVar(&t.batch, "batch", "", "`N`: batch number; empty is any")
	set.StringVar(&t.bucket, "bucket", "", "`N`: bucket number; empty is any")
	set.IntVar(&t.Count, "count", 0, "`N`: frames to show; 0 runs until interrupted")
	set.BoolVar(&t.JSON, "json", false, "print one JSON object per line")
	t.log.Add(set)
	config.AddFileFlag(set)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			t.Job = args[0]
		}
		return t.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
	}
	return c
}

func (t *tapping) run(ctx context.Context, out, logTo io.Writer) error {
	log, err := t.log.Logger(logTo)
	if err != nil {
		return err
	}
	if t.batch != "" {
		n, err := strconv.ParseUint(t.batch, 10, 64)
		if err != nil {
			return fmt.Errorf("--batch %q: want a whole number from 0 on", t.batch)
		}
		t.Batch = &n
	}
	if t.bucket != "" {
		n, err := strconv.ParseUint(t.bucket, 10, 32)
		if err != nil {
			return fmt.Errorf("--bucket %q: want a whole number from 0 on", t.bucket)
		}
		bucket := uint32(n)
		t.Bucket = &bucket
	}
	c, err := t.way.Config(log)
	if err != nil {
		return err
	}
	// what is missed is said in a line
	t.Out, t.Server = out, fabric.Config{URL: c.Server, Name: "tap", Token: c.Token,
		Key: c.Key, CredsFile: c.CredsFile, TLS: c.TLS}
	result, err := tap.Run(ctx, t.Config)
	if err != nil {
		return err
	}
	if result.Missed > 0 {
		fmt.Fprintf(logTo, "%d frames shown, %d missed\n", result.Shown, result.Missed)
	}
	return nil
}
