package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/process"
	"gradbus/schema"
)

// Flags are the flags of GPU monitoring.
type Flags struct {
	Mode     string
	Expected int
	Inject   []string
	Use      string // UUID or index of the GPU that counts as ours; empty is the one that CUDA takes
	Kept     string // file in which is remembered what is wrong; KeptNowhere is none, empty the default
	library  string // of the driver, in tests
}

// Add adds the flags.
func (f *Flags) Add(set *pflag.FlagSet) {
	set.StringVar(&f.Mode, "gpu", string(Auto),
		"`MODE`: auto watches GPUs if there is a driver; require needs healthy ones; off watches none")
	set.IntVar(&f.Expected, "gpu-expected", 0,
		"`N`: GPUs that this machine should have; missing ones are reported")
	set.StringVar(&f.Use, "gpu-use", "",
		"`INDEX`: index or UUID of the GPU whose faults end the jobs here; empty is the cuda backend's")
	AddKept(set, &f.Kept)
	set.StringArrayVar(&f.Inject, "inject", nil,
		"`FAULT`: simulate a fault, e.g. gpu=0,xid=79,after=30s,for=60s; repeatable; FAULT none lists all")
	set.StringVar(&f.library, "gpu-library", "", "`PATH`: the driver's library; empty is the system's")
	_ = set.MarkHidden("gpu-library")
}

// Args are the flags again, for a process that is to have the same.
func (f *Flags) Args() []string {
	args := []string{"--gpu", f.Mode, "--gpu-expected", strconv.Itoa(f.Expected), "--gpu-use", f.Use, "--gpu-state",
		f.Kept, "--gpu-library", f.library}
	for _, text := range f.Inject {
		args = append(args, "--inject", text)
	}
	return args
}

// Takes reports whether Watch asks for a GPU to compute on: the backend of that name is opened after it then. Else
// before it, so that a log begins with the backend on every machine.
func (f *Flags) Takes(backend string) bool { return backend == "cuda" || f.Use != "" }

// Watch begins to watch the GPUs, and asks for the one that the backend would use. backend is its name; lacks is why
// this program cannot open the backend cuda, or empty. The error is one line for people. SIGUSR1 acknowledges all GPUs
// that are unhealthy, from now on until the monitor is closed.
func (f *Flags) Watch(ctx context.Context, backend, lacks string, log *slog.Logger) (*Monitor, error) {
	c, err := f.config(log)
	if err != nil {
		return nil, err
	}
	if !f.Takes(backend) {
		c.Unused = cmp.Or(lacks, "--backend cuda computes on one")
	}
	c.Acknowledge = make(chan os.Signal, 1)
	signal.Notify(c.Acknowledge, syscall.SIGUSR1)
	m, err := Start(ctx, c)
	if err == nil && f.Takes(backend) {
		visible := f.Use
		if visible == "" {
			visible, err = orderDevices()
		}
		if err == nil {
			err = m.Take(ctx, visible)
		}
		if err != nil {
			m.Close()
		}
	}
	if err != nil {
		signal.Stop(c.Acknowledge)
		return nil, err
	}
	return m, nil
}

// Check finds what is wrong with the flags, where nothing is watched.
func (f *Flags) Check() error {
	c, err := f.config(slog.New(slog.DiscardHandler))
	if err == nil && len(c.Inject) > 0 {
		err = fmt.Errorf("inject %q: no GPU is used here: want --gpu-use with it, or the backend cuda", c.Inject[0].Spec)
	}
	return err
}

// WrongBits is when the arithmetic shall write wrong bits, counted from its start.
func (f *Flags) WrongBits() (after []time.Duration, err error) {
	_, after, err = f.injections()
	return after, err
}

// injections are the faults to make up: those of GPUs, and when the arithmetic shall write wrong bits.
func (f *Flags) injections() (gpus []Injection, wrongBits []time.Duration, err error) {
	for _, text := range f.Inject {
		in, err := ParseInjection(text)
		switch {
		case err != nil:
			return nil, nil, err
		case in.Kind == KindBit:
			wrongBits = append(wrongBits, in.After)
		default:
			gpus = append(gpus, in)
		}
	}
	return gpus, wrongBits, nil
}

