package status

import (
	"math"
	"regexp"
	"slices"
	"testing"

	"gradbus/schema"
)

func TestWords(t *testing.T) {
	for ms, want := range map[int64]string{-5: "0.1 s", 0: "0.1 s", 420: "0.4 s", 1999: "1 s", 17_900: "17 s",
		119_999: "119 s", 120_000: "2 min",
		7_199_000: "119 min", 7_200_000: "2 h", 7_500_000: "2 h 5 min", 172_800_000: "2 days", 1 << 50: "13031248 days"} {
		if got := Ago(ms); got != want {
			t.Errorf("Ago(%d) = %q, want %q", ms, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 1.25: "1.2", 9.96: "10.0", 12: "12", 999: "999", 1000: "1,000",
		12_345.6: "12,346", 1e9: "1,000,000,000",
		-1234: "-1,234", -123: "-123", 1e16: "very many", math.Inf(1): "very many"} {
		if got := Count(f); got != want {
			t.Errorf("Count(%v) = %q, want %q", f, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 0.4123: "0.412", 12.34: "12.3", 1234.5: "1,235", 1e7: "1e+07",
		math.Inf(-1): "infinite", 1e-9: "1e-09"} {
		if got := Figure(f); got != want {
			t.Errorf("Figure(%v) = %q, want %q", f, got, want)
		}
	}
	for bytes, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1.0 MiB", 12 << 30: "12 GiB",
		5 << 50: "5.0 PiB"} {
		if got := Amount(bytes); got != want {
			t.Errorf("Amount(%d) = %q, want %q", bytes, got, want)
		}
	}
	for want, names := range map[string][]string{"none": nil, "a": {"a"}, "a and b": {"a", "b"},
		"a, b, c and d":      {"a", "b", "c", "d"},
		"a, b, c and 2 more": {"a", "b", "c", "d", "e"}} {
		if got := list(names); got != want {
			t.Errorf("list(%q) = %q, want %q", names, got, want)
		}
	}
}

// Every code has what alerts, runbooks and the page need, once.
func TestCodes(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]bool{}
	all := Codes()
	if len(all) < 30 {
		t.Fatalf("%d codes only", len(all))
	}
	for _, c := range all {
		if !form.MatchString(c.Code) || seen[c.Code] {
			t.Errorf("code %q: malformed, or twice", c.Code)
		}
		seen[c.Code] = true
		if c.Runbook != c.Code || c.Title == "" || c.Action == "" || weight(c.Level) == 0 {
			t.Errorf("code %s lacks something: %+v", c.Code, c)
		}
	}
	all[0].Code = "changed"
	if Codes()[0].Code == "changed" {
		t.Error("the table can be changed from outside")
	}
}

// A series has a point a second, and when it is full one every two, then every four: without a gap, and what was not
// told stays so.
func TestSeriesThinsOut(t *testing.T) {
	var s series
	const begin, seconds = 1_700_000_040_000, 4 * 3600
	for i := range int64(seconds) {
		p := Point{AtMS: begin + i*1000, Batch: uint64(i)}
		if i%8 == 0 {
			p.Samples = real(float64(i))
		}
		s.add(p)
		s.add(p) // a second twice counts once
	}
	got := s.after("job", "7", 0)
	if n := len(got.AtMS); got.EveryMS != 4000 || n != pointsMax {
		t.Errorf("%d times, %d ms apart", n, got.EveryMS)
	}
	for i := range got.AtMS {
		if got.AtMS[i] != begin+4000*int64(i) || *got.Columns["batch"][i] != schema.Real(4*i) ||
			(got.Columns["samples"][i] != nil) != (i%2 == 0) || got.Columns["loss"][i] != nil {
			t.Fatalf("point %d at %d: batch %v, samples %v", i, got.AtMS[i]-begin, *got.Columns["batch"][i],
				got.Columns["samples"][i])
		}
	}
	for name, column := range got.Columns {
		if len(column) != len(got.AtMS) {
			t.Errorf("%s has %d values of %d", name, len(column), len(got.AtMS))
		}
	}
	if later := s.after("job", "7", got.AtMS[pointsMax-6]); len(later.AtMS) != 5 {
		t.Errorf("%d times after the sixth last, want 5", len(later.AtMS))
	}
}

// Only the latest events are kept, and serials have no gaps.
func TestEventsAreBounded(t *testing.T) {
	var l eventLog
	if got := l.since(0); len(got) != 0 {
		t.Errorf("%d events of none", len(got))
	}
	for i := range 5 * eventsMax {
		l.add(int64(i), Event{})
		if i%97 != 0 {
			continue
		}
		for _, since := range []uint64{0, l.serial / 2, l.serial - 1, l.serial, l.serial + 9} {
			got := l.since(since)
			want := min(eventsMax, int(l.serial-min(since, l.serial)))
			if len(got) != want {
				t.Fatalf("after %d events %d since %d, want %d", i+1, len(got), since, want)
			}
			for k, e := range got {
				if e.Serial != l.serial-uint64(len(got)-1-k) {
					t.Fatalf("serial %d at %d of %d", e.Serial, k, len(got))
				}
			}
		}
	}
	var again eventLog // of the next process
	again.add(1_700_000_000_000, Event{})
	again.add(1_700_000_000_001, Event{})
	if got := again.since(l.serial); len(got) != 2 || got[0].Serial != 1_700_000_000_001 ||
		got[1].Serial != 1_700_000_000_002 {
		t.Errorf("after a restart those who know of %d are told %+v", l.serial, got)
	}
	if cap(l.kept) > 4*eventsMax {
		t.Errorf("room for %d events", cap(l.kept))
	}
}

// Rates come from the latest ten seconds of one life, by the member's own clock where that runs as ours does.
func TestRates(t *testing.T) {
	var r ring
	at := func(here, there int64, batches float64) {
		s := sample{at: here, clock: there}
		s.totals[cBatches] = batches
		r.add(s, false)
	}
	rate := func(ms int64) float64 {
		sp, ok := r.over(ms)
		if !ok {
			return -1
		}
		return sp.rate(cBatches)
	}
	at(1000, 901_000, 10)
	if got := rate(10_000); got != -1 {
		t.Errorf("a rate of one report: %v", got)
	}
	at(2400, 902_000, 20) // late by 400 ms
	if got := rate(10_000); got != 10 {
		t.Errorf("%v batches/s, want 10", got)
	}
	at(3000, 3_600_903_000, 30) // the clock there was set
	if got := rate(10_000); got != 10 {
		t.Errorf("%v batches/s, want 10 by the clock here", got)
	}
	at(4000, 3_600_904_000, 5) // another life
	if got := rate(10_000); got != -1 {
		t.Errorf("%v batches/s after a restart", got)
	}
	for i := range int64(40) {
		at(5000+i*1000, 3_600_905_000+i*1000, 5+float64(i*i))
	}
	if got := rate(10_000); got != (39*39-29*29)/10. {
		t.Errorf("%v batches/s, want %v of the last ten seconds", got, (39*39-29*29)/10.)
	}
	if got := rate(1_000); got != 39*39-38*38 {
		t.Errorf("%v batches/s of the last second", got)
	}
}

// What is found is told when it has lasted, and is over when that has lasted.
func TestIncidents(t *testing.T) {
	b := newIncidents()
	problem := new(ranking).find(CodeRefusals, "x")
	problem.code.hold, problem.code.linger = 5_000, 15_000
	var log []string
	look := func(now int64, found ...*finding) int {
		there, began, over := b.enter(now, found, func(string) bool { return false })
		for _, e := range began {
			log = append(log, "began "+e.Code)
		}
		for _, e := range over {
			log = append(log, "over "+e.Code)
		}
		return len(there)
	}
	for now, want := int64(1000), 0; now <= 60_000; now += 1000 {
		switch {
		case now == 3000: // it stops for a moment: not long enough yet
			look(now)
			continue
		case now >= 6000 && now < 45_000:
			want = 1
		case now >= 45_000:
			want = 0
		}
		var found []*finding
		if now < 10_000 || now == 20_000 || now == 30_000 {
			found = append(found, problem)
		}
		if got := look(now, found...); got != want {
			t.Fatalf("at %d ms %d problems, want %d", now, got, want)
		}
	}
	if len(log) != 2 || log[0] != "began frames-refused" || log[1] != "over frames-refused" || len(b.entries) != 0 {
		t.Errorf("events %q, %d left", log, len(b.entries))
	}
}

// The worst stands first, and of one level what stands first in the table of codes.
func TestOrderOfFindings(t *testing.T) {
	var j ranking
	j.find(CodeDiskLow, "disk")
	j.find(codeNoProgress, "still")
	j.find(codeGPUDegraded, "gpu")
	j.find(CodeHeldUp, "held").at(Warning)
	j.find(CodeShardUnready, "shard")
	var got []string
	for _, f := range slices.SortedFunc(slices.Values(j.found), func(a, b *finding) int { return compareFindings(*a, *b) }) {
		got = append(got, f.Text)
	}
	if want := []string{"shard", "still", "gpu", "held", "disk"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
}

// Losses may be below zero: their sum falls within a life.
func TestLossesBelowZero(t *testing.T) {
	var r ring
	for i := range int64(5) {
		s := sample{at: i * 1000, clock: i * 1000}
		s.totals[cLossSum], s.totals[cBatches] = float64(-i), float64(i)
		r.add(s, false)
	}
	if r.n != 5 {
		t.Errorf("%d samples are of this life, want 5", r.n)
	}
}

// A problem that comes again after it was over, and before that was told, is as old as its return.
func TestProblemsComeAgain(t *testing.T) {
	b := newIncidents()
	wrong := []*finding{new(ranking).find(codeMemory, "short")} // held back for 5 s
	for at := int64(0); at <= 20_000; at += 1000 {
		found := wrong
		if at >= 8_000 && at < 14_000 {
			found = nil
		}
		there, _, _ := b.enter(100_000+at, found, func(string) bool { return false })
		since := map[int64]int64{7_000: 100_000, 11_000: 100_000, 12_000: -1, 18_000: -1, 19_000: 114_000}
		want, told := since[at]
		if told && (want < 0) != (len(there) == 0) || want > 0 && len(there) > 0 && there[0].SinceMS != want {
			t.Errorf("after %d s: %+v, want since %d", at/1000, there, want)
		}
	}
}
