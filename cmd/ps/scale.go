package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"gradbus/schema"
)

// scaling is the configuration of ps scale-lr.
type scaling struct {
	asking
	from  uint64
	force bool
}

func scaleCommand() *cobra.Command {
	var s scaling
	c := &cobra.Command{
		Use:   "scale-lr JOB SCALE",
		Short: "Change the learning rates of a running job",
		Long: `Multiply the learning rates of a running job by SCALE. The factor applies to the rates in the job's manifest, so 1 restores
them. It takes effect at a batch that the job's coordinator chooses, and it is recorded with the job.`,
		Example: `  ./bin/ps scale-lr packages 0.1
  ./bin/ps scale-lr packages 0.1 --from-batch 5000`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%d arguments: want a job and a number, as scale-lr packages 0.1", len(args))
			}
			return nil
		},
	}
	set := c.Flags()
	s.addServer(set)
	set.Uint64Var(&s.from, "from-batch", 0,
		"`BATCH`: first batch with the new rates; 0 is the next that no trainer has begun")
	set.DurationVar(&s.within, "timeout", 30*time.Second, "`DURATION`: longest wait for the trainers' agreement")
	set.BoolVar(&s.force, "force", false, "accept a SCALE outside 1e-6 to 1e6")
	s.addOthers(set)
	c.RunE = func(c *cobra.Command, args []string) error {
		scale, err := strconv.ParseFloat(args[1], 32)
		if err != nil || !(scale >= 0 && scale <= math.MaxFloat32) {
			return fmt.Errorf("SCALE %q: want a finite number, at least 0: 0.1 is a tenth of the manifest's learning rates",
				args[1])
		}
		return s.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), schema.JobName(args[0]), float32(scale))
	}
	return c
}

func (s *scaling) run(ctx context.Context, out, logTo io.Writer, job schema.JobName, scale float32) (err error) {
	o, err := s.operator(logTo)
	if err == nil {
		err = schema.CheckName("job", string(job))
	}
	if err != nil {
		return err
	}
	from, err := o.ScaleLR(ctx, job, schema.Batch(s.from), scale, s.force)
	if err == nil {
		fmt.Fprintf(out, "learning rates of %s are %v times the manifest's from batch %d on\n", job, scale, from)
	}
	return exit(err)
}
