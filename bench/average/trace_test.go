package average

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// chrome is what a reader of Chrome's trace format sees.
type chrome struct {
	TraceEvents []struct {
		Name string   `json:"name"`
		Ph   string   `json:"ph"`
		TS   float64  `json:"ts"`
		Dur  *float64 `json:"dur"`
		PID  int      `json:"pid"`
		TID  int      `json:"tid"`
		Args struct {
			Name  string  `json:"name"`
			Batch float64 `json:"batch"`
		} `json:"args"`
	} `json:"traceEvents"`
}

// traced is a span as it was read: names of its process and its track, and its name.
type traced struct {
	process, track, name string
	batch                float64
	from, to             float64
}

func readTrace(t *testing.T, path string) []traced {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c chrome
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	var spans []traced
	for _, e := range c.TraceEvents {
		process, track := fmt.Sprint(e.PID), fmt.Sprintf("%d/%d", e.PID, e.TID)
		switch {
		case e.Ph == "M" && e.Name == "process_name":
			names[process] = e.Args.Name
		case e.Ph == "M" && e.Name == "thread_name":
			names[track] = e.Args.Name
		case e.Ph == "X" && e.Dur != nil && e.TS >= 0 && *e.Dur >= 0:
			spans = append(spans, traced{names[process], names[track], e.Name, e.Args.Batch, e.TS, e.TS + *e.Dur})
		case e.Ph != "M":
			t.Errorf("event %+v: want a complete one, with its time", e)
		}
	}
	return spans
}

// checkNesting wants the spans of each track to follow or to hold each other. Times are read in microseconds, a
// nanosecond is lost in that.
func checkNesting(t *testing.T, spans []traced) {
	t.Helper()
	const lost = 0.002
	for i, a := range spans {
		for _, b := range spans[i+1:] {
			if a.process != b.process || a.track != b.track {
				continue
			}
			apart := a.to <= b.from+lost || b.to <= a.from+lost
			inside := a.from <= b.from+lost && b.to <= a.to+lost || b.from <= a.from+lost && a.to <= b.to+lost
			if !apart && !inside {
				t.Errorf("spans %+v and %+v cut each other", a, b)
			}
		}
	}
}

// The timeline of a run has, in each batch of each trainer, a bucket that is under way while the backward pass goes on,
// and in a run that sends nothing before that is over, none.
func TestTraceShowsOverlap(t *testing.T) {
	for step, overlaps := range map[string]bool{"basic_iteration_step": true, "sequential_iteration_step": false} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := small(t, 2, "rpc", true)
			c.IterationStep, c.Trace, c.FirstBucketBytes, c.BucketBytes = step, filepath.Join(t.TempDir(), "trace.json"), 4096,
				32768
			c.ModelFile = file(t, "model.json",
				`{"num_embeddings": 12, "embedding_dim": 64, "dense_input_size": 64, "dense_output_size": 64, "dense_layers_count": 3, "sparse": true}`)
			found := measure(t, c)
			if err := found.save(&c); err != nil {
				t.Fatal(err)
			}
			spans := readTrace(t, c.Trace)
			checkNesting(t, spans)
			for _, name := range []string{"batch_all", "forward_pass", "backward", "hook_future_metric,rpc_dense",
				"hook_future_metric,rpc_sparse", "send",
				"param_index_batch", "param_index_straggler", "average computation"} {
				if !slices.ContainsFunc(spans, func(s traced) bool { return s.name == name }) {
					t.Errorf("no span %q", name)
				}
			}
			passes := 0
			for _, pass := range spans {
				if pass.name != "backward pass" {
					continue
				}
				passes++
				under := slices.ContainsFunc(spans, func(s traced) bool {
					return s.process == pass.process && s.batch == pass.batch && strings.HasPrefix(s.name, hookFuture) &&
						s.from < pass.to && s.to > pass.from
				})
				if under != overlaps {
					t.Errorf("%s batch %v: a bucket is under way during the backward pass: %v, want %v", pass.process, pass.batch,
						under, overlaps)
				}
			}
			if passes != int(found.Batches) {
				t.Errorf("%d backward passes, want %d", passes, found.Batches)
			}
		})
	}
}

// A cut is seen.
func TestTraceCheckFindsCuts(t *testing.T) {
	inner := &testing.T{}
	checkNesting(inner, []traced{{"p", "t", "a", 0, 0, 2}, {"p", "t", "b", 0, 1, 3}})
	if !inner.Failed() {
		t.Error("two spans that cut each other pass")
	}
}
