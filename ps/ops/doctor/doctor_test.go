package doctor

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gradbus/internal/process"
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// root is a machine of files.
func root(files map[string]string) fs.FS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

const limits = `Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
`

func TestReadMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		want  machine
	}{
		{"nothing", nil, machine{files: -1}},
		{"plain", map[string]string{"proc/self/limits": limits,
			"proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n",
			"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"},
			machine{files: 1024, memory: 2 << 20, available: 1 << 20, huge: "madvise"}},
		{"group", map[string]string{"proc/self/cgroup": "0::/a/b\n",
			"proc/self/mountinfo":        "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"},
			machine{files: -1, group: 4096, quota: 1.5}},
		{"nonsense", map[string]string{"proc/self/limits": "Max open files\n",
			"proc/meminfo": "MemTotal: x kB\nMemAvailable:", "proc/self/cgroup": "x",
			"sys/fs/cgroup/cpu.max": "a b", "sys/fs/cgroup/memory.max": "-"}, machine{files: -1}},
	} {
		got := readMachine(root(c.files))
		c.want.processors = got.processors
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	if got := readMachine(nil); got.files != -1 {
		t.Errorf("no root: %+v", got)
	}
}

// levels of findings, by what was found.
func TestJudge(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	good := machine{files: 20000, memory: 16 * gib, available: 12 * gib, processors: 8, huge: "madvise"}
	with := func(change func(*machine)) machine { m := good; change(&m); return m }
	for _, c := range []judged{
		{"good machine", judgeMachine(good), status.OK, "4096 and more"},
		{"nothing known", judgeMachine(machine{files: -1}), status.Info, "not known"},
		{"few files", judgeMachine(with(func(m *machine) { m.files = 1024 })), status.Warning, "some 64 trainers"},
		{"no files", judgeMachine(with(func(m *machine) { m.files = 64 })), status.Critical, "ulimit -n"},
		{"unlimited", judgeMachine(with(func(m *machine) { m.files = math.MaxInt64 })), status.OK, "4096 and more"},
		{"memory in use", judgeMachine(with(func(m *machine) { m.available = gib })), status.Warning, "--memory-mib"},
		{"small group", judgeMachine(with(func(m *machine) { m.group = gib / 2 })), status.Critical,
			"limit of the control group"},
		{"no memory", judgeMachine(with(func(m *machine) { m.available = 1 << 20 })), status.Critical, "1 MiB available"},
		{"half a processor", judgeMachine(with(func(m *machine) { m.quota = 0.5 })), status.Warning, "time of 0.5"},
		{"a share", judgeMachine(with(func(m *machine) { m.quota = 2 })), status.OK, "time of 2.0"},
		{"no huge pages", judgeMachine(with(func(m *machine) { m.huge = "never" })), status.Warning, "madvise"},
		{"clock unknown", one(judgeClock(process.Clock{})), status.Info, "not known"},
		{"clock alone", one(judgeClock(process.Clock{Known: true})), status.Warning, "chrony"},
		{"clock", one(judgeClock(process.Clock{Known: true, Synchronised: true, ErrorMax: 1500 * time.Microsecond})), status.OK, "2ms"},
		{"disk", one(judgeDisk(t.TempDir())), status.OK, "are free"},
		{"no disk", one(judgeDisk(filepath.Join(t.TempDir(), "none"))), status.Critical, "cannot be written"},
		{"GPU", one(judgeGPU(&schema.GPUReport{Name: "H100", Driver: "580", State: schema.GPUHealthy})), status.OK,
			"H100, driver 580: healthy"},
		{"GPU slow", one(judgeGPU(&schema.GPUReport{State: schema.GPUDegraded, Reason: "hot", Action: "cool it"})),
			status.Warning, "cool it"},
		{"GPU bad", one(judgeGPU(&schema.GPUReport{State: schema.GPUUnhealthy})), status.Critical, "unhealthy"},
		{"GPU gone", one(judgeGPU(&schema.GPUReport{State: schema.GPUAbsent})), status.Critical, "absent"},
		{"GPU unknown", one(judgeGPU(&schema.GPUReport{State: schema.GPUUnknown})), status.Info, "unknown"},
	} {
		c.check(t)
	}
}

// one is a list of one.
func one(f Finding) []Finding { return []Finding{f} }

// judged is what was made of facts, and what should have been.
type judged struct {
	name  string
	all   []Finding
	worst status.Level
	says  string
}

func (c *judged) check(t *testing.T) {
	t.Helper()
	text := Text(c.all)
	if worst := Worst(c.all); worst != c.worst || !strings.Contains(text, c.says) {
		t.Errorf("%s: level %s, want %s and %q in:\n%s", c.name, worst, c.worst, c.says, text)
	}
	for _, f := range c.all {
		if (f.Level == status.Warning || f.Level == status.Critical) && f.Want == "" && !strings.HasPrefix(f.Name, "GPU") {
			t.Errorf("%s: %s does not say what would be right", c.name, f.Name)
		}
	}
}

// Where there are GPUs it is said where what is wrong with them is remembered, or why it is not.
func TestKept(t *testing.T) {
	t.Parallel()
	gpus := []schema.GPUReport{{Name: "H100", Driver: "580", State: schema.GPUHealthy}}
	for _, c := range []struct {
		gpus  []schema.GPUReport
		err   error
		level status.Level
		says  string
	}{
		{gpus, nil, status.OK, "with 1 of them is remembered in /x"},
		{gpus, errors.New("/x: the file is damaged"), status.Warning, "cannot be remembered: /x: the file is damaged"},
		{nil, errors.New("/x: the file is damaged"), status.Info, "none: no driver"},
	} {
		all := (&Config{GPUs: func(context.Context) ([]schema.GPUReport, string, bool) { return c.gpus, "no driver", false },
			Kept: func() (string, error) { return "what is wrong with 1 of them is remembered in /x", c.err }}).gpus(t.Context())
		if last := all[len(all)-1]; len(all) != len(c.gpus)+1 || last.Level != c.level ||
			!strings.Contains(last.Text, c.says) || last.Level == status.Warning && last.Want == "" {
			t.Errorf("found %+v, want %s with %q", all, c.level, c.says)
		}
	}
}

// This machine, whatever it is: every kind of finding is there, and what was there before is there after.
func TestExamine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := Examine(t.Context(), Config{Version: "1", Root: os.DirFS("/"), Dirs: []string{dir}})
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
		if f.Level == status.Critical && f.Name != "memory" {
			t.Errorf("%s: %s", f.Name, f.Text)
		}
	}
	want := []string{"gradbus", "kernels", "dense library", "GPUs", "open files", "memory", "processors",
		"huge pages", "clock", "disk " + dir}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("findings %q, want %q", names, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
