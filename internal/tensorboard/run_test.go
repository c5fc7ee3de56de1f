package tensorboard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

// curves are the points of each tag, as step:value.
func curves(t *testing.T, data []byte) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, r := range records(t, data)[1:] {
		e := fields(t, r)
		for _, value := range fields(t, e[eventSummary][0])[summaryValue] {
			v := fields(t, value)
			x := math.Float32frombits(binary.LittleEndian.Uint32(v[valueSimple][0]))
			tag := text(v[valueTag])
			all[tag] = append(all[tag], fmt.Sprintf("%d:%g", varint(e[eventStep]), x))
		}
	}
	return all
}

// Points are means over the batches since the one before, the first and the last batch always make one.
func TestRun(t *testing.T) {
	t.Parallel()
	d := &disk{room: 1 << 20}
	w := create(t, onDisk(t, d, nil))
	r := NewRun(w)
	norm := 3.0
	asked := 0
	at := func(batch uint64, ms int, samples int, loss float64) {
		r.Batch(Batch{Batch: batch, Last: batch == 4, Samples: samples, SamplesAll: 10, Loss: loss,
			Elapsed: time.Duration(ms) * time.Millisecond,
			Totals: func() Totals {
				asked++
				b := batch + 1
				return Totals{Batches: b, Keys: time.Duration(b) * time.Second, Lookup: 2 * time.Duration(b) * time.Second,
					Compute: 3 * time.Duration(b) * time.Second,
					Send:    4 * time.Duration(b) * time.Second, Result: 5 * time.Duration(b) * time.Second, Norm: &norm,
					NormBatch: batch / 3}
			}})
	}
	at(0, 20, 4, 8)   // the first: a point
	at(1, 60, 1, 4)   // too soon
	at(2, 119, 3, 2)  // too soon
	at(3, 120, 0, 99) // a point of three batches, one of which had no samples of this trainer
	at(4, 121, 2, 1)  // the last
	r.Accuracy(5, 0.5)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		TagLoss: {"1:8", "4:2.5", "5:1"}, TagRate: {"1:500", "4:300", "5:10000"}, TagNorm: {"1:3", "2:3"},
		TagAccuracy: {"5:0.5"},
		TagKeys:     {"1:1", "4:1", "5:1"}, TagLookup: {"1:2", "4:2", "5:2"}, TagCompute: {"1:3", "4:3", "5:3"},
		TagSend: {"1:4", "4:4", "5:4"}, TagResult: {"1:5", "4:5", "5:5"},
	}
	if got := curves(t, d.data); !reflect.DeepEqual(got, want) {
		for _, tag := range slices.Sorted(maps.Keys(want)) {
			t.Errorf("%s: got %v, want %v", tag, got[tag], want[tag])
		}
	}
	if asked != 3 {
		t.Errorf("totals were asked for %d times, want 3", asked)
	}
}

// A loss that is no number is shown as one that is none.
func TestRunNaN(t *testing.T) {
	t.Parallel()
	d := &disk{room: 1 << 20}
	w := create(t, onDisk(t, d, nil))
	NewRun(w).Batch(Batch{Samples: 1, Loss: math.NaN(), Totals: func() Totals { return Totals{} }})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := curves(t, d.data); len(got) != 1 || got[TagLoss][0] != "1:NaN" {
		t.Errorf("got %v", got)
	}
}
