package terminal

import (
	"math"
	"strings"
	"testing"
	"unicode"

	"github.com/cockroachdb/datadriven"

	"gradbus/internal/testkit"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func nan() float64 { return math.NaN() }
func inf() float64 { return math.Inf(1) }

// TestScreens runs testdata/screens: `screen NAME width=80`.
func TestScreens(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/screens", func(t *testing.T, d *datadriven.TestData) string {
		s := Screen{Width: 80}
		d.MaybeScanArgs(t, "width", &s.Width)
		status := samples()[d.CmdArgs[0].Key]
		if status == nil {
			d.Fatalf(t, "no sample %q", d.CmdArgs[0].Key)
		}
		return Join(s.Lines(status, events()), false) + "\n"
	})
}

// TestScreenFits holds every screen to its width, and to letters that no terminal acts upon.
func TestScreenFits(t *testing.T) {
	t.Parallel()
	all := samples()
	for name, ill := range map[string]func(c *statustest.Cluster){
		"waits": func(c *statustest.Cluster) { c.Trainers[1].Stopped = true },
		"GPU":   func(c *statustest.Cluster) { c.Trainers[1].GPUs[0].State = schema.GPUUnhealthy },
		"failed": func(c *statustest.Cluster) {
			c.End(&schema.Failed{Member: "t1", Text: "trainer t1 on box-0 (pid 7101) was last seen 30s ago at batch 2400"})
		},
	} {
		c := statustest.NewCluster(statustest.Options{GPUs: true})
		tracker := c.NewTracker()
		c.Play(tracker, 30)
		ill(c)
		u := c.Play(tracker, 20)
		all["plays "+name] = &u.Status
	}
	for name, status := range all {
		for _, columns := range []int{20, 39, 80, 121, 400} {
			for _, l := range (Screen{Width: columns}).Lines(status, events()) {
				text := l.String()
				if width(text) > columns {
					t.Fatalf("%s: %d columns, want at most %d: %q", name, width(text), columns, text)
				}
				if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("%s: %q has what does not print", name, text)
				}
			}
		}
	}
}

// What is said by colour is said by an icon and a word too: without colours nothing is lost.
func TestJoinColour(t *testing.T) {
	t.Parallel()
	lines := Screen{Width: 80}.Lines(stalled(), events())
	plain, colour := Join(lines, false), Join(lines, true)
	if strings.Contains(plain, "\x1b") {
		t.Errorf("colours where none were asked for: %q", plain)
	}
	if !strings.Contains(colour, "\x1b[1;31m✗ CRITICAL ") || !strings.Contains(plain, "✗ CRITICAL ") {
		t.Errorf("no icon and word of the level:\n%s", plain)
	}
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{number(0), "0"}, {number(0.25), "0.2"}, {number(7), "7"}, {number(999), "999"}, {number(999.4), "999"},
		{number(999.6), "1.0k"}, {number(48234), "48.2k"},
		{number(999_600), "1.0M"}, {number(-3.5e6), "-3.5M"}, {number(nan()), "NaN"}, {number(inf()), "+Inf"},
		{number(-inf()), "-Inf"}, {number(1e20), "100000P"},
		{size(0), "0 B"}, {size(1023), "1023 B"}, {size(1024), "1.0 KiB"}, {size(1 << 20), "1.0 MiB"},
		{size(1<<20 - 1), "1.0 MiB"}, {size(300 << 30), "300 GiB"},
		{rate(12 << 20), "12.6 MB/s"}, {rate(schema.Real(nan())), "NaN"},
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(1234567), "1,234,567"},
		{span(0), "0 ms"}, {span(-5), "0 s"}, {span(999), "999 ms"}, {span(1000), "1.0 s"}, {span(9999), "9.9 s"},
		{span(18_400), "18 s"}, {span(119_000), "119 s"},
		{span(200_000), "3m20s"}, {span(7_500_000), "2h05m"}, {span(99 * 3600_000), "4d03h"}, {span(1e15), "11574074d01h"},
		{seconds(0), "–"}, {seconds(0.00042), "420 µs"}, {seconds(0.0123), "12.3 ms"}, {seconds(3), "3.0 s"},
		{seconds(schema.Real(inf())), "+Inf"},
		{percent(0.714), "71 %"}, {loss(nil), "–"}, {loss(real(0.81234)), "0.8123"}, {loss(real(1e-9)), "1e-09"},
		{loss(real(nan())), "NaN"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// Jobs with long names are told apart by the ends of them; of one that has ended it is told when.
func TestJobsRow(t *testing.T) {
	t.Parallel()
	s := running(1)
	ended := s.Jobs[0]
	s.Jobs[0].Name = "recommender-of-things-nightly-2026-11-21-a"
	ended.Name, ended.Phase, ended.EndedMS, ended.AgeMS = "recommender-of-things-nightly-2026-11-21-b", "ended",
		now-300_000, 8_000
	s.Jobs = append(s.Jobs, ended)
	var rows []string
	for _, l := range (Screen{Width: 120}).jobs(s).lines(120) {
		rows = append(rows, strings.TrimSpace(Join([]Line{l}, false)))
	}
	if len(rows) != 3 || !strings.HasPrefix(rows[1], "✓  recommender-of-thi…6-11-21-a  running") ||
		!strings.HasPrefix(rows[2], "✓  recommender-of-thi…6-11-21-b  ended") || !strings.HasSuffix(rows[2], "5m00s ago") {
		t.Errorf("%q", rows)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"", 10, ""}, {"one two", 10, "one two"}, {"one two", 6, "one|two"}, {"one two", 3, "one|two"},
		{"enormous", 5, "enor…"}, {"  a   b ", 9, "a b"},
	} {
		if got := strings.Join(wrap(c.text, c.columns), "|"); got != c.want {
			t.Errorf("wrap(%q, %d) = %q, want %q", c.text, c.columns, got, c.want)
		}
	}
}
