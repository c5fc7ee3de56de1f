package cost

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// trace is so much of a profile, and the functions that it was spent in: first the innermost.
type trace struct {
	amount float64 // microseconds of a processor, or bytes that were allocated
	stack  []string
}

// profile is what go tool pprof -traces says of one.
type profile struct {
	seconds float64 // over which it was taken; 0 where it does not say
	traces  []trace
}

// readProfile reads a profile by the tool that comes with Go. index is what is counted where a profile counts several
// things, or empty.
func readProfile(path, unit, index string) (profile, error) {
	args := []string{"tool", "pprof", "-traces", "-unit=" + unit}
	if index != "" {
		args = append(args, "-sample_index="+index)
	}
	out, err := exec.Command("go", append(args, path)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return profile{}, fmt.Errorf("read profile %s: %w", path, err)
	}
	p, err := parseTraces(string(out), unit)
	if err != nil {
		return p, fmt.Errorf("read profile %s: %w", path, err)
	}
	return p, nil
}

// parseTraces reads the tool's text: a head, and between lines of dashes an amount with the innermost function, and who
// called it.
func parseTraces(text, unit string) (p profile, err error) {
	head, rest, _ := strings.Cut(text, "-----------+")
	if _, after, found := strings.Cut(head, "Duration: "); found {
		number, _, _ := strings.Cut(after, "s,")
		if p.seconds, err = strconv.ParseFloat(number, 64); err != nil {
			return p, fmt.Errorf("duration: %w", err)
		}
	}
	for block := range strings.SplitSeq(rest, "-----------+") {
		_, lines, _ := strings.Cut(block, "\n")
		var t trace
		for line := range strings.Lines(lines) {
			line = strings.TrimSuffix(strings.TrimSpace(line), " (inline)")
			if len(t.stack) == 0 {
				amount, name, found := strings.Cut(line, unit+" ")
				if !found {
					continue // a label, as in "bytes:  48B"
				}
				if t.amount, err = strconv.ParseFloat(amount, 64); err != nil {
					return p, fmt.Errorf("amount: %w", err)
				}
				line = strings.TrimSpace(name)
			}
			if line != "" {
				t.stack = append(t.stack, line)
			}
		}
		if len(t.stack) > 0 {
			p.traces = append(p.traces, t)
		}
	}
	return p, nil
}

// rule gives a part what has one of these in the name of a function of its stack.
type rule struct {
	part   string
	frames []string
	once   bool // is done once a second, however often one looks
}

// What is not observing, and is told apart.
const (
	training  = "" // all that no rule takes
	collector = "collecting garbage"
	measuring = "profiling"
)

// rules are asked in order, and the first that fits takes a trace. What runs on a goroutine of the runtime's, or in
// NATS, cannot be seen to be for a report or not: garbage is shared out by who allocated (share), and a report's way is
// measured apart (way).
func rules() []rule {
	return []rule{
		{measuring, []string{"runtime/pprof.", "net/http/pprof.", "runtime.(*cpuProfile)", "runtime.profileWriter"}, false},
		{"ps: its own report", []string{"gradbus/ps.(*reporter).send", "gradbus/ps.(*reporter).say",
			"gradbus/ps.(*Coordinator).Telemetry", "gradbus/ps.(*jobReports)"}, true},
		{"trainer: its process's figures", []string{"gradbus/process.(*Meter).Read"}, false},
		{"trainer: encoding a report", []string{"gradbus/schema.EncodeTelemetry"}, false},
		{"trainer: gathering and publishing", []string{"gradbus/trainer.(*Session).makeReport",
			"gradbus/trainer.(*Session).keepReports", "gradbus/trainer.(*Session).sendHeartbeat"}, false},
		{"trainer: norms and digests", []string{"gradbus/trainer.(*gradientNorm", "gradbus/trainer.(*run).fingerprint",
			"gradbus/trainer.(*run).measured"}, true},
		{"ps: hearing reports", []string{"gradbus/ps.(*reporter).receive", "gradbus/ps/ops.(*Hub).Take"}, false},
		{"ps: decoding reports", []string{"gradbus/ps.(*reporter).open", "gradbus/ps.(*reporter).read"}, false},
		{"ps: a view, once a second", []string{"gradbus/ps/ops.(*Hub).tick", "gradbus/ps/ops/status.(*Tracker).Tick"}, true},
		{"ps: reports for the view", []string{"gradbus/ps/ops.(*Hub)", "gradbus/ps/ops/status."}, false},
		{"ps: JSON for pages", []string{"gradbus/ps/ops.(*view).asEvent", "gradbus/ps/ops.(*view).asStatus"}, true},
		{"ps: a scrape", []string{"gradbus/ps/ops/metrics."}, false},
		{"ps: HTTP", []string{"net/http.", "gradbus/ps/ops."}, false},
		{"ps: health of GPUs", []string{"gradbus/internal/gpu."}, true},
		{collector, []string{"runtime.gcBgMarkWorker", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcAssist",
			"runtime.gcStart", "runtime.gcMarkDone", "runtime.GC"}, true},
	}
}

