// Package doctor checks a machine for settings that would slow a job down, stop it or lose something, and says for each
// what would be right. What a ps checks itself when it starts (ports, the NATS server) and what a running ps reports (ps
// status) is not checked again.
//
// Checks named judge take facts and return findings. A fact that cannot be read is a finding of level Info, never OK.
// The package changes no setting, and leaves no file behind.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gradbus/cuda"
	"gradbus/internal/process"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/terminal"
	"gradbus/schema"
)

// Config is the subject of an examination. Nil or empty parts are skipped, and reported as such.
type Config struct {
	Version string
	Root    fs.FS    // of the machine, os.DirFS("/"): proc and sys are read
	Dirs    []string // folders that are written to

	// GPUs asks the driver, by a process that may hang. none is why there are no GPUs; broken says that there should be
	// some.
	GPUs func(ctx context.Context) (gpus []schema.GPUReport, none string, broken bool)
	// Kept looks at where is remembered what is wrong with GPUs; it is asked where there are some. text says where that
	// is.
	Kept func() (text string, err error)
}

// Examine looks at everything. It takes as long as the slowest answer, or until ctx ends.
func Examine(ctx context.Context, c Config) []Finding {
	all := c.build()
	all = append(all, c.gpus(ctx)...)
	all = append(all, judgeMachine(readMachine(c.Root))...)
	all = append(all, judgeClock(process.ReadClock()))
	for _, dir := range c.Dirs {
		all = append(all, judgeDisk(dir))
	}
	return all
}

// Finding is one line of an examination: what was found, and where that is not as it should be, what would be right.
type Finding struct {
	Level status.Level `json:"level"` // OK, Info (cannot be known, or is not used), Warning or Critical
	Name  string       `json:"name"`  // of what was examined, short
	Text  string       `json:"text"`
	Want  string       `json:"want,omitempty"`
}

// Worst returns the worst level of findings; OK where there are none.
func Worst(all []Finding) status.Level {
	levels := []status.Level{status.OK, status.Info, status.Warning, status.Critical}
	worst := 0
	for _, f := range all {
		worst = max(worst, slices.Index(levels, f.Level))
	}
	return levels[worst]
}

// Text lays findings out, a line each, with what would be right below it.
func Text(all []Finding) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(w, "%s %s\t%s\t%s\n", terminal.Icon(f.Level), strings.ToUpper(string(f.Level)), schema.Printable(f.Name),
			schema.Printable(f.Text))
		if f.Want != "" {
			fmt.Fprintf(w, "\t\t→ %s\n", schema.Printable(f.Want))
		}
	}
	w.Flush()
	return text.String()
}

func ok(name, format string, args ...any) Finding {
	return Finding{Level: status.OK, Name: name, Text: fmt.Sprintf(format, args...)}
}

func info(name, format string, args ...any) Finding {
	return Finding{Level: status.Info, Name: name, Text: fmt.Sprintf(format, args...)}
}

func warn(name, want, format string, args ...any) Finding {
	return Finding{Level: status.Warning, Name: name, Text: fmt.Sprintf(format, args...), Want: want}
}

func fail(name, want, format string, args ...any) Finding {
	return Finding{Level: status.Critical, Name: name, Text: fmt.Sprintf(format, args...), Want: want}
}

// build says what this program is and computes with.
func (c *Config) build() []Finding {
	all := []Finding{ok("gradbus", "%s, %s, %s/%s", c.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)}
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
func (c *Config) gpus(ctx context.Context) []Finding {
	if c.GPUs == nil {
		return []Finding{info("GPUs", "not asked for")}
	}
	gpus, none, broken := c.GPUs(ctx)
	switch {
	case broken:
		return []Finding{warn("GPUs", "see what nvidia-smi says, and install the driver again; or --gpu off",
			"none can be used: %s", none)}
	case len(gpus) == 0:
		return []Finding{info("GPUs", "none: %s", none)}
	}
	var all []Finding
	for _, g := range gpus {
		all = append(all, judgeGPU(&g))
	}
	if c.Kept == nil {
		return all
	}
	text, err := c.Kept()
	if err != nil {
		return append(all,
			warn("GPU state", "fix or remove the file, or name another one with --gpu-state: until then a GPU that broke "+
				"counts as well after a restart", "what is wrong with GPUs cannot be remembered: %v", err))
	}
	return append(all, ok("GPU state", "%s", text))
}

func judgeGPU(g *schema.GPUReport) Finding {
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

// machine is the limits of a process on this machine.
type machine struct {
	files             int64   // that it may have open; -1 is not known, math.MaxInt64 no limit
	memory, available int64   // bytes; 0 is not known
	group             int64   // bytes that the control group may hold; 0 is no limit
	processors        int     // that may be run on
	quota             float64 // processors' worth of time that the control group grants; 0 is no limit
	huge              string  // always, madvise, never
}

// readMachine reads below a root what the kernel says of this process and machine.
func readMachine(root fs.FS) machine {
	m := machine{files: -1, processors: runtime.NumCPU()}
	if root == nil {
		return m
	}
	m.files = limit(read(root, "proc/self/limits"), "Max open files")
	m.memory, m.available = process.MachineBytes(root)
	group := process.ReadGroup(root)
	m.group, m.quota = group.MemoryBytes, group.Processors
	for _, word := range strings.Fields(read(root, "sys/kernel/mm/transparent_hugepage/enabled")) {
		if inner, found := strings.CutPrefix(word, "["); found {
			m.huge = strings.TrimSuffix(inner, "]")
		}
	}
	return m
}

// read gives a file's text; empty where it cannot be read.
func read(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(data)
}

// limit is the soft limit of a row of /proc/self/limits.
func limit(text, row string) int64 {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, row)
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return -1
		}
		if fields[0] == "unlimited" {
			return math.MaxInt64
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			return n
		}
	}
	return -1
}

