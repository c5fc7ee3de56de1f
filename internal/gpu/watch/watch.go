// Package watch is what the commands that compute on GPUs or show them have in common: the flags, the probe's own
// subcommand, and the signal that acknowledges.
//
// It wires package gpu to a command line and decides nothing.
package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/nvml"
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

const (
	probeName    = "gpu-probe"
	topologyName = "topology"
)

// topologyWithin is how long a driver may take to say how its GPUs are connected.
const topologyWithin = 8 * time.Second

// Topology says how the GPUs of this machine are connected, or why nobody says it. library is the driver's, empty for
// the system's. The program has Probe among its commands.
func Topology(ctx context.Context, library string) (*gpu.Topology, string) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Sprintf("find the program of the GPU probe: %v", err)
	}
	probe := []string{self, probeName, "--" + topologyName}
	if library != "" {
		probe = append(probe, "--library", library)
	}
	return gpu.AskTopology(ctx, probe, topologyWithin)
}

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
	set.BoolVar(&o.Topology, topologyName, false, "say once how the GPUs are connected, and end")
	return c
}
