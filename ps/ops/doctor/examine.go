package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/terminal"
	"gradbus/schema"
)

// Config is what is examined. What is nil or empty is left out, and said to be.
type Config struct {
	Version string
	Root    fs.FS    // of the machine, os.DirFS("/"): proc and sys are read
	Listen  []string // addresses that a ps would listen at: of its data server, of its page
	Dirs    []string // folders that are written to

	Client *terminal.Client // of a ps that may be running
	// GPUs asks the driver, by a process that may hang. none is why there are no GPUs; broken says that there should be
	// some.
	GPUs func(ctx context.Context) (gpus []schema.GPUReport, none string, broken bool)
	// Kept looks at where is remembered what is wrong with GPUs; it is asked where there are some. text says where that
	// is.
	Kept func() (text string, err error)

	Control *fabric.Config // of the NATS server given by --nats; nil for none
	Monitor string         // URL of its monitoring, http://host:8222; empty for none
	Token   string         // of the page of a ps, whose own monitoring asks for it; empty is none
}

// Examine looks at everything. It takes as long as the slowest answer, or until ctx ends.
func Examine(ctx context.Context, c Config) []terminal.Finding {
	all := c.build()
	all = append(all, c.gpus(ctx)...)
	all = append(all, judgeMachine(readMachine(c.Root))...)
	all = append(all, judgeClock(readClock()))
	for _, dir := range c.Dirs {
		all = append(all, judgeDisk(dir))
	}
	for _, address := range c.Listen {
		all = append(all, judgePort(address, tryPort(address), listeners(c.Root)))
	}
	all = append(all, c.running(ctx)...)
	return append(all, c.nats(ctx)...)
}

func ok(name, format string, args ...any) terminal.Finding {
	return terminal.Finding{Level: status.OK, Name: name, Text: fmt.Sprintf(format, args...)}
}

func info(name, format string, args ...any) terminal.Finding {
	return terminal.Finding{Level: status.Info, Name: name, Text: fmt.Sprintf(format, args...)}
}

func warn(name, want, format string, args ...any) terminal.Finding {
	return terminal.Finding{Level: status.Warning, Name: name, Text: fmt.Sprintf(format, args...), Want: want}
}

func fail(name, want, format string, args ...any) terminal.Finding {
	return terminal.Finding{Level: status.Critical, Name: name, Text: fmt.Sprintf(format, args...), Want: want}
}

// build says what this program is and computes with.
func (c *Config) build() []terminal.Finding {
	all := []terminal.Finding{ok("gradbus", "%s, %s, %s/%s", c.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)}
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return append(all, fail("kernels", "build with make", "%v", err))
	}
	defer backend.Close()
	if backend.Name() == "go" {
		all = append(all,
			warn("kernels", "build with make, which sets the tag native: several times as fast, and the same bits", "%s",
				cuda.Describe(backend)))
	} else {
		all = append(all, ok("kernels", "%s", cuda.Describe(backend)))
	}
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{})
	if err != nil {
		return append(all, fail("dense library", "install libdnnl2 or libopenblas0-pthread", "%v", err))
	}
	defer dense.Close()
	if dense.Name() == "own" {
		return append(all,
			warn("dense library", "install libdnnl2 or libopenblas0-pthread (make deps does): libdnnl2 makes layers two to "+
				"seven times as fast", "own, %s", dense.Reason()))
	}
	return append(all, ok("dense library", "%s, %s", dense.Name(), dense.Reason()))
}

// gpus asks for every GPU.
func (c *Config) gpus(ctx context.Context) []terminal.Finding {
	if c.GPUs == nil {
		return []terminal.Finding{info("GPUs", "not asked for")}
	}
	gpus, none, broken := c.GPUs(ctx)
	switch {
	case broken:
		return []terminal.Finding{warn("GPUs", "see what nvidia-smi says, and install the driver again; or --gpu off",
			"none can be used: %s", none)}
	case len(gpus) == 0:
		return []terminal.Finding{info("GPUs", "none: %s", none)}
	}
	var all []terminal.Finding
	for _, g := range gpus {
		all = append(all, judgeGPU(&g))
	}
	if c.Kept == nil {
		return all
	}
	text, err := c.Kept()
	if err != nil {
		return append(all,
			warn("GPU state", "mend or remove the file, or name another one with --gpu-state: until then a GPU that broke "+
				"counts as well after a restart", "what is wrong with GPUs cannot be remembered: %v", err))
	}
	return append(all, ok("GPU state", "%s", text))
}

func judgeGPU(g *schema.GPUReport) terminal.Finding {
	name := fmt.Sprintf("GPU %d", g.Index)
	text := fmt.Sprintf("%s, driver %s: %s", g.Name, g.Driver, g.State)
	if g.Reason != "" {
		text += ": " + g.Reason
	}
	switch g.State {
	case schema.GPUHealthy:
		return ok(name, "%s", text)
	case schema.GPUUnknown:
		return info(name, "%s", text)
	case schema.GPUDegraded:
		return warn(name, g.Action, "%s", text)
	}
	return fail(name, g.Action, "%s", text)
}

// clockApartMax is how far the clock of a ps may be from ours before times on the page mislead.
const clockApartMax = 2 * time.Second

// running looks at a ps that may be there.
func (c *Config) running(ctx context.Context) []terminal.Finding {
	if c.Client == nil {
		return nil
	}
	view, _, err := c.Client.Status(ctx)
	if err != nil {
		return []terminal.Finding{info("ps", "not examined: %v", err)}
	}
	all := []terminal.Finding{{Level: view.Why.Level, Name: "ps",
		Text: fmt.Sprintf("%s at %s: %s", view.Server, c.Client.URL(), view.Why.Text), Want: view.Why.Action}}
	if view.Version != c.Version {
		all = append(all, warn("ps version", "run one version of ps and trainers", "%s is of version %s, this command of %s",
			view.Server, view.Version, c.Version))
	}
	if apart := time.Since(time.UnixMilli(view.NowMS)).Abs(); apart > clockApartMax {
		all = append(all, warn("ps clock", "synchronise the clocks of both machines (chrony, systemd-timesyncd)",
			"%s apart from this machine's", apart.Round(time.Second)))
	}
	ready, lines, err := c.Client.Ready(ctx)
	switch {
	case err != nil:
		return append(all, info("ps ready", "not known: %v", err))
	case ready:
		return append(all, ok("ps ready", "%d checks hold", len(lines)))
	}
	for _, l := range lines {
		if l.Failed {
			all = append(all, fail("ps ready", "", "%s", l.Text))
		}
	}
	return all
}
