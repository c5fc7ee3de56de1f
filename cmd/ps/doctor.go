package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gradbus"
	"gradbus/internal/config"
	"gradbus/internal/gpu"
	"gradbus/internal/kernelflag"
	"gradbus/internal/process"
	"gradbus/ps/ops/doctor"
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// doctoring is what ps doctor is told.
type doctoring struct {
	dirs    []string
	asJSON  bool
	gpu     string
	kept    string
	library string
}

// gpuWithin is how long the driver may take for its first word.
const gpuWithin = 10 * time.Second

func doctorCommand() *cobra.Command {
	var d doctoring
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems",
		Long: `Check kernels, GPUs and their driver, limits, memory, clock and disks of this machine. Each line says what was found and, if
something is wrong, what would be right. Nothing is changed.

The exit status is 0 if all is well, 1 after a warning, 2 if something does not work, 3 if the command line is wrong.`,
		Example: `  ./bin/ps doctor
  ./bin/ps doctor --dir /models --dir /runs --json`,
		Args: func(c *cobra.Command, args []string) error { return wrongly(noArguments(c, args)) },
	}
	set := c.Flags()
	set.SortFlags = false
	set.StringArrayVar(&d.dirs, "dir", []string{"."},
		"`DIR`: folder that models or curves are written to; repeatable")
	set.StringVar(&d.gpu, "gpu", string(gpu.Auto),
		"`MODE`: auto asks the driver in a process of its own; off does not")
	kernelflag.Add(set)
	gpu.AddKept(set, &d.kept)
	set.BoolVar(&d.asJSON, "json", false, "print the findings as one line of JSON")
	set.StringVar(&d.library, "gpu-library", "", "`PATH`: the driver's library; empty is the system's")
	_ = set.MarkHidden("gpu-library")
	config.AddFileFlag(set)
	flagsWrongly(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return exitOf(d.run(c))
	}
	return c
}

// run prints what is found, and gives the worst of it.
func (d *doctoring) run(c *cobra.Command) (status.Level, error) {
	if err := config.RefuseIdle(c.Flags(), []config.Idle{
		{When: d.gpu == string(gpu.Off), Flags: []string{"gpu-state", "gpu-library"},
			Why: "--gpu off watches no GPU: leave it out"},
	}); err != nil {
		return "", err
	}
	examined := doctor.Config{Version: gradbus.Version, Root: os.DirFS("/"), Dirs: d.dirs}
	switch d.gpu {
	case string(gpu.Auto):
		examined.GPUs, examined.Kept = d.askDriver, d.askKept
	case string(gpu.Off):
	default:
		return "", fmt.Errorf("gpu %q: want auto or off", d.gpu)
	}
	all := doctor.Examine(c.Context(), examined)
	if err := c.Context().Err(); err != nil {
		return "", err
	}
	for i := range all {
		all[i].Text, all[i].Want = process.AsInvoked(all[i].Text), process.AsInvoked(all[i].Want)
	}
	out := c.OutOrStdout()
	if d.asJSON {
		return doctor.Worst(all), json.NewEncoder(out).Encode(map[string]any{"level": doctor.Worst(all), "findings": all})
	}
	_, err := io.WriteString(out, doctor.Text(all))
	return doctor.Worst(all), err
}

// askKept looks at the file in which is remembered what is wrong with GPUs.
func (d *doctoring) askKept() (text string, err error) {
	file, err := gpu.StateFile(d.kept)
	switch {
	case err != nil:
		return "", err
	case file == nil:
		return "what is wrong with them is not remembered: --gpu-state off", nil
	}
	all, err := file.Read()
	return fmt.Sprintf("what is wrong with %d of them is remembered in %s", len(all), file.Path()), err
}

// askDriver has a probe ask for all GPUs once.
func (d *doctoring) askDriver(ctx context.Context) (gpus []schema.GPUReport, none string, broken bool) {
	self, err := os.Executable()
	if err != nil {
		return nil, err.Error(), true
	}
	c := gpu.Config{Mode: gpu.Auto, Probe: []string{self, "gpu-probe"}}
	c.Kept, _ = gpu.StateFile(d.kept) // what is wrong with it, askKept says
	c.KeptAsIs, c.KeptCommand = true, gpu.AcknowledgedBy(d.kept)
	if d.library != "" {
		c.Probe, c.Driver = append(c.Probe, "--library", d.library), func() bool { return true }
	}
	m, err := gpu.Start(ctx, c)
	if err != nil {
		return nil, err.Error(), true
	}
	defer m.Close()
	m.Wait(ctx, gpuWithin)
	if gpus = m.GPUs(); len(gpus) > 0 {
		return gpus, "", false
	}
	none = cmp.Or(m.Unavailable(), "the driver has not answered within "+gpuWithin.String()+", or counts none")
	// A machine without a GPU may have the library all the same.
	return nil, none, none != gpu.NoDriver && !strings.Contains(none, "not loaded")
}
