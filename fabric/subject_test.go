package fabric

import (
	"errors"
	"strings"
	"testing"
)

func TestSubjectLiterals(t *testing.T) {
	for _, c := range []struct {
		text string
		want Subject
	}{
		{"gradbus.v1.debian.t3.dense.s0.17.2", At("debian", "t3", KindDense, "s0").WithBucket(17, 2)},
		{"gradbus.v1.debian.s0.mean.all.0.0", At("debian", "s0", KindMean, "all").WithBucket(0, 0)},
		{"gradbus.v1.a-1.t0.lookup.s0.18446744073709551615", At("a-1", "t0", KindLookup, "s0").WithBatch(1<<64 - 1)},
		{"gradbus.v1.j.s1.mean.t2.9.4294967295", At("j", "s1", KindMean, "t2").WithBucket(9, 1<<32-1)},
		{"gradbus.v1.j.j-0123456789ab.ctl.coordinator", At("j", "j-0123456789ab", KindCtl, "coordinator")},
		{"gradbus.v1.j.t0.beat.all", At("j", "t0", KindHeartbeat, "all")},
		{"gradbus.v1.j.t3.module.s0.net", At("j", "t3", "", "s0").OfModule("net")},
		{"gradbus.v1.j.s0.module.t3.0", At("j", "s0", KindModule, "t3").OfModule("0")},
	} {
		if got := c.want.String(); got != c.text {
			t.Errorf("String of %+v: %q, want %q", c.want, got, c.text)
		}
		got, err := ParseSubject(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseSubject(%q) = %+v, %v; want %+v", c.text, got, err, c.want)
		}
		if err := c.want.check(); err != nil {
			t.Errorf("Check of %q: %v", c.text, err)
		}
	}
}

func TestParseSubjectRefuses(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, text := range []string{
		"", "gradbus", "gradbus.v1", "gradbus.v1.", "gradbus.v2.j.t0.ack.s0", "gradbus.v1.j.t0.ack",
		"gradbus.v1..t0.ack.s0", "gradbus.v1...j.t0.ack.s0", "gradbus.v1.j.t0.ack.s0.", "gradbus.v1.j.t0.ack.s0..",
		"gradbus.v1.J.t0.ack.s0", "gradbus.v1.j.t0.ack.s 0", "gradbus.v1.*.t0.ack.s0", "gradbus.v1.j.t0.ack.>",
		"gradbus.v1." + long + ".t0.ack.s0", "gradbus.v1.j.t0.dense.s0.01", "gradbus.v1.j.t0.dense.s0.+1",
		"gradbus.v1.j.t0.dense.s0.-1", "gradbus.v1.j.t0.dense.s0.18446744073709551616", "gradbus.v1.j.t0.dense.s0.1.",
		"gradbus.v1.j.t0.dense.s0.1.4294967296", "gradbus.v1.j.t0.dense.s0.1.2.3", "gradbus.v1.j.t0.dense.s0.1 .2",
		"gradbus.v1.j.t0.dense.s0.x", "gradbus.v1.j\x00.t0.ack.s0", "gradbus.v1.j.t0.ack.s0.99999999999999999999999",
		"gradbus.v1.j.t0.module.s0", "gradbus.v1.j.t0.module.s0.", "gradbus.v1.j.t0.module.s0.Net",
		"gradbus.v1.j.t0.module.s0.net.1",
	} {
		if got, err := ParseSubject(text); !errors.Is(err, ErrSubject) {
			t.Errorf("ParseSubject(%q) = %+v, %v; want ErrSubject", text, got, err)
		}
	}
}

func TestSubjectCheckNamesTheToken(t *testing.T) {
	for want, s := range map[string]Subject{
		`job ""`:          At("", "t0", KindAck, "s0"),
		`sender "T0"`:     At("j", "T0", KindAck, "s0"),
		`kind "a.b"`:      At("j", "t0", "a.b", "s0"),
		`receiver "*"`:    At("j", "t0", KindAck, "*"),
		"without a batch": {Job: "j", From: "t0", Kind: KindMean, To: "all", HasBucket: true},
		`module ""`:       At("j", "t0", KindModule, "s0"),
		`module "Net"`:    At("j", "t0", KindModule, "s0").OfModule("Net"),
		`module "net"`:    At("j", "t0", KindModule, "s0").OfModule("net").WithBatch(1),
		`module "x"`:      {Job: "j", From: "t0", Kind: KindAck, To: "s0", Name: "x"},
	} {
		if err := s.check(); !errors.Is(err, ErrSubject) || !strings.Contains(err.Error(), want) {
			t.Errorf("Check of %+v: %v; want ErrSubject with %q", s, err, want)
		}
	}
}

func TestSubjectAllocations(t *testing.T) {
	s := At("debian", "t3", KindDense, "s0").WithBucket(17, 2)
	text := s.String()
	room := make([]byte, 0, 128)
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseSubject(text) }); n != 0 {
		t.Errorf("ParseSubject allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { room = s.append(room[:0]) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
}

func TestRoutePattern(t *testing.T) {
	for pattern, want := range map[string]lineIndex{
		"gradbus.v1.*.*.*.s0":                   controlLine,
		"gradbus.v1.*.*.*.s0.>":                 resultsLine,
		"gradbus.v1.j.*.ack.t0":                 controlLine,
		"gradbus.v1.*.*.beat.>":                 controlLine,
		"gradbus.v1.*.*.ctl.coordinator":        controlLine,
		"gradbus.v1.*.*.lookup.s0.>":            controlLine,
		"gradbus.v1.j.*.mean.all.>":             resultsLine,
		"gradbus.v1.j.*.dense.s0":               resultsLine,
		"gradbus.v1.j.*.pull.s0":                controlLine,
		"gradbus.v1.j.*.*.*.*.*":                resultsLine,
		"gradbus.v1.>":                          resultsLine,
		Pattern("j", Any, KindRows, "t1", true): resultsLine,
		Pattern("j", Any, KindAck, "t1", false): controlLine,
	} {
		if got, err := routePattern(pattern); err != nil || got != want {
			t.Errorf("routePattern(%q) = %v, %v; want %v", pattern, got, err, want)
		}
	}
	for _, pattern := range []string{"", ">", "*", "gradbus.v1", "foo.bar.j", "gradbus.v1.j.>.ack", "gradbus.v1.j..ack",
		"gradbus.v1.j.T0.ack.s0", "gradbus.v1.a.b.c.d.1.2.3", "gradbus.v1.j.t*.ack.s0"} {
		if _, err := routePattern(pattern); !errors.Is(err, ErrSubject) {
			t.Errorf("routePattern(%q): %v; want ErrSubject", pattern, err)
		}
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("gradbus.v1.debian.t3.dense.s0.17.2")
	f.Add("gradbus.v1.j.t0.ack.s0")
	f.Add("gradbus.v1.j.t0.module.s0.net")
	f.Add("gradbus.v1.j.t0.lookup.s0.18446744073709551615")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSubject(text)
		if err != nil {
			return
		}
		if err := s.check(); err != nil {
			t.Fatalf("parsed %q, but: %v", text, err)
		}
		if s.String() != text {
			t.Fatalf("parsed %q, which prints as %q", text, s.String())
		}
	})
}
