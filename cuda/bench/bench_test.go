package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/philox"
)

// Small sizes by hand.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct{ got, want int64 }{
		// 3 ids and 3 offsets of 8 bytes; 2 distinct rows and 2 bags of 2 floats.
		"bag_forward": {bagForwardBytes(3, 2, 2, 2, 4), 6*8 + 4*2*4},
		// The same, and the 2 distinct ids.
		"bag_backward": {bagBackwardBytes(3, 2, 2, 2, 4), 8*8 + 4*2*4},
		// 3 keys in, 2 out; 3 rows in, 2 out.
		"coalesce": {coalesceBytes(3, 2, 2, 4), 5*8 + 5*2*4},
		// 3 index entries; gradient, table in and out, momentum in and out of 3 rows.
		"apply_rows": {applyRowsBytes(3, 2, 4, 1), 3*8 + 5*3*2*4},
		// 3 keys, 3 gradient rows; table and momentum in and out of 2 rows.
		"coalesce_apply":       {coalesceApplyBytes(3, 2, 2, 4, 1), 3*8 + 3*2*4 + 4*2*2*4},
		"apply_dense":          {applyDenseBytes(10, 4, 1), 5 * 10 * 4},
		"apply_dense, no slot": {applyDenseBytes(10, 4, 0), 3 * 10 * 4},
		"average":              {averageBytes(8, 10, 4), 9 * 10 * 4},
		"average_apply":        {averageApplyBytes(8, 10, 4, 1), 12 * 10 * 4},
		"16 bits":              {averageBytes(8, 10, 2), 9 * 10 * 2},
		// 2048 bags of 150 rows of 128, were all distinct: 161 MB.
		"a large table": {bagForwardBytes(307200, 307200, 2048, 128, 4), 160_808_968},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, c.got, c.want)
		}
	}
}

// Every rank comes up as often as its probability says, within five standard deviations.
func TestZipfFrequencies(t *testing.T) {
	const n, draws = 50, 200_000
	z := newZipf(n, philox.New(seed, "test", 0, 0, 0))
	counts := make([]float64, n+1)
	for range draws {
		counts[z.rank()]++
	}
	total := 0.0
	for k := 1; k <= n; k++ {
		total += bar(float64(k))
	}
	for k := 1; k <= n; k++ {
		p := bar(float64(k)) / total
		if off := math.Abs(counts[k] - draws*p); off > 5*math.Sqrt(draws*p*(1-p)) {
			t.Errorf("rank %d came up %v times, want about %.0f", k, counts[k], draws*p)
		}
	}
}

func TestZipfOfOne(t *testing.T) {
	z := newZipf(1, philox.New(seed, "test", 0, 0, 0))
	for range 100 {
		if k := z.rank(); k != 1 {
			t.Fatalf("rank %d of 1", k)
		}
	}
}

func TestDraw(t *testing.T) {
	var d idSource
	for _, kind := range []string{idsUniform, idsZipf} {
		a, b := d.draw(10_000, 1000, kind, 0), new(idSource).draw(10_000, 1000, kind, 0)
		if !slices.Equal(a, b) {
			t.Errorf("%s: two draws differ", kind)
		}
		if slices.Equal(a, d.draw(10_000, 1000, kind, 1)) {
			t.Errorf("%s: two streams are equal", kind)
		}
		if low, high := slices.Min(a), slices.Max(a); low < 0 || high >= 1000 {
			t.Errorf("%s: ids from %d to %d", kind, low, high)
		}
	}
	uniform, skewed := distinct(d.draw(10_000, 1000, idsUniform, 0), 1000),
		distinct(d.draw(10_000, 1000, idsZipf, 0), 1000)
	if uniform < 990 || skewed > 950 || skewed < 300 {
		t.Errorf("%d distinct uniform ids and %d Zipf ones", uniform, skewed)
	}
	if n := distinct([]int64{5, 63, 64, 5, 64}, 65); n != 3 {
		t.Errorf("%d distinct, want 3", n)
	}
	for shift, want := range map[uint64][]int64{0: {0, 2, 5, 7}, 1: {1, 3, 6, 8}, 2: {0, 2, 5, 7}} {
		if got := ascending(4, 10, shift); !slices.Equal(got, want) {
			t.Errorf("ascending, shift %d: %v, want %v", shift, got, want)
		}
	}
}

