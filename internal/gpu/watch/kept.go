package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/gpu"
	"gradbus/internal/process"
	"gradbus/schema"
)

// KeptNowhere is the value of --gpu-state by which nothing is remembered.
const KeptNowhere = "off"

// AddKept adds the flag that names the file in which is remembered what is wrong with GPUs.
func AddKept(set *pflag.FlagSet, to *string) {
	set.StringVar(to, "gpu-state", "", "`file` in which is remembered what is wrong with GPUs; empty is "+
		"gradbus/gpus.json in $XDG_STATE_HOME or ~/.local/state, off remembers nothing")
}

// Kept is the file that a value of that flag names; nil where it is to be none.
func Kept(flag string) (*gpu.File, error) {
	switch flag {
	case KeptNowhere:
		return nil, nil
	case "":
		path, err := gpu.DefaultPath()
		if err != nil {
			return nil, err
		}
		return gpu.FileAt(path), nil
	}
	return gpu.FileAt(flag), nil
}

// Command acknowledges a GPU, whose index follows, in the file that a value of the flag names.
func Command(flag string) string {
	if flag == "" {
		return process.Invoked("ps") + " gpu-ack"
	}
	if path, err := filepath.Abs(flag); err == nil { // for whoever reads it elsewhere
		flag = path
	}
	if strings.ContainsAny(flag, " '\"$\\") {
		flag = strconv.Quote(flag)
	}
	return process.Invoked("ps") + " gpu-ack --gpu-state " + flag
}

// opened is the file that a command works on.
func opened(flag string) (*gpu.File, error) {
	file, err := Kept(flag)
	if err == nil && file == nil {
		err = errors.New("gpu-state off: want a file")
	}
	return file, err
}

// List is the subcommand that shows what is remembered.
func List() *cobra.Command {
	var path string
	var asJSON bool
	c := &cobra.Command{
		Use:   "gpu-list",
		Short: "Show what is remembered of this machine's GPUs: what is wrong with them, since when, and what to do",
		Long: `Show what is remembered of this machine's GPUs: what is wrong with them, since when, and what to do.

It reads the file that every ps and trainer of this user on this machine shares (--gpu-state), and asks neither a driver nor a ps. A GPU
of which nothing is wrong is not in it: ./bin/ps doctor and ./bin/ps status show all.`,
		Example: `  ./bin/ps gpu-list
  ./bin/ps gpu-list --json | jq '.gpus[].uuid'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			file, err := opened(path)
			if err != nil {
				return err
			}
			all, _, err := file.Read()
			if err != nil {
				return fmt.Errorf("read what is remembered of GPUs: %w", err)
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(map[string]any{"path": file.Path(),
					"gpus": append([]gpu.Kept{}, all...)})
			}
			return list(c.OutOrStdout(), all, Command(path), time.Local)
		},
	}
	AddKept(c.Flags(), &path)
	c.Flags().BoolVar(&asJSON, "json", false, "print exactly one line of JSON")
	return c
}

// list prints what holds.
func list(to io.Writer, all []gpu.Kept, command string, zone *time.Location) error {
	var b strings.Builder
	for _, k := range all {
		if !k.Holds() {
			continue
		}
		line(&b, "%s", named(&k))
		for _, f := range k.Findings {
			line(&b, "  unhealthy since %s (%s): %s.", at(f.SinceMS, zone), f.Code, strings.TrimSuffix(f.Reason, "."))
			if f.Action != "" {
				line(&b, "  %s", f.Action)
			}
		}
		for _, i := range k.Incidents {
			line(&b, "  XID %d at %s: one more within 24 h makes it unhealthy.", i.XID, at(i.AtMS, zone))
		}
		if len(k.Findings) > 0 {
			line(&b, "  When that is done: %s %d", command, k.Index)
		}
	}
	if b.Len() == 0 {
		b.WriteString(nothing)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// line adds a line. The file may be another user's, whose names a terminal must not act upon.
func line(b *strings.Builder, format string, args ...any) {
	b.WriteString(schema.Printable(fmt.Sprintf(format, args...)) + "\n")
}

const nothing = "Nothing is remembered that is wrong with a GPU.\n"

func named(k *gpu.Kept) string { return fmt.Sprintf("GPU %d %s (%s)", k.Index, k.UUID, k.Name) }

func at(ms int64, zone *time.Location) string {
	return time.UnixMilli(ms).In(zone).Format("2006-01-02 15:04:05 MST")
}

// Acknowledge is the subcommand that acknowledges.
func Acknowledge() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "gpu-ack UUID|INDEX|all...",
		Short: "Acknowledge what was wrong with a GPU of this machine, when it has been seen to",
		Long: `Acknowledge what was wrong with a GPU of this machine, when it has been seen to. A GPU is named by its UUID, the beginning of one,
or its index; all are all of them.

It changes the file that every ps and trainer of this user on this machine shares (--gpu-state): those that run notice within a
second or two, those that are started later begin with it. What is still wrong comes back with the next sample. Faults that were
injected are in no file: SIGUSR1 to the ps or trainer acknowledges those.

The exit status is 0 where something was acknowledged, or all were asked for and nothing was wrong; else 1.`,
		Example: `  ./bin/ps gpu-ack 0
  ./bin/ps gpu-ack GPU-8f2a
  ./bin/ps gpu-ack all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("gpu-ack: want a GPU: its UUID, the beginning of one, its index, or all")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			file, err := opened(path)
			if err != nil {
				return err
			}
			return acknowledgeIn(file, args, time.Now(), c.OutOrStdout())
		},
	}
	AddKept(c.Flags(), &path)
	return c
}

