// Package watch is what the commands that compute on GPUs or show them have in common: the flags, the probe's own
// subcommand, and the signal that acknowledges.
//
// It wires package gpu to a command line and decides nothing.
package watch

import (
	"cmp"
	"context"
	"encoding/json"
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
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/nvml"
	"gradbus/internal/process"
	"gradbus/schema"
)

// Flags are what a command line says of GPUs.
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
	set.StringVar(&f.Mode, "gpu", string(gpu.Auto), "`mode`: auto watches the GPUs where there is a driver, require "+
		"refuses to start without healthy ones, off asks nothing")
	set.IntVar(&f.Expected, "gpu-expected", 0,
		"`number` of GPUs that this machine should have; those that are not there are shown as absent")
	set.StringVar(&f.Use, "gpu-use", "",
		"UUID or `index` of the GPU whose faults end the jobs here; empty is the one that the backend cuda takes")
	AddKept(set, &f.Kept)
	set.StringArrayVar(&f.Inject, "inject", nil, "`fault` of a GPU to make up, such as gpu=0,xid=79,after=30s; for=TIME "+
		"ends it, and the flag may be repeated. Faults: "+strings.Join(gpu.Kinds(), ", "))
	set.StringVar(&f.library, "gpu-library", "", "`path` of the driver's library; empty is the system's")
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
// that are unhealthy, from now on until ctx ends.
func (f *Flags) Watch(ctx context.Context, backend, lacks string, log *slog.Logger) (*Watch, error) {
	c, err := f.config(log)
	if err != nil {
		return nil, err
	}
	if !f.Takes(backend) {
		c.Unused = cmp.Or(lacks, "--backend cuda computes on one")
	}
	m, err := gpu.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	if f.Takes(backend) {
		if err := f.take(ctx, m); err != nil {
			m.Close()
			return nil, err
		}
	}
	w := &Watch{Monitor: m}
	ctx, w.stop = context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	w.ended.Go(func() { acknowledge(ctx, signals, m, log) })
	return w, nil
}

// Watch is a Monitor under way, with a signal that acknowledges.
type Watch struct {
	*gpu.Monitor
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// Close ends the watch and waits for it, as Monitor.Close does.
func (w *Watch) Close() {
	w.stop()
	w.ended.Wait()
	w.Monitor.Close()
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
	for _, text := range f.Inject {
		in, err := gpu.ParseInjection(text)
		if err != nil {
			return nil, err
		}
		if in.Kind == gpu.KindBit {
			after = append(after, in.After)
		}
	}
	return after, nil
}

func (f *Flags) config(log *slog.Logger) (gpu.Config, error) {
	c := gpu.Config{Mode: gpu.Mode(f.Mode), Log: log}
	if f.Expected < 0 || f.Expected > gpu.GPUsMax {
		return c, fmt.Errorf("gpu-expected %d: want 0 to %d", f.Expected, gpu.GPUsMax)
	}
	c.Policy.Expected = f.Expected
	for _, text := range f.Inject {
		in, err := gpu.ParseInjection(text)
		if err != nil {
			return c, err
		}
		log.Warn("a fault will be injected", "inject", in.Spec)
		if in.Kind != gpu.KindBit { // see WrongBits
			c.Inject = append(c.Inject, in)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return c, fmt.Errorf("find the program of the GPU probe: %w", err)
	}
	c.Probe = []string{self, probeName, "--parent", strconv.Itoa(os.Getpid())}
	if f.Mode != string(gpu.Off) {
		c.Kept, c.KeptErr = Kept(f.Kept)
		c.KeptCommand = Command(f.Kept)
	}
	if f.library != "" {
		c.Probe = append(c.Probe, "--library", f.library)
		c.Driver = func() bool { return true }
	}
	return c, nil
}

// take asks for the GPU that this process computes on.
func (f *Flags) take(ctx context.Context, m *gpu.Monitor) error {
	visible := f.Use
	if visible == "" {
		var err error
		if visible, err = gpu.OrderDevices(); err != nil {
			return err
		}
	}
	return m.Take(ctx, visible)
}

// acknowledge sees to SIGUSR1 until ctx ends.
func acknowledge(ctx context.Context, signals chan os.Signal, m *gpu.Monitor, log *slog.Logger) {
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if n := m.AcknowledgeAll(); n == 0 {
				log.Info("nothing to acknowledge: no GPU is unhealthy")
			}
		}
	}
}

const probeName = "gpu-probe"

// Probe is the subcommand that asks the driver, for a process of the same program.
func Probe() *cobra.Command {
	var o nvml.Options
	c := &cobra.Command{
		Use:    probeName,
		Hidden: true, // this program starts it
		Short:  "Ask the NVIDIA driver for the state of all GPUs, once a second, and print it as lines of JSON",
		Long: `Ask the NVIDIA driver for the state of all GPUs, once a second, and print it as lines of JSON.

It is started as a process of its own by whoever wants to know, since a call of the driver may never return. It ends when its
standard input does.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Out, o.In = c.OutOrStdout(), c.InOrStdin()
			return nvml.Serve(c.Context(), o)
		},
	}
	set := c.Flags()
	set.DurationVar(&o.Every, "every", time.Second, "`time` between two rounds of questions")
	set.StringVar(&o.Library, "library", "", "`path` of the driver's library; empty is the system's")
	set.StringVar(&o.Kernel, "kernel-log", "", "`file` with the kernel's log; empty is /dev/kmsg")
	set.IntVar(&o.Parent, "parent", 0, "`process` whose memory on GPUs is ours")
	return c
}

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