func (f *Flags) config(log *slog.Logger) (c Config, err error) {
	c = Config{Mode: Mode(f.Mode), Log: log, Expected: f.Expected}
	c.KeptAsIs = len(f.Inject) > 0 // a rehearsal is not remembered
	if f.Expected < 0 || f.Expected > GPUsMax {
		return c, fmt.Errorf("gpu-expected %d: want 0 to %d", f.Expected, GPUsMax)
	}
	if c.Inject, _, err = f.injections(); err != nil {
		return c, err
	}
	for _, text := range f.Inject {
		log.Warn("a fault will be injected", "inject", text)
	}
	self, err := os.Executable()
	if err != nil {
		return c, fmt.Errorf("find the program of the GPU probe: %w", err)
	}
	c.Probe = []string{self, probeName}
	if f.Mode != string(Off) {
		c.Kept, c.KeptErr = StateFile(f.Kept)
		c.KeptCommand = AcknowledgedBy(f.Kept)
	}
	if f.library != "" {
		c.Probe = append(c.Probe, "--library", f.library)
		c.Driver = func() bool { return true }
	}
	return c, nil
}

const probeName = "gpu-probe"

// ProbeCommand is the subcommand that asks the driver, for a process of the same program.
func ProbeCommand() *cobra.Command {
	var o ProbeOptions
	c := &cobra.Command{
		Use:    probeName,
		Hidden: true, // this program starts it
		Short:  "Ask the NVIDIA driver for the state of all GPUs, once a second, and print it as lines of JSON",
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Out, o.In = c.OutOrStdout(), c.InOrStdin()
			return Serve(c.Context(), o)
		},
	}
	set := c.Flags()
	set.DurationVar(&o.Every, "every", time.Second, "`DURATION`: between two samples")
	set.StringVar(&o.Library, "library", "libnvidia-ml.so.1", "`PATH`: the driver's library")
	return c
}

// AddKept adds the flag that names the file in which is remembered what is wrong with GPUs.
func AddKept(set *pflag.FlagSet, to *string) {
	set.StringVar(to, "gpu-state", "",
		"`PATH`: file that remembers GPU faults; empty is gradbus/gpus.json in the state folder, off is none")
}

// AcknowledgedBy is the command that acknowledges a GPU, whose index follows, in the file that a value of the flag names.
func AcknowledgedBy(flag string) string {
	if flag == "" {
		return process.Invoked("ps") + " gpu-ack"
	}
	if path, err := filepath.Abs(flag); err == nil { // for readers with another working directory
		flag = path
	}
	if strings.ContainsAny(flag, " '\"$\\") {
		flag = strconv.Quote(flag)
	}
	return process.Invoked("ps") + " gpu-ack --gpu-state " + flag
}

// list says what holds.
func list(all []Kept, command string, zone *time.Location) string {
	var b strings.Builder
	at := func(ms int64) string { return time.UnixMilli(ms).In(zone).Format("2006-01-02 15:04:05 MST") }
	for _, k := range all {
		line(&b, "%s", &k.GPU)
		for _, f := range k.Findings {
			line(&b, "  unhealthy since %s (%s): %s.", at(f.SinceMS), f.Code, strings.TrimSuffix(f.Reason, "."))
			if f.Action != "" {
				line(&b, "  %s", f.Action)
			}
		}
		line(&b, "  When that is done: %s %d", command, k.Index)
	}
	return cmp.Or(b.String(), nothing)
}

// line adds a line. The file may be another user's, whose names a terminal must not act upon.
func line(b *strings.Builder, format string, args ...any) {
	b.WriteString(schema.Printable(fmt.Sprintf(format, args...)) + "\n")
}

const nothing = "Nothing is remembered that is wrong with a GPU.\n"

// String names a GPU for people.
func (g *GPU) String() string { return fmt.Sprintf("GPU %d %s (%s)", g.Index, g.UUID, g.Name) }

