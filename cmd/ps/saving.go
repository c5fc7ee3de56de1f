package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"gradbus/ps"
)

// saveFlags say whether and how often versions of jobs are written down.
type saveFlags struct {
	every string
}

func (f *saveFlags) add(set *pflag.FlagSet, s *ps.Config) {
	set.StringVar(&s.CheckpointDir, "checkpoint-dir", "",
		"`folder` that versions of jobs are written to, which all ps of a job share; empty: nothing is durable")
	set.StringVar(&f.every, "checkpoint-every", "10s",
		"`interval` between two versions that are written: a time, as 10s, or a number of batches, as 500")
	set.IntVar(&s.CheckpointKeep, "checkpoint-keep", s.CheckpointKeep,
		"`number` of checkpoints of a job that stay, two at least; older ones are removed")
}

// fill completes the configuration.
func (f *saveFlags) fill(s *ps.Config) error {
	batches, err := strconv.Atoi(f.every)
	if err == nil && batches > 0 {
		s.CheckpointBatches, s.CheckpointEvery = batches, 0
		return nil
	}
	every, err := time.ParseDuration(f.every)
	if err != nil || every <= 0 {
		return fmt.Errorf("checkpoint-every %q: want a time, as 10s, or a number of batches, as 500", f.every)
	}
	s.CheckpointBatches, s.CheckpointEvery = 0, every
	return nil
}

// line says what is durable, beside the address.
func (f *saveFlags) line(s *ps.Config) string {
	if s.CheckpointDir == "" {
		return "Nothing is durable; --checkpoint-dir DIR keeps versions of jobs.\n"
	}
	every := f.every
	if s.CheckpointBatches > 0 {
		every += " batches"
	}
	return fmt.Sprintf("Versions of jobs are written to %s every %s.\n", s.CheckpointDir, every)
}
