package report

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestThousandsAndBytes(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 129949.7: "129,950", 1234567: "1,234,567",
		-1000: "-1,000", -12: "-12"} {
		if got := Thousands(x); got != want {
			t.Errorf("Thousands(%v) = %q, want %q", x, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 12 << 20: "12.0 MiB",
		3 << 40: "3.0 TiB", 1 << 60: "1048576.0 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestAdd(t *testing.T) {
	a := Result{Samples: 1000, Seconds: 2, Loss: 1, LossSamples: 30, BytesSent: 5, BytesReceived: 7, WeightsSHA256: "ab",
		MessagesSent: 2, MessagesReceived: 3, Accuracy: 0.5, Trainers: 2, LanesSkipped: 4}
	b := a
	b.Seconds, b.Loss, b.LossSamples, b.BytesSent, b.Saved = 4, 3, 10, 1, "m.safetensors"
	got, err := Add([]Result{a, b}, true)
	if err != nil {
		t.Fatal(err)
	}
	want := a
	want.Seconds, want.SamplesPerSecond, want.BytesSent, want.BytesReceived, want.Saved = 4, 250, 6, 14, "m.safetensors"
	want.MessagesSent, want.MessagesReceived, want.LanesSkipped = 4, 6, 8
	want.Loss, want.LossSamples = 1.5, 40 // 30 samples of loss 1 and 10 of loss 3
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	b.WeightsSHA256 = "cd"
	if _, err := Add([]Result{a, b}, true); err == nil || !strings.Contains(err.Error(), "different weights: ab and cd") {
		t.Errorf("got %v", err)
	}
	a.WeightsOf, b.WeightsOf = "t0", "t1"
	if got, err := Add([]Result{a, b}, false); err != nil || got.WeightsSHA256 != "ab" || got.WeightsOf != "t0" ||
		got.Samples != a.Samples+b.Samples {
		t.Errorf("where weights may differ: %q of %q, %v; want the first one's", got.WeightsSHA256, got.WeightsOf, err)
	}
	if _, err := Add(nil, true); err == nil {
		t.Error("accepted nothing")
	}
}

func TestEvents(t *testing.T) {
	missing := 1
	var out bytes.Buffer
	all := []Event{{Waiting: &missing}, {Progress: &Progress{Batch: 3, Batches: 9, Loss: 1.5}},
		{Result: &Result{Job: "packages"}}}
	for _, e := range all {
		if err := e.Write(&out); err != nil {
			t.Fatal(err)
		}
	}
	lines := bytes.Split(bytes.TrimSuffix(out.Bytes(), []byte("\n")), []byte("\n"))
	if len(lines) != len(all) {
		t.Fatalf("%d lines, want %d", len(lines), len(all))
	}
	for i, line := range lines {
		if got, err := ParseEvent(line); err != nil || !reflect.DeepEqual(got, all[i]) {
			t.Errorf("%s: got %+v, %v", line, got, err)
		}
	}
	if _, err := ParseEvent([]byte("panic: no")); err == nil {
		t.Error("accepted what is no event")
	}
}

func TestPlain(t *testing.T) {
	var out strings.Builder
	p := Plain{To: &out}
	for b := range uint64(100) {
		p.Show(Progress{Batch: b, Batches: 100, Loss: 2, SamplesPerSecond: 12345})
	}
	p.End()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 21 || lines[0] != "batch 1 of 100  loss 2.0000  12,345 samples/s" ||
		!strings.HasPrefix(lines[20], "batch 100 of 100") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	out.Reset()
	p.Show(Progress{Batch: 0, Batches: 1})
	if !strings.HasPrefix(out.String(), "batch 1 of 1 ") {
		t.Errorf("short run: %q", out.String())
	}
}

func TestResultPrint(t *testing.T) {
	r := Result{Input: "generated", Synthetic: true, Accuracy: 0.85814, TestSamples: 6312, Loss: 0.4, Epochs: 4,
		SamplesPerSecond: 81234,
		Samples:          227000, Seconds: 2.794, BytesSent: 3 << 20, BytesReceived: 512, Trainers: 2, Shards: 1, Lanes: 4,
		Backend:       "cpu avx2",
		WeightsSHA256: "0123", Saved: "m.safetensors"}
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `input      generated (synthetic: this accuracy says nothing about real data)
accuracy   0.8581 on 6,312 test samples
loss       0.4000 in the last of 4 epochs
rate       81,234 samples/s: 227,000 samples in 2.79 s
traffic    3.0 MiB sent, 512 B received
job        2 trainers, 1 shard, 4 lanes, backend cpu avx2
weights    sha256 0123
saved      m.safetensors
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	of := r
	of.WeightsOf, of.LanesSkipped, of.Batches = "t1", 42, 43
	if err := of.Print(&out); err != nil ||
		!strings.Contains(out.String(), "\nskipped    42 lanes of 43 batches, ") ||
		!strings.Contains(out.String(), "\nmoment     the end of trainer t1: others may have trained longer, ") {
		t.Errorf("%v: want skipped lanes, and whose weights these are:\n%s", err, out.String())
	}
	out.Reset()
	if err := of.PrintJSON(&out); err != nil || !strings.Contains(out.String(), `"weights_of":"t1"`) ||
		!strings.Contains(out.String(), `"lanes_skipped":42,`) {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	if err := r.PrintJSON(&out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.HasSuffix(out.String(), "}\n") {
		t.Errorf("%d line ends in %q", n, out.String())
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(out.String()), &fields); err != nil {
		t.Fatal(err)
	}
	if _, ok := fields["weights_of"]; ok {
		t.Errorf("where all end alike, weights are said to be one trainer's: %s", out.String())
	}
	for _, name := range []string{"accuracy", "samples_per_second", "weights_sha256", "bytes_sent", "bytes_received"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no field %s in %s", name, out.String())
		}
	}
}

func TestCompare(t *testing.T) {
	last := Result{LanesSkipped: 7, Time: Time{Keys: 0.5, Rows: 1, Compute: 2, Send: 0.25, Results: 3}}
	c := Compare(Rates{"gradbus (trainers 2, shards 2)", []float64{50000, 90000, 60000}},
		&Rates{"PyTorch (one process)", []float64{100000, 140000}}, last)
	if c.Ratio != 0.5 {
		t.Errorf("ratio %v, want 60000 / 120000", c.Ratio)
	}
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `gradbus (trainers 2, shards 2)   median    60,000 samples/s, runs 50,000 90,000 60,000
PyTorch (one process)            median   120,000 samples/s, runs 100,000 140,000
ratio                            0.50
seconds of a trainer             2.00 computing, 0.25 sending, 1.00 waiting for rows, 3.00 waiting for results, 0.50 finding keys
lanes skipped                    7 of the last run, whose gradients were not finite
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	alone := Compare(Rates{"x", nil}, nil, last)
	if alone.Ratio != 0 || alone.Gradbus.Median() != 0 {
		t.Errorf("got %+v", alone)
	}
}