func TestHalf(t *testing.T) {
	for _, bits := range []uint16{0, 0xffff, 0x7c00, 0x7f80, 0x8000} {
		if h := half(bits); h&0x7c00 == 0x7c00 || h&0x7f80 == 0x7f80 || h&0x7fff > 0x3fff {
			t.Errorf("half(%#x) = %#x", bits, h)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		e    effort
		s    []float64
		want float64
		runs int
	}{
		{effort{atLeast: 3, atMost: 9}, []float64{9, 1, 2}, 2, 3},
		{effort{atLeast: 4, atMost: 9}, []float64{9, 1, 2, 4}, 3, 4},
		{effort{atLeast: 1, atMost: 3, time: 1e15}, []float64{9, 1, 2}, 2, 3},
	} {
		at := -1
		got, runs, err := c.e.median(func() (float64, error) { at++; return c.s[at], nil })
		if got != c.want || runs != c.runs || err != nil {
			t.Errorf("%v: median %v of %d runs, error %v", c.s, got, runs, err)
		}
	}
	if _, _, err := (effort{atLeast: 1}).median(func() (float64, error) { return 0, io.EOF }); err != io.EOF {
		t.Errorf("error %v", err)
	}
}

// The better streaming rate is the measure, and each stream is listed once.
func TestWithShares(t *testing.T) {
	all, err := withShares([]Result{
		{Op: opRead, Bytes: 1e9, Seconds: 1}, {Op: opCopy, Bytes: 8e9, Seconds: 2}, {Op: "x", Bytes: 1e9, Seconds: 0.5},
		{Op: opRead, Bytes: 2e9, Seconds: 1}, {Op: opCopy, Bytes: 6e9, Seconds: 2},
	})
	if err != nil || len(all) != 3 || all[0].GBPerSecond != 2 || all[1].GBPerSecond != 4 || all[2].ShareOfStream != 0.5 ||
		all[1].ShareOfStream != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := withShares(nil); err == nil {
		t.Error("shares of nothing")
	}
}

// A small one of every operation, in both forms: called, and queued on a stream where the build has the emulated
// device.
func TestMeasure(t *testing.T) {
	for _, name := range []string{"go", "auto", "emu"} {
		b, err := cuda.Open(cuda.Options{Name: name})
		if err != nil && name == "emu" {
			t.Logf("the queued form is not tested here: %v", err)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { measureSmall(t, b) })
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func measureSmall(t *testing.T, b cuda.Backend) {
	m, err := newMachine(b)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{machine: m, quick: true, effort: effort{atLeast: 1, atMost: 1}}
	defer l.close()
	for _, s := range append(streams(true), plan(true)...) {
		s.rows, s.dim, s.bags, s.length, s.n = min(s.rows, 50), min(s.dim, 4), min(s.bags, 6), min(s.length, 3), min(s.n, 40)
		r, err := l.measure(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
		} else if r.Seconds <= 0 || r.Bytes <= 0 || r.Runs != 1 {
			t.Errorf("%s: %+v", s, r)
		}
	}
	if len(l.used) > 0 {
		t.Errorf("%d vectors were not freed", len(l.used))
	}
}

// The quick run: every operation is measured once, and its JSON is one line with the promised names.
func TestRunQuick(t *testing.T) {
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	runQuick(t, b)
}

func runQuick(t *testing.T, b cuda.Backend) {
	ops := []string{"bag_forward", "coalesce_apply", "average_apply"}
	all, err := Run(context.Background(), Config{Backend: b, Quick: true, Ops: ops, Progress: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := PrintJSON(&out, all); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.HasSuffix(out.String(), "]\n") {
		t.Errorf("%d lines of JSON: %s", n, out.String())
	}
	var read []map[string]any
	if err := json.Unmarshal(out.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range read {
		for _, name := range []string{"op", "backend", "isa", "threads", "dim", "seconds", "bytes", "gb_per_second",
			"share_of_stream"} {
			if _, ok := r[name]; !ok {
				t.Errorf("%v has no %s", r, name)
			}
		}
		if r["seconds"].(float64) <= 0 || r["bytes"].(float64) <= 0 || r["quick"] != true {
			t.Errorf("%v", r)
		}
		seen[r["op"].(string)] = true
	}
	for _, op := range append([]string{opRead, opCopy}, ops...) {
		if !seen[op] {
			t.Errorf("%s was not measured", op)
		}
	}
	out.Reset()
	if err := Print(&out, all); err != nil || !strings.Contains(out.String(), "coalesce_apply") ||
		!strings.Contains(out.String(), "quick") {
		t.Errorf("table %q, %v", out.String(), err)
	}
}

func TestUnknownOperation(t *testing.T) {
	if _, err := Run(context.Background(), Config{Ops: []string{"bag"}}); err == nil ||
		!strings.Contains(err.Error(), "bag_forward") {
		t.Errorf("got %v", err)
	}
}

// All operations are planned, every one small enough for 24 GB.
func TestPlan(t *testing.T) {
	for _, quick := range []bool{true, false} {
		for _, s := range plan(quick) {
			if bytes := int64(s.rows) * int64(s.dim) * 4; bytes > 11e9 {
				t.Errorf("%s: a table of %d bytes", s, bytes)
			}
		}
	}
	if len(Ops()) != 9 {
		t.Errorf("operations %q", Ops())
	}
}
