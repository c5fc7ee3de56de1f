package exchange

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gradbus/bench/harness"
	"gradbus/bench/harness/harnesstest"
	"gradbus/fabric/fabrictest"
	"gradbus/lane"
	"gradbus/schema"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(Roles())
	fabrictest.Main(m)
}

// tiny is a configuration whose figures mean nothing and that takes a moment.
func tiny() Config {
	c := DefaultConfig()
	c.Trainers, c.Bytes, c.Seconds, c.Turns, c.SmallRounds = 2, 3<<20, 0.05, 1, 20
	return c
}

// children are the processes that run this test program as a child.
func children(t *testing.T) (pids []string) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		_, rest, ok := strings.Cut(string(stat), ") ")
		if words := strings.Fields(rest); ok && len(words) > 1 && words[1] == strconv.Itoa(os.Getpid()) && words[0] != "Z" {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// Every figure is there, they agree with each other, and nothing is left over.
func TestRun(t *testing.T) {
	c := tiny()
	c.Turns, c.Rounds = 2, 20
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left over", left)
	}
	var out bytes.Buffer
	if err := harness.PrintJSON(&out, r); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.HasSuffix(out.String(), "}\n") {
		t.Errorf("%d line ends in the JSON", n)
	}
	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"raw_tcp_gb_per_second", "nats_gb_per_second", "fan_in_sum_gb_per_second",
		"fan_in_ratio",
		"round_gb_per_second", "request_p50_us", "request_p99_us", "request_under_load_p99_us",
		"request_under_load_1mib_p99_us",
		"small_round_p50_us", "small_round_p99_us", "peak_rss_bytes", "rss_bound_bytes", "values_checked"} {
		if x, ok := fields[name].(float64); !ok || x <= 0 {
			t.Errorf("%s: %v", name, fields[name])
		}
	}
	for _, name := range []string{"raw_tcp", "nats", "fan_in_sum", "round", "request", "request_under_load",
		"request_under_load_1mib", "small_round"} {
		if r.CPU[name] <= 0 {
			t.Errorf("CPU of %s: %v", name, r.CPU[name])
		}
	}
	for name, all := range r.Turns {
		if len(all) != c.Turns {
			t.Errorf("%s: %d figures of %d turns", name, len(all), c.Turns)
		}
	}
	if got := r.Turns["fan_in_sum_gb_per_second"][1] / r.Turns["raw_tcp_gb_per_second"][1]; got !=
		r.Turns["fan_in_ratio"][1] {
		t.Errorf("fan-in ratio %v: want %v", r.Turns["fan_in_ratio"][1], got)
	}
	// Each fan-in is checked by one feeder after its first batch and after each of three runs; each trainer of a round
	// compares all parameters in the second batch and after each of twelve runs.
	values := c.Bytes / 4
	if least := c.Turns * (3*4*values + roundTrainers*13*values); r.ValuesChecked < least {
		t.Errorf("%d values checked: want at least %d", r.ValuesChecked, least)
	}
	if r.RoundsRun != c.Turns*c.Rounds || len(r.RSSTenths) != tenths || slices.Min(r.RSSTenths) <= 0 ||
		slices.Max(r.RSSTenths) > r.PeakRSS {
		t.Errorf("%d rounds, memory %v, peak %d", r.RoundsRun, r.RSSTenths, r.PeakRSS)
	}
	if r.RequestP50 > r.RequestP99 || r.SmallP50 > r.SmallP99 || r.RequestLoadP50 > r.RequestLoadP99 {
		t.Errorf("percentiles out of order: %+v", r)
	}
	out.Reset()
	if err := r.Print(&out); err != nil || strings.Count(out.String(), "\n") < 14 {
		t.Errorf("%v in\n%s", err, out.String())
	}
}

// An interrupt at any point leaves nothing running.
func TestRunInterrupted(t *testing.T) {
	for _, after := range []int{1, 3, 4, 6} { // lines of progress
		ctx, cancel := context.WithCancel(t.Context())
		c := tiny()
		c.Seconds = 600
		c.Progress = &countdown{left: after, do: func() { time.AfterFunc(200*time.Millisecond, cancel) }}
		if after > 1 {
			c.Seconds = 0.05
		}
		_, err := Run(ctx, c)
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted in measure %d: %v", after, err)
		}
		if left := children(t); len(left) > 0 {
			t.Errorf("interrupted in measure %d: processes %v are left over", after, left)
		}
		cancel()
	}
}

// countdown calls do when it has been written to a number of times.
type countdown struct {
	left int
	do   func()
}

func (c *countdown) Write(p []byte) (int, error) {
	if c.left--; c.left == 0 {
		c.do()
	}
	return len(p), nil
}

// A member that dies takes the measure with it, at once and by name.
func TestMemberDies(t *testing.T) {
	b := &bench{Config: tiny()}
	err := b.within(t.Context(), "raw", []spec{{Role: roleSink}, {Role: roleSource}}, func(members team) error {
		_, err := members[1:].all(t.Context(), order{Op: "dance"})
		return err
	})
	if want := "raw-source0: dance: unknown order"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left over", left)
	}
}