// partOf is whose a trace is.
func partOf(t *trace, all []rule) string {
	for _, r := range all {
		for _, function := range t.stack {
			if slices.ContainsFunc(r.frames, func(frame string) bool { return strings.Contains(function, frame) }) {
				return r.part
			}
		}
	}
	return training
}

// parts adds up a profile by part.
func (p *profile) parts() map[string]float64 {
	sums, all := map[string]float64{}, rules()
	for i := range p.traces {
		sums[partOf(&p.traces[i], all)] += p.traces[i].amount
	}
	return sums
}

// cost is what observing takes of a process, in microseconds of a processor a second.
type cost struct {
	total float64            // of the process, without the profiling
	parts map[string]float64 // those of observing
	share float64            // of what is allocated: that much of the collector's time is in parts
}

// costOf puts together a processor's profile and one of what was allocated.
func costOf(processor, allocated *profile) (c cost, err error) {
	if processor.seconds <= 0 {
		return c, errors.New("a profile does not say how long it took")
	}
	sums, bytes := processor.parts(), allocated.parts()
	var all, seen float64
	for part, n := range bytes {
		if part == measuring || part == collector {
			continue
		}
		if all += n; part != training {
			seen += n
		}
	}
	if all > 0 {
		c.share = seen / all
	}
	c.parts = map[string]float64{}
	for part, us := range sums {
		us /= processor.seconds
		if part == measuring {
			continue
		}
		c.total += us
		switch part {
		case training:
		case collector:
			c.parts[collector] = us * c.share
		default:
			c.parts[part] = us
		}
	}
	return c, nil
}

// usual divides what was done so many times as usual by that, and takes the rest out of the total. What is done once a
// second stays as it is, and so does the collector's part, which is of both.
func (c *cost) usual(times float64) {
	for _, r := range rules() {
		if r.once {
			continue
		}
		if us, seen := c.parts[r.part]; seen {
			c.parts[r.part] = us / times
			c.total -= us - us/times
		}
	}
}

// table writes the parts in per cent of what all processes take, and gives their sum.
func table(to io.Writer, all ...cost) (percent float64) {
	total, sums := 0.0, map[string]float64{}
	for _, c := range all {
		total += c.total
		for part, us := range c.parts {
			sums[part] += us
		}
	}
	var names []string
	for _, r := range rules() {
		if _, seen := sums[r.part]; seen {
			names = append(names, r.part)
		}
	}
	for part := range sums {
		if !slices.Contains(names, part) {
			names = append(names, part)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return int(sums[b] - sums[a]) })
	sum := 0.0
	for _, part := range names {
		fmt.Fprintf(to, "%-40s %8.2f ms/s %6.2f %%\n", part, sums[part]/1000, 100*sums[part]/total)
		sum += sums[part]
	}
	fmt.Fprintf(to, "%-40s %8.2f ms/s %6.2f %%\n%-40s %8.2f ms/s\n", "observing", sum/1000, 100*sum/total,
		"the run, observing included", total/1000)
	return 100 * sum / total
}

