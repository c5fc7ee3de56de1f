// Package doctor looks at a machine, a NATS server and a running ps for what would slow a job down, stop it or lose
// something, and says of each what would be right.
//
// What it finds is one list of findings. Deciding is apart from looking: functions named judge take facts and
// give findings. Facts that cannot be had are findings of level Info: never OK.
//
// It changes nothing: no setting, no file but one that it takes away again, no message but questions.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/terminal"
	"gradbus/schema"
)

// Config is the subject of an examination. Nil or empty parts are skipped, and reported as such.
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
	there, found := c.running(ctx)
	for _, address := range c.Listen {
		all = append(all, judgePort(address, tryPort(address), there))
	}
	all = append(all, found...)
	return append(all, c.nats(ctx)...)
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

// clockApartMax is the difference between the clock of a ps and the local one up to which times on the page are not
// misleading.
const clockApartMax = 2 * time.Second

// running looks at a ps that may be there.
func (c *Config) running(ctx context.Context) (there bool, all []Finding) {
	if c.Client == nil {
		return false, nil
	}
	view, _, err := c.Client.Status(ctx)
	if err != nil {
		return false, []Finding{info("ps", "not examined: %v", err)}
	}
	all = []Finding{{Level: view.Why.Level, Name: "ps",
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
		return true, append(all, info("ps ready", "not known: %v", err))
	case ready:
		return true, append(all, ok("ps ready", "%d checks hold", len(lines)))
	}
	for _, l := range lines {
		if l.Failed {
			all = append(all, fail("ps ready", "", "%s", l.Text))
		}
	}
	return true, all
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

// tryPort listens at an address for a moment.
func tryPort(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// judgePort says whether a ps could listen at an address; err is of trying to, and running says that a ps is there.
func judgePort(address string, err error, running bool) Finding {
	name := "port " + address
	switch {
	case err == nil:
		return ok(name, "free")
	case errors.Is(err, syscall.EADDRINUSE) && running:
		return ok(name, "taken, and a ps runs")
	case errors.Is(err, syscall.EADDRINUSE):
		return warn(name, "see who has it (ss -ltnp); end it, or start ps with another --listen or --http", "taken")
	case errors.Is(err, syscall.EACCES), errors.Is(err, fs.ErrPermission):
		return fail(name, "choose a port above 1023, or grant CAP_NET_BIND_SERVICE", "this user may not listen there")
	}
	return fail(name, "choose an address of this machine", "%v", err)
}

const (
	// natsMinor is the least version 2.x of nats-server that this was written for.
	natsMinor = 11
	// payloadMin is the size of a chunk's message at the default of 256 KiB, and some.
	payloadMin = 512 << 10
)

// nats looks at the control server, where there is one of its own.
func (c *Config) nats(ctx context.Context) []Finding {
	if c.Control == nil {
		return []Finding{
			info("NATS", "not examined: --nats names a server or cluster; a ps that embeds its own sets it up itself"),
		}
	}
	control, err := fabric.DialControl(ctx, *c.Control)
	if err != nil {
		return []Finding{fail("NATS", "start it, or correct --nats and what it needs", "%v", err)}
	}
	defer control.Close()
	survey, err := control.Survey(ctx, schema.ServersBucket, schema.JobsBucket)
	if errors.Is(err, fabric.ErrDenied) {
		return []Finding{info("NATS", "not examined: %v", err)}
	}
	if err != nil {
		return []Finding{fail("NATS", "look at its log", "%v", err)}
	}
	return judgeNATS(&survey)
}

// judgeNATS checks the settings that a NATS server reports to its clients.
func judgeNATS(s *fabric.Survey) []Finding {
	all := []Finding{judgeVersion(s.Address, s.Version)}
	if s.PayloadBytesMax < payloadMin {
		all = append(all, warn("NATS messages", "set max_payload to 8MB",
			"at most %d KiB: trainers with --route cluster are refused at the default chunk size", s.PayloadBytesMax>>10))
	} else {
		all = append(all, ok("NATS messages", "at most %.1f MiB", float64(s.PayloadBytesMax)/(1<<20)))
	}
	if s.JetStream != nil {
		return append(all,
			fail("JetStream", "run nats-server with -js, or set jetstream in its configuration and for the account", "%v",
				s.JetStream))
	}
	if m := s.Memory; m.Max >= 0 && m.Max-m.Used < memoryOfBuckets {
		all = append(all, fail("JetStream", "raise max_memory_store, or the account's limit",
			"%s of %s of memory are used: the buckets of ps and jobs do not fit", size(m.Used), size(m.Max)))
	} else {
		all = append(all, ok("JetStream", "%s of memory used", size(m.Used)))
	}
	for _, b := range s.Buckets {
		all = append(all, judgeBucket(s, b))
	}
	if len(s.Buckets) == 1 {
		all = append(all, fail("buckets", "see /readyz?verbose of a ps, which makes it again or says why it cannot",
			"%s is there alone: the other one is lost, and no trainer can join", s.Buckets[0].Name))
	}
	if len(s.Buckets) == 0 {
		all = append(all, info("buckets", "none yet: the first ps with --nats makes them"))
	}
	return all
}

// memoryOfBuckets is the most memory of the two buckets.
const memoryOfBuckets = 20 << 20

func judgeVersion(address, version string) Finding {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) == 3 {
		major, err := strconv.Atoi(parts[0])
		minor, other := strconv.Atoi(parts[1])
		if err == nil && other == nil {
			if major < 2 || major == 2 && minor < natsMinor {
				return fail("NATS", fmt.Sprintf("use nats-server 2.%d or newer", natsMinor), "nats-server %s at %s",
					version, address)
			}
			return ok("NATS", "nats-server %s at %s", version, address)
		}
	}
	return info("NATS", "a server of unknown version %q at %s", version, address)
}

// judgeBucket: memory is where these buckets belong, since what they hold is written again by those who are there.
func judgeBucket(s *fabric.Survey, b fabric.BucketSurvey) Finding {
	name := "bucket " + strings.TrimPrefix(b.Name, "gradbus-")
	kept := "on disk"
	if b.InMemory {
		kept = "in memory"
	}
	text := fmt.Sprintf("%d keys, %s, %d of %d replicas up to date", b.Keys, kept, b.Current, b.Replicas)
	switch {
	case b.Current < b.Replicas && b.Current*2 <= b.Replicas:
		return fail(name, "bring the servers of the cluster back", "%s: no quorum, no trainer can join", text)
	case b.Current < b.Replicas:
		return warn(name, "bring the servers of the cluster back: if one more is lost, no trainer can join", "%s", text)
	case s.Cluster != "" && b.Replicas < 3:
		return warn(name, "have three servers in the cluster when the first ps starts: then the bucket is on three, and "+
			"outlives one", "%s: cluster %s loses it with one server, and jobs cannot be joined until it is back",
			text, s.Cluster)
	case b.BytesMax > 0 && int64(b.Bytes) > b.BytesMax/10*9:
		return warn(name, "end jobs, or take old ones away", "%s; it is full to more than 90 %%", text)
	case b.Replicas == 1:
		return ok(name, "%s; a restart of the server empties it, and those who are there write it again", text)
	}
	return ok(name, "%s", text)
}