// A wrong sum is found: members who believe that there are three of them expect other ones.
func TestWrongSumIsFound(t *testing.T) {
	for name, change := range map[string]func(specs []spec){
		"fan-in": func(specs []spec) { specs[1].Feeders = 3 },
		"round":  func(specs []spec) { specs[2].Feeders = 3 },
	} {
		b := &bench{Config: tiny(), figures: map[string][]float64{}}
		job := withTable(jobOf("fan-in", b.Trainers, b.Bytes, b.ChunkBytes))
		specs := b.feeders(job, b.windowBytes())
		if name == "round" {
			specs = b.sessions(jobOf("round", roundTrainers, b.Bytes, b.ChunkBytes))
		}
		change(specs)
		err := b.within(t.Context(), name, specs, func(members team) error {
			_, err := members[1:].all(t.Context(), order{Op: opRun, Rounds: 2})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Of a chunk of sums every value counts, and so does the weight.
func TestCompare(t *testing.T) {
	const members, values = 2, 64
	f := newMember(t.Context(), &spec{Feeders: members})
	frame := func(kind schema.Kind) *schema.Frame {
		made, err := schema.NewFrame(schema.Layout{Kind: kind, Values: 4 * values})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	c := &chunk{element: 1000, elements: values, frame: frame(schema.KindDense)}
	compare := func(weight float64, at int, off float32) error {
		m := frame(schema.KindMean)
		for i := range values {
			m.Float32s()[i] = mean(members, c.element+i)
		}
		m.Float32s()[0] = stamp(7)
		m.Float32s()[at] += off
		m.SetHead(schema.Head{Job: 1, Generation: 1, Batch: 7, Chunks: 1, Node: lane.Root(members), Lanes: members,
			Weight: weight})
		v, err := schema.Verify(m.Seal(), schema.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return f.compare(c, 7, &v)
	}
	if err := compare(members, 0, 0); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{"weight": compare(members+1, 0, 0), "stamp": compare(members, 0, 1),
		"value": compare(members, values-1, 1.0/65536)} {
		if err == nil {
			t.Errorf("a wrong %s passes", name)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"trainers 0: want 1 to 32":     func(c *Config) { c.Trainers = 0 },
		"shards 99: want 1 to 16":      func(c *Config) { c.Shards = 99 },
		"bytes 3: want 4 to":           func(c *Config) { c.Bytes = 3 },
		"chunk 5: want":                func(c *Config) { c.ChunkBytes = 5 },
		"window-mib 0: want 1 to 256":  func(c *Config) { c.WindowMiB = 0 },
		"seconds 0: want 1e-9 to 3600": func(c *Config) { c.Seconds = 0 },
		"rounds -1: want 0 to":         func(c *Config) { c.Rounds = -1 },
		"turns 0: want 1 to":           func(c *Config) { c.Turns = 0 },
	} {
		c := DefaultConfig()
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestValues(t *testing.T) {
	// An embedding and eight layers of 1024 by 1024, 9,445,376 values in all.
	p, elements := layers(DefaultConfig().Bytes), 0
	for _, x := range p {
		elements += x.Elements()
	}
	if len(p) != 17 || p[0].Name != "front" || p[0].Elements() != 1<<20 || elements != 9_445_376 {
		t.Errorf("%d parameters of %d values, first %+v", len(p), elements, p[0])
	}
	if p := layers(4 * (1024*1024 + 1024)); len(p) != 2 {
		t.Errorf("one layer is %d parameters", len(p))
	}
	// Patterns differ between members and hold no more than eight bits.
	same, most := 0, float32(0)
	for i := range 10000 {
		a, b := pattern(0, i), pattern(1, i)
		if a == b {
			same++
		}
		if a != float32(uint8(a)) {
			t.Fatalf("pattern %v at %d", a, i)
		}
		most = max(most, a)
		if want := (a + b) / 2; mean(2, i) != want {
			t.Fatalf("mean at %d is %v, want %v", i, mean(2, i), want)
		}
	}
	if same > 100 || most < 250 {
		t.Errorf("%d of 10000 values are the same, the largest is %v", same, most)
	}
	if stamp(5) == stamp(6) || stamp(schema.Batch(stampMax)) != 0 {
		t.Error("stamps")
	}
}

func TestSummary(t *testing.T) {
	var times []float64
	for i := range 200 {
		times = append(times, float64(200-i))
	}
	if r := summary(times); r.Count != 200 || r.P50 != 101 || r.P99 != 199 {
		t.Errorf("%+v", r)
	}
	if r := summary(nil); r.P50 != 0 || r.P99 != 0 {
		t.Errorf("%+v", r)
	}
}

func TestStatusBytes(t *testing.T) {
	status := "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	if statusBytes(status, "VmHWM:") != 2<<20 || statusBytes(status, "VmRSS:") != 1<<20 ||
		statusBytes(status, "VmSwap:") != 0 {
		t.Error("wrong sizes")
	}
}

func TestGrowth(t *testing.T) {
	r := Result{RSSTenths: []int64{50, 90, 95, 100, 100, 100, 101, 101, 102, 103}}
	if g := r.growth(); g != 3 {
		t.Errorf("growth %v %%, want 3", g)
	}
}