const processorText = `File: ps
Type: cpu
Time: 2026-11-22 13:59:36 UTC
Duration: 2s, Total samples = 1000000us (50.00%)
-----------+-------------------------------------------------------
  600000us   gradbus/csrc.add
             gradbus/ps.(*worker).step (inline)
-----------+-------------------------------------------------------
   20000us   runtime.mallocgc
             encoding/json.Marshal
             gradbus/schema.EncodeTelemetry
             gradbus/trainer.(*Session).makeReport
             gradbus/trainer.(*Session).keepReports
-----------+-------------------------------------------------------
   10000us   gradbus/trainer.(*Session).makeReport (inline)
             gradbus/trainer.(*Session).keepReports
-----------+-------------------------------------------------------
   30000us   runtime.gcAssistAlloc
             runtime.mallocgc
             gradbus/ps.(*reporter).open
             gradbus/ps.(*reporter).read
-----------+-------------------------------------------------------
  100000us   runtime.scanobject
             runtime.gcDrain
             runtime.gcBgMarkWorker
-----------+-------------------------------------------------------
  200000us   runtime.futex
             runtime.schedule
             runtime.mcall
-----------+-------------------------------------------------------
   40000us   compress/gzip.(*Writer).Write
             runtime/pprof.(*profileBuilder).build
             net/http.(*conn).serve
`

const allocatedText = `File: ps
Type: alloc_space
Time: 2026-11-22 13:59:36 UTC
-----------+-------------------------------------------------------
     bytes:  48B
      300B   gradbus/ps.(*worker).step
             gradbus/ps.(*worker).run
-----------+-------------------------------------------------------
      100B   encoding/json.Unmarshal
             gradbus/ps.(*reporter).open
-----------+-------------------------------------------------------
     5000B   compress/flate.NewWriter
             runtime/pprof.(*profileBuilder).build
`

// Of two seconds: 15 + 10 + 5 ms a second in parts, and a quarter of the collector's 50, since a quarter of what is
// allocated is for observing. What the profiler takes is nobody's; what the scheduler takes is the run's.
func TestCostOf(t *testing.T) {
	t.Parallel()
	processor, err := parseTraces(processorText, "us")
	if err != nil {
		t.Fatal(err)
	}
	if len(processor.traces) != 7 || processor.seconds != 2 {
		t.Fatalf("%d traces of %v s: want 7 of 2", len(processor.traces), processor.seconds)
	}
	if got, want := processor.traces[0].stack,
		[]string{"gradbus/csrc.add", "gradbus/ps.(*worker).step"}; !slices.Equal(got, want) {
		t.Fatalf("the first stack is %q: want %q", got, want)
	}
	allocated, err := parseTraces(allocatedText, "B")
	if err != nil {
		t.Fatal(err)
	}
	c, err := costOf(&processor, &allocated)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"trainer: encoding a report": 10000, "trainer: gathering and publishing": 5000, "ps: decoding reports": 15000,
		collector: 12500,
	}
	if c.total != 480000 || c.share != 0.25 || len(c.parts) != len(want) {
		t.Fatalf("%+v: want 480000 us a second in all, a quarter allocated, parts %v", c, want)
	}
	for part, us := range want {
		if c.parts[part] != us {
			t.Errorf("%s: %v us a second, want %v", part, c.parts[part], us)
		}
	}
	var out strings.Builder
	c.parts[way], c.total = 2000, c.total+2000
	if got, want := table(&out, c, cost{total: 407500}), 100*44500/889500.; got != want {
		t.Errorf("%v %% in all, want %v\n%s", got, want, &out)
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	if want := "ps: decoding reports                        15.00 ms/s   1.69 %"; first != want {
		t.Errorf("the table begins with\n%s, want\n%s", first, want)
	}
	c.usual(4)
	if c.parts["ps: decoding reports"] != 3750 || c.parts[collector] != 12500 || c.parts[way] != 2000 ||
		c.total != 482000-30000*0.75 {
		t.Errorf("a fourth of what was done four times: %+v", c)
	}
}
