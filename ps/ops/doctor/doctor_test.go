package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/terminal"
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
		{"port free", one(judgePort("127.0.0.1:4222", nil, false)), status.OK, "free"},
		{"port of a ps", one(judgePort("127.0.0.1:4222", syscall.EADDRINUSE, true)), status.OK, "a ps runs"},
		{"port of another", one(judgePort("127.0.0.1:4222", syscall.EADDRINUSE, false)), status.Warning, "ss -ltnp"},
		{"port forbidden", one(judgePort("127.0.0.1:80", syscall.EACCES, false)), status.Critical, "1023"},
		{"address of another machine", one(judgePort("192.0.2.1:1", syscall.EADDRNOTAVAIL, false)), status.Critical,
			"address of this machine"},
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

func TestJudgeNATS(t *testing.T) {
	t.Parallel()
	survey := func(change func(*fabric.Survey)) []Finding {
		s := fabric.Survey{Address: "h:4222", Version: "2.15.2", PayloadBytesMax: 1 << 20,
			Memory: fabric.Share{Used: 1, Max: -1}}
		change(&s)
		return judgeNATS(&s)
	}
	bucket := func(cluster string, b fabric.BucketSurvey) []Finding {
		return one(judgeBucket(&fabric.Survey{Cluster: cluster}, b))
	}
	for _, c := range []judged{
		{"NATS", survey(func(*fabric.Survey) {}), status.Info, "nats-server 2.15.2"},
		{"NATS old", survey(func(s *fabric.Survey) { s.Version = "2.9.3" }), status.Critical, "2.11 or newer"},
		{"NATS of tomorrow", survey(func(s *fabric.Survey) { s.Version = "3.0.0-beta" }), status.Info, "3.0.0-beta"},
		{"NATS unknown", survey(func(s *fabric.Survey) { s.Version = "x" }), status.Info, `version "x"`},
		{"small messages", survey(func(s *fabric.Survey) { s.PayloadBytesMax = 64 << 10 }), status.Warning, "max_payload"},
		{"no JetStream", survey(func(s *fabric.Survey) { s.JetStream = errors.New("no JetStream at h") }),
			status.Critical, "-js"},
		{"JetStream full", survey(func(s *fabric.Survey) { s.Memory = fabric.Share{Used: 10 << 20, Max: 12 << 20} }),
			status.Critical, "do not fit"},
		{"one bucket of two", survey(func(s *fabric.Survey) {
			s.Buckets = []fabric.BucketSurvey{{Name: "gradbus-servers", Replicas: 1, Current: 1}}
		}), status.Critical, "gradbus-servers is there alone"},
		{"bucket alone", bucket("", fabric.BucketSurvey{Name: "gradbus-jobs", InMemory: true, Replicas: 1, Current: 1}),
			status.OK, "write it again"},
		{"bucket of one in a cluster", bucket("c", fabric.BucketSurvey{Replicas: 1, Current: 1}), status.Warning,
			"three servers"},
		{"bucket", bucket("c", fabric.BucketSurvey{Replicas: 3, Current: 3}), status.OK, "3 of 3"},
		{"bucket without one", bucket("c", fabric.BucketSurvey{Replicas: 3, Current: 2}), status.Warning, "if one more is lost"},
		{"bucket without half", bucket("c", fabric.BucketSurvey{Replicas: 4, Current: 2}), status.Critical, "quorum"},
		{"bucket without two", bucket("c", fabric.BucketSurvey{Replicas: 3, Current: 1}), status.Critical, "quorum"},
		{"bucket full", bucket("", fabric.BucketSurvey{Replicas: 1, Current: 1, Bytes: 95, BytesMax: 100}),
			status.Warning, "90 %"},
	} {
		c.check(t)
	}
}

// natsServer is one with JetStream or without.
func natsServer(t *testing.T, js bool) (url string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1,
		JetStream: js, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	return s.ClientURL()
}

// A real server, before and after a ps has made its buckets there.
func TestNATS(t *testing.T) {
	t.Parallel()
	c := Config{Control: &fabric.Config{URL: natsServer(t, true), Name: "doctor"}}
	said := func() (string, status.Level) {
		all := c.nats(t.Context())
		return Text(all), Worst(all)
	}
	text, level := said()
	if level != status.Warning && level != status.Info || !strings.Contains(text, "none yet") {
		t.Errorf("level %s:\n%s", level, text)
	}
	control, err := fabric.DialControl(t.Context(), *c.Control)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	b, err := control.OpenBucket(t.Context(), fabric.BucketConfig{Name: schema.JobsBucket, BytesMax: 1 << 20})
	if err == nil {
		_, err = b.Create(t.Context(), "a", []byte("x"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if text, _ = said(); !strings.Contains(text, "bucket jobs") ||
		!strings.Contains(text, "1 keys, in memory, 1 of 1 replicas") {
		t.Errorf("with a bucket:\n%s", text)
	}
}

func TestNATSWrong(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"nats://127.0.0.1:1": "connection refused",
		natsServer(t, false): "no JetStream"} {
		all := (&Config{Control: &fabric.Config{URL: url, Name: "doctor"}}).nats(t.Context())
		if text := Text(all); Worst(all) != status.Critical || !strings.Contains(text, want) {
			t.Errorf("%s: want %q in:\n%s", url, want, text)
		}
	}
}

// fakePS has a status and checks.
func fakePS(t *testing.T, level status.Level, version string, now time.Time, ready bool) *terminal.Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			if !ready {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprintf(w, "ok      control loop: turns\n%s  registry: not renewed\n",
				map[bool]string{true: "ok    ", false: "failed"}[ready])
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"now_ms":%d,"server":"a-1","version":%q,"why":{"level":%q,"text":"t2 is silent","action":"look"}}`,
			now.UnixMilli(), version, level)
	}))
	t.Cleanup(s.Close)
	c, err := terminal.NewClient(terminal.Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRunning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		client *terminal.Client
		worst  status.Level
		says   string
	}{
		{"well", fakePS(t, status.OK, "1", time.Now(), true), status.OK, "2 checks hold"},
		{"stalled", fakePS(t, status.Critical, "1", time.Now(), true), status.Critical, "t2 is silent"},
		{"another version", fakePS(t, status.OK, "0.9", time.Now(), true), status.Warning, "of version 0.9"},
		{"another time", fakePS(t, status.OK, "1", time.Now().Add(-time.Hour), true), status.Warning, "1h0m0s apart"},
		{"not ready", fakePS(t, status.OK, "1", time.Now(), false), status.Critical, "registry: not renewed"},
	} {
		_, all := (&Config{Version: "1", Client: c.client}).running(t.Context())
		if text := Text(all); Worst(all) != c.worst ||
			!strings.Contains(text, c.says) {
			t.Errorf("%s: want %s and %q in:\n%s", c.name, c.worst, c.says, text)
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
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	all := Examine(t.Context(), Config{Version: "1", Root: os.DirFS("/"),
		Listen: []string{taken.Addr().String(), "127.0.0.1:0"}, Dirs: []string{dir}})
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
		if f.Level == status.Critical && f.Name != "memory" {
			t.Errorf("%s: %s", f.Name, f.Text)
		}
	}
	want := []string{"gradbus", "kernels", "dense library", "GPUs", "open files", "memory", "processors",
		"huge pages", "clock", "disk " + dir,
		"port " + taken.Addr().String(), "port 127.0.0.1:0", "NATS"}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("findings %q, want %q", names, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