// AcknowledgeCommand is the subcommand that shows what is remembered, and acknowledges it.
func AcknowledgeCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "gpu-ack [UUID|INDEX|all]...",
		Short: "Show and acknowledge the remembered faults of this machine's GPUs",
		Long: `Acknowledge the faults of a GPU of this machine, when they have been seen to. A GPU is named by its UUID, the beginning of
one, or its index; all are all of them. Without an argument the command shows what is remembered: what is wrong with which
GPU, since when, and what to do. A GPU with which nothing is wrong is not in it: ./bin/ps doctor and ./bin/ps status show all.

It reads and changes the file that every ps and trainer of this user on this machine shares (--gpu-state): those that run notice
within a second or two, those that are started later begin with it. A fault that persists comes back with the next sample.
Injected faults are in no file: SIGUSR1 to the ps or trainer acknowledges those.

The exit status is 0 if something was acknowledged, or all were asked for and nothing was wrong; else 1.`,
		Example: `  ./bin/ps gpu-ack
  ./bin/ps gpu-ack 0
  ./bin/ps gpu-ack GPU-8f2a
  ./bin/ps gpu-ack all`,
	}
	AddKept(c.Flags(), &path)
	c.RunE = func(c *cobra.Command, names []string) error {
		file, err := StateFile(path)
		if err == nil && file == nil {
			err = errors.New("gpu-state off: want a file")
		}
		if err != nil {
			return err
		}
		all, err := file.Read() // so that nothing is made where there is nothing
		if err != nil {
			return fmt.Errorf("read what is remembered of GPUs: %w", err)
		}
		text := list(all, AcknowledgedBy(path), time.Local)
		if len(names) > 0 {
			text, err = acknowledgeIn(file, all, names)
		}
		if err == nil {
			_, err = io.WriteString(c.OutOrStdout(), text)
		}
		return err
	}
	return c
}

// acknowledgeIn acknowledges GPUs in a file that held all, and says what it did.
func acknowledgeIn(file *File, all []Kept, names []string) (said string, err error) {
	if chosen, err := chosen(all, names, file.Path()); err != nil || len(chosen) == 0 {
		return nothing, err
	}
	var text strings.Builder
	var wrong error
	err = file.Change(func(all []Kept) ([]Kept, bool) {
		var picked []*Kept
		picked, wrong = chosen(all, names, file.Path())
		for _, k := range picked {
			for _, f := range k.Findings {
				line(&text, "%s: acknowledged %s, %s", &k.GPU, f.Code, f.Reason)
			}
			k.Findings = nil
		}
		return all, len(picked) > 0
	})
	if wrong == nil && err != nil {
		wrong = fmt.Errorf("acknowledge GPUs in %s: %w", file.Path(), err)
	}
	return cmp.Or(text.String(), nothing), wrong // nothing where another process was faster
}

// chosen returns the GPUs that are named, each once. path is of the file, for errors.
func chosen(all []Kept, names []string, path string) (found []*Kept, err error) {
	var gpus []GPU
	for i := range all {
		gpus = append(gpus, all[i].GPU)
	}
	wanted := map[int]bool{}
	for _, name := range names {
		if name == "all" {
			continue
		}
		i, err := pick(gpus, name)
		if err != nil {
			return nil, fmt.Errorf("GPU %q, of those of which something is remembered in %s: %w", name, path, err)
		}
		wanted[i] = true
	}
	for i := range all {
		if wanted[i] || slices.Contains(names, "all") {
			found = append(found, &all[i])
		}
	}
	return found, nil
}

// pick gives the place of the GPU that a name is of: its UUID, the beginning of that, or its index.
func pick(gpus []GPU, name string) (int, error) {
	var known []string
	found := -1
	for i, g := range gpus {
		known = append(known, fmt.Sprintf("%d (%s)", g.Index, g.UUID))
		begins := name != "" && strings.HasPrefix(strings.ToLower(g.UUID), strings.ToLower(name))
		switch {
		case strings.EqualFold(g.UUID, name):
			return i, nil
		case !begins && strconv.Itoa(g.Index) != name:
		case found >= 0:
			return 0, fmt.Errorf("it could be %s or %s: want more of the UUID", gpus[found].UUID, g.UUID)
		default:
			found = i
		}
	}
	switch {
	case found >= 0:
		return found, nil
	case known == nil:
		return 0, errors.New("there is none")
	}
	return 0, fmt.Errorf("want one of %s", strings.Join(known, ", "))
}