// Limits below which a machine is warned of.
const (
	// filesMin: a ps holds four sockets for each trainer and as many for other ps, and a page some; files of hundreds of
	// trainers.
	filesMin  = 4096
	filesFail = 256
	// memoryMin leaves room for one job of the smallest kind beside the runtime.
	memoryMin = 1 << 30
	diskMin   = 1 << 30
	diskShare = 0.05
)

// size writes bytes in GiB or MiB.
func size(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// judgeMachine looks at limits, memory, processors and huge pages.
func judgeMachine(m machine) []Finding {
	return []Finding{judgeFiles(m), judgeMemory(m), judgeProcessors(m), judgeHuge(m)}
}

func judgeFiles(m machine) Finding {
	const name, want = "open files", "raise it: ulimit -n 65536, or LimitNOFILE= of the service"
	switch {
	case m.files < 0:
		return info(name, "not known")
	case m.files < filesFail:
		return fail(name, want, "at most %d: not enough for a job", m.files)
	case m.files < filesMin:
		return warn(name, want, "at most %d: enough for some %d trainers", m.files, m.files/16)
	}
	return ok(name, "%d and more", filesMin)
}

func judgeMemory(m machine) Finding {
	const name = "memory"
	if m.memory <= 0 {
		return info(name, "not known")
	}
	limit, of := m.memory, "of this machine"
	if m.group > 0 && m.group < limit {
		limit, of = m.group, fmt.Sprintf("by the limit of the control group, of %s", size(m.memory))
	}
	text := fmt.Sprintf("%s %s, %s available; jobs may hold three quarters unless --memory-mib says otherwise",
		size(limit), of, size(m.available))
	switch {
	case limit < memoryMin || m.available < memoryMin/4:
		return fail(name, "give it more memory, or end what else runs", "%s", text)
	case m.available < limit/4:
		return warn(name, "set --memory-mib, so that jobs are not promised memory that others use", "%s", text)
	}
	return ok(name, "%s", text)
}

func judgeProcessors(m machine) Finding {
	if m.quota <= 0 || m.quota >= float64(m.processors) {
		return ok("processors", "%d", m.processors)
	}
	text := fmt.Sprintf("%d, of which the control group grants the time of %.1f", m.processors, m.quota)
	if m.quota < 1 {
		return warn("processors", "grant at least one: a ps is stopped for the rest of each period otherwise, and jobs wait",
			"%s", text)
	}
	return ok("processors", "%s", text)
}

func judgeHuge(m machine) Finding {
	const name = "huge pages"
	switch m.huge {
	case "always", "madvise":
		return ok(name, "transparent ones: %s", m.huge)
	case "":
		return info(name, "not known")
	}
	return warn(name, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: lookups in large tables miss "+
		"the TLB less", "transparent ones: %s", m.huge)
}

func judgeClock(c process.Clock) Finding {
	switch {
	case !c.Known:
		return info("clock", "not known whether it is synchronised")
	case !c.Synchronised:
		return warn("clock", "run chrony or systemd-timesyncd: events of several machines are shown in the order of "+
			"their clocks", "the kernel reports it as not synchronized")
	}
	return ok("clock", "synchronised, wrong by at most %s", c.ErrorMax.Round(time.Millisecond))
}

// judgeDisk writes a file of one page and takes it away again.
func judgeDisk(dir string) Finding {
	name := "disk " + dir
	probe, err := os.CreateTemp(dir, ".gradbus-doctor-*")
	if err == nil {
		defer os.Remove(probe.Name())
		_, err = probe.Write(make([]byte, 4096))
		err = errors.Join(err, probe.Close())
	}
	if err != nil {
		return fail(name, "make it, or let this user write there", "cannot be written: %v", err)
	}
	d, err := process.Disk(dir)
	if err != nil {
		return info(name, "can be written; how much is free is not known")
	}
	text := fmt.Sprintf("%s of %s are free", size(d.FreeBytes), size(d.TotalBytes))
	if d.FreeBytes < diskMin && float64(d.FreeBytes) < diskShare*float64(d.TotalBytes) {
		return warn(name, "make room: a model that cannot be saved is lost", "%s", text)
	}
	return ok(name, "%s", text)
}
