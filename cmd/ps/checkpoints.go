package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gradbus/checkpoint"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/schema"
)

func checkpointsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "checkpoints",
		Short: "List, verify, export and prune the checkpoints in a folder",
		Long: `List, verify, export and prune the checkpoints in the folder DIR. The commands read the files themselves and can run while
a ps uses the folder.`,
		Example: `  ./bin/ps checkpoints list checkpoints
  ./bin/ps checkpoints verify checkpoints packages
  ./bin/ps checkpoints export checkpoints packages model.safetensors
  ./bin/ps checkpoints prune checkpoints packages --keep 3`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("checkpoints: want one of export, list, prune, verify, as ./bin/ps checkpoints list DIR")
		},
	}
	c.AddCommand(listCheckpointsCommand(), verifyCheckpointsCommand(), exportCheckpointCommand(),
		pruneCheckpointsCommand())
	return c
}

// arguments wants from least to most of them; example is what would be right.
func arguments(least, most int, example string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%d arguments: want them as in %s", len(args), example)
		}
		return nil
	}
}

// What the state of a checkpoint is called.
const (
	stateDurable    = "durable"    // complete, with all parts in their sizes
	stateWhole      = "whole"      // every byte was read and compared
	stateIncomplete = "incomplete" // on its way, or given up
	stateDamaged    = "damaged"
	stateNewer      = "newer" // of a format that this program does not know
	stateUnknown    = "unknown"
)

// Kinds of checkpoints.
const (
	kindFull      = "full"
	kindIncrement = "increment" // what has changed since its base
	kindMoment    = "moment"    // full, each shard's part being of a moment of its own
)

// shownCheckpoint is one as a command prints it.
type shownCheckpoint struct {
	Job     schema.JobName `json:"job"`
	ID      checkpoint.ID  `json:"id"`
	Version schema.Version `json:"version"`
	State   string         `json:"state"`
	Why     string         `json:"why,omitempty"` // of what is not durable
	Bytes   int64          `json:"bytes"`
	Kind    string         `json:"kind,omitempty"`   // where the manifest says it: full, increment, or moment
	Base    *checkpoint.ID `json:"base,omitempty"`   // that an increment goes on from
	Shards  int            `json:"shards,omitempty"` // where the manifest says it
	Created *time.Time     `json:"created,omitempty"`
}

// stateOf returns the state of a checkpoint for its error; well if there is none.
func stateOf(err error, well string) string {
	switch {
	case err == nil:
		return well
	case errors.Is(err, checkpoint.ErrIncomplete):
		return stateIncomplete
	case errors.Is(err, checkpoint.ErrDamaged):
		return stateDamaged
	case errors.Is(err, checkpoint.ErrNewer):
		return stateNewer
	}
	return stateUnknown
}

func showing(job schema.JobName, f checkpoint.Found, err error, well string) shownCheckpoint {
	s := shownCheckpoint{Job: job, ID: f.ID, Version: f.ID.Version, State: stateOf(err, well), Bytes: f.Bytes}
	if err != nil && s.State != stateIncomplete {
		s.Why = err.Error()
	}
	if f.Manifest != nil {
		s.Shards, s.Created, s.Kind = f.Manifest.Shards, &f.Manifest.Created, kindFull
		if !f.Manifest.Full() {
			s.Kind, s.Base = kindIncrement, &f.Manifest.Base.ID
		} else if f.Manifest.Job.Moments() {
			s.Kind = kindMoment
		}
	}
	return s
}

// jobsOf are the jobs that a command is about: the one that it names, or all. It fails where there is none.
func jobsOf(dir string, named []string) ([]schema.JobName, error) {
	jobs, err := checkpoint.Jobs(dir)
	if err != nil {
		return nil, err
	}
	switch {
	case len(named) == 0 && len(jobs) == 0:
		return nil, fmt.Errorf("%s has no checkpoints: want the folder that ps writes them to", dir)
	case len(named) == 0:
		return jobs, nil
	case !slices.Contains(jobs, schema.JobName(named[0])):
		return nil, fmt.Errorf("%s has no checkpoints of job %q: it has those of %q", dir, named[0], jobs)
	}
	return []schema.JobName{schema.JobName(named[0])}, nil
}

// eachCheckpoint shows every checkpoint of the jobs that a command is about, as show says.
func eachCheckpoint(args []string, show func(schema.JobName, checkpoint.Found) shownCheckpoint) ([]shownCheckpoint,
	error) {
	jobs, err := jobsOf(args[0], args[1:])
	if err != nil {
		return nil, err
	}
	var all []shownCheckpoint
	for _, job := range jobs {
		found, err := checkpoint.List(args[0], job)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			all = append(all, show(job, f))
		}
	}
	return all, nil
}

func listCheckpointsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list DIR [JOB]",
		Short: "List checkpoints, newest first",
		Long: `List the checkpoints of a job or of all jobs, newest first.

A checkpoint is durable if its manifest is valid and all its parts, and those of the checkpoints that it builds on, exist in
full size. verify also reads their contents. An increment holds the changes since its BASE, a version of the same run.`,
		Args: arguments(1, 2, "checkpoints list DIR packages"),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		all, err := eachCheckpoint(args, func(job schema.JobName, f checkpoint.Found) shownCheckpoint {
			return showing(job, f, f.Err, stateDurable)
		})
		if err != nil {
			return err
		}
		return printCheckpoints(c.OutOrStdout(), all, asJSON, time.Now())
	}
	return c
}

func verifyCheckpointsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify DIR [JOB]",
		Short: "Check every complete checkpoint against its checksums",
		Long: `Read every complete checkpoint of a job or of all jobs and check it against its checksums. An increment is valid only if
the checkpoints that it builds on are valid.

The exit status is 1 if a checkpoint is damaged or cannot be checked.`,
		Args: arguments(1, 2, "checkpoints verify DIR packages"),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		verifier := checkpoint.NewVerifier(c.Context(), args[0])
		all, err := eachCheckpoint(args, func(job schema.JobName, f checkpoint.Found) shownCheckpoint {
			err := f.Err
			if err == nil && c.Context().Err() == nil {
				err = verifier.Verify(f.Manifest)
			}
			return showing(job, f, err, stateWhole)
		})
		if err = cmp.Or(err, c.Context().Err()); err != nil {
			return err
		}
		if err := printCheckpoints(c.OutOrStdout(), all, asJSON, time.Now()); err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(s shownCheckpoint) bool {
			return s.State != stateWhole && s.State != stateIncomplete
		}) {
			return config.Exit{Status: 1}
		}
		return nil
	}
	return c
}

func exportCheckpointCommand() *cobra.Command {
	var id string
	c := &cobra.Command{
		Use:   "export DIR JOB FILE",
		Short: "Write the model of a checkpoint to a safetensors file",
		Long: `Write the model of a checkpoint to one safetensors file, the same file that a trainer's --save writes at that version. The
checkpoint is the newest complete one or that of --id. It is verified first.`,
		Args: arguments(3, 3, "checkpoints export DIR packages model.safetensors"),
	}
	c.Flags().StringVar(&id, "id", "",
		"`ID`: checkpoint to export, as list prints it; empty is the newest complete one")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, path := args[0], args[2]
		jobs, err := jobsOf(dir, args[1:2])
		if err != nil {
			return err
		}
		m, err := exportCheckpoint(c.ErrOrStderr(), dir, jobs[0], id, path)
		if err == nil {
			fmt.Fprintf(c.OutOrStdout(), "model of %s at version %d, checkpoint %s, is in %s\n", jobs[0], m.ID.Version, m.ID,
				path)
		}
		return err
	}
	return c
}

// exportCheckpoint exports the one of an id, or the newest that is whole, and says which were passed over.
func exportCheckpoint(notes io.Writer, dir string, job schema.JobName, named, path string) (*checkpoint.Manifest,
	error) {
	if named != "" {
		id, err := checkpoint.ParseID(named)
		if err != nil {
			return nil, fmt.Errorf("--id: %w", err)
		}
		m, err := checkpoint.Open(dir, job, id)
		if err == nil {
			err = m.Export(dir, path)
		}
		return m, err
	}
	found, err := checkpoint.List(dir, job)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		err := f.Err
		if err == nil {
			err = f.Manifest.Export(dir, path)
		}
		switch {
		case err == nil:
			return f.Manifest, nil
		case errors.Is(err, checkpoint.ErrDamaged):
			fmt.Fprintf(notes, "passed over: %s\n", schema.Printable(err.Error()))
		case !errors.Is(err, checkpoint.ErrIncomplete):
			return nil, err
		}
	}
	return nil, fmt.Errorf("job %s in %s: %w", job, dir, checkpoint.ErrNone)
}

func pruneCheckpointsCommand() *cobra.Command {
	var keep int
	c := &cobra.Command{
		Use:   "prune DIR JOB",
		Short: "Remove old checkpoints of a job",
		Long: `Remove old checkpoints of a job. These stay: the newest --keep complete ones, newer ones that may still be in progress, and
every checkpoint that one of these builds on. If all of them build on one full checkpoint, the newest that builds on another
full checkpoint stays too.`,
		Args: arguments(2, 2, "checkpoints prune DIR packages --keep 3"),
	}
	c.Flags().IntVar(&keep, "keep", 0, "`N`: complete checkpoints to keep, at least 2")
	c.RunE = func(c *cobra.Command, args []string) error {
		if keep < checkpoint.KeepMin {
			return fmt.Errorf("--keep %d: want how many stay, at least %d", keep, checkpoint.KeepMin)
		}
		jobs, err := jobsOf(args[0], args[1:])
		if err != nil {
			return err
		}
		removed, err := checkpoint.Prune(args[0], jobs[0], keep)
		for _, id := range removed {
			fmt.Fprintf(c.OutOrStdout(), "removed %s\n", id)
		}
		return err
	}
	return c
}

// printCheckpoints writes a table, or one line of JSON.
func printCheckpoints(to io.Writer, all []shownCheckpoint, asJSON bool, now time.Time) error {
	if asJSON {
		return json.NewEncoder(to).Encode(all)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "JOB\tID\tVERSION\tSTATE\tKIND\tBASE\tBYTES\tAGE")
	for _, s := range all {
		age, base := "-", "-"
		if s.Created != nil {
			age = ageOf(now.Sub(*s.Created))
		}
		if s.Base != nil {
			base = fmt.Sprint(s.Base.Version)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", s.Job, s.ID, s.Version, s.State, cmp.Or(s.Kind, "-"), base,
			report.Bytes(uint64(s.Bytes)), age)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range all { // below, since they are long
		if s.Why != "" {
			if _, err := fmt.Fprintf(to, "%s: %s\n", s.State, schema.Printable(s.Why)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ageOf is a time as people say it, in one unit: 40s, 3m, 5h, 12d.
func ageOf(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, d)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}