// acknowledgeIn acknowledges GPUs in a file.
func acknowledgeIn(file *gpu.File, names []string, now time.Time, out io.Writer) error {
	all, _, err := file.Read() // so that nothing is made where there is nothing
	if err != nil {
		return fmt.Errorf("read what is remembered of GPUs: %w", err)
	}
	if chosen, err := pick(all, names, file.Path()); err != nil {
		return err
	} else if len(chosen) == 0 {
		_, err := io.WriteString(out, nothing)
		return err
	}
	var said strings.Builder
	var wrong error
	_, err = file.Change(func(all []gpu.Kept) ([]gpu.Kept, bool) {
		var chosen []int
		if chosen, wrong = pick(all, names, file.Path()); wrong != nil {
			return all, false
		}
		for _, i := range chosen {
			k := &all[i]
			findings, incidents := k.Acknowledge(now)
			for _, f := range findings {
				line(&said, "%s: acknowledged %s, %s", named(k), f.Code, f.Reason)
			}
			for _, x := range incidents {
				line(&said, "%s: forgot XID %d", named(k), x.XID)
			}
		}
		return all, len(chosen) > 0
	})
	if wrong != nil {
		return wrong
	}
	if err != nil {
		return fmt.Errorf("acknowledge GPUs in %s: %w", file.Path(), err)
	}
	if said.Len() == 0 { // somebody else was faster
		said.WriteString(nothing)
	}
	_, err = io.WriteString(out, said.String())
	return err
}

// pick gives the places of the GPUs that are named and of which something holds. path is of the file, for errors.
func pick(all []gpu.Kept, names []string, path string) ([]int, error) {
	var chosen []int
	for _, name := range names {
		if name == "all" {
			for i := range all {
				if all[i].Holds() {
					chosen = append(chosen, i)
				}
			}
			continue
		}
		i, err := pickOne(all, name, path)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, i)
	}
	slices.Sort(chosen)
	return slices.Compact(chosen), nil
}

func pickOne(all []gpu.Kept, name, path string) (int, error) {
	var found []int
	for i, k := range all {
		if strings.EqualFold(k.UUID, name) {
			found = []int{i}
			break
		}
		if strconv.Itoa(k.Index) == name || len(name) > len("GPU-") && strings.HasPrefix(strings.ToLower(k.UUID),
			strings.ToLower(name)) {
			found = append(found, i)
		}
	}
	if held := slices.DeleteFunc(slices.Clone(found), func(i int) bool { return !all[i].Holds() }); len(held) > 0 {
		found = held
	}
	switch {
	case len(found) > 1:
		return 0, fmt.Errorf("GPU %q: it could be %s or %s: want more of the UUID", name, all[found[0]].UUID,
			all[found[1]].UUID)
	case len(found) == 1 && all[found[0]].Holds():
		return found[0], nil
	}
	var known []string
	for _, k := range all {
		if k.Holds() {
			known = append(known, fmt.Sprintf("%d (%s)", k.Index, k.UUID))
		}
	}
	if known == nil {
		return 0, fmt.Errorf("GPU %q: nothing is remembered that is wrong with a GPU, in %s", name, path)
	}
	return 0, fmt.Errorf("GPU %q: nothing is remembered that is wrong with it, in %s: want one of %s", name, path,
		strings.Join(known, ", "))
}
