package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda/health"
	"gradbus/cuda/health/nvml"
	"gradbus/cuda/health/verdict"
)

// gpuFlags are what the command line says of GPUs.
type gpuFlags struct {
	mode     string
	expected int
	inject   []string
	library  string // of the driver, in tests
}

func (g *gpuFlags) add(set *pflag.FlagSet) {
	set.StringVar(&g.mode, "gpu", string(health.Auto), "`mode`: auto watches the GPUs where there is a driver, require refuses to start without healthy ones, off asks nothing")
	set.IntVar(&g.expected, "gpu-expected", 0, "`number` of GPUs that this machine should have; those that are not there are shown as absent")
	set.StringArrayVar(&g.inject, "inject", nil, "`fault` of a GPU to make up, such as gpu=0,xid=79,after=30s; for=TIME ends it, and the flag may be repeated. Faults: "+strings.Join(health.Kinds(), ", "))
	set.StringVar(&g.library, "gpu-library", "", "`path` of the driver's library, in place of the system's")
	_ = set.MarkHidden("gpu-library")
}

// watch begins to watch the GPUs. SIGUSR1 acknowledges those that are unhealthy.
func (g *gpuFlags) watch(ctx context.Context, log *slog.Logger) (*health.Monitor, error) {
	if g.expected < 0 || g.expected > verdict.GPUsMax {
		return nil, fmt.Errorf("gpu-expected %d: want 0 to %d", g.expected, verdict.GPUsMax)
	}
	c := health.Config{Mode: health.Mode(g.mode), Log: log}
	c.Policy.Expected = g.expected
	for _, text := range g.inject {
		in, err := health.ParseInjection(text)
		if err != nil {
			return nil, err
		}
		c.Inject = append(c.Inject, in)
		log.Warn("a fault will be injected", "inject", in.Spec)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program of the GPU probe: %w", err)
	}
	c.Probe = []string{self, "gpu-probe", "--parent", strconv.Itoa(os.Getpid())}
	if g.library != "" {
		c.Probe = append(c.Probe, "--library", g.library)
		c.Driver = func() bool { return true }
	}
	m, err := health.Start(ctx, c)
	if err == nil {
		go acknowledge(ctx, m, log) // ends with the process
	}
	return m, err
}

// take asks for the GPU that the backend would use, where it uses one.
func take(ctx context.Context, m *health.Monitor, backend string) error {
	if backend != "cuda" {
		return nil
	}
	visible, err := health.OrderDevices()
	if err != nil {
		return err
	}
	return m.Take(ctx, visible)
}

// acknowledge sees to SIGUSR1 until ctx ends.
func acknowledge(ctx context.Context, m *health.Monitor, log *slog.Logger) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
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

// probeCommand is the process that asks the driver for another ps.
func probeCommand() *cobra.Command {
	var o nvml.Options
	c := &cobra.Command{
		Use:   "gpu-probe",
		Short: "Ask the NVIDIA driver for the state of all GPUs, once a second, and print it as lines of JSON",
		Long: `Ask the NVIDIA driver for the state of all GPUs, once a second, and print it as lines of JSON.

A ps starts this as a process of its own, since a call of the driver may never return. It ends when its standard input does.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Out, o.In = c.OutOrStdout(), os.Stdin
			return nvml.Serve(c.Context(), o)
		},
	}
	set := c.Flags()
	set.DurationVar(&o.Every, "every", time.Second, "`time` between two rounds of questions")
	set.StringVar(&o.Library, "library", "", "`path` of the driver's library, in place of the system's")
	set.StringVar(&o.Kernel, "kernel-log", "", "`file` with the kernel's log; empty is /dev/kmsg")
	set.IntVar(&o.Parent, "parent", 0, "`process` whose memory on GPUs is ours")
	return c
}
