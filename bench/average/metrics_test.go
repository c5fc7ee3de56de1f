package average

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTableByHand(t *testing.T) {
	m := metrics{}
	for _, d := range []time.Duration{1, 2, 6} {
		m.add("b,two", d*time.Millisecond)
	}
	m.add("a,one", 1500*time.Microsecond)
	got := m.table()
	if len(got) != 2 || got[0].Name != "a,one" || !math.IsNaN(got[0].Variance) || !math.IsNaN(got[0].Stdev) {
		t.Fatalf("table %+v", got)
	}
	if r := got[1]; r != (Row{"b,two", 1, 6, 3, 7, math.Sqrt(7)}) { // (4 + 1 + 9) / 2
		t.Errorf("row %+v", r)
	}
	var out bytes.Buffer
	if err := got.print(&out, "metrics for trainer=0 (ms)"); err != nil {
		t.Fatal(err)
	}
	want := `metrics for trainer=0 (ms)
+-------+--------+--------+--------+----------+--------+
| name  |    min |    max |   mean | variance |  stdev |
+=======+========+========+========+==========+========+
| a,one | 1.5000 | 1.5000 | 1.5000 |        - |      - |
+-------+--------+--------+--------+----------+--------+
| b,two | 1.0000 | 6.0000 | 3.0000 |   7.0000 | 2.6458 |
+-------+--------+--------+--------+----------+--------+
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestMerged(t *testing.T) {
	got := merged([]metrics{{"a": {1}, "b": {2}}, {"a": {3, 4}}})
	if !slices.Equal(got["a"], []float64{1, 3, 4}) || !slices.Equal(got["b"], []float64{2}) {
		t.Errorf("merged %v", got)
	}
}

func TestDiff(t *testing.T) {
	folder := t.TempDir()
	a, b, out := filepath.Join(folder, "a.csv"), filepath.Join(folder, "b.csv"), filepath.Join(folder, "diff.csv")
	for path, m := range map[string]metrics{a: {"x,y": {3, 5}, "only,a": {1}}, b: {"x,y": {1, 2}, "only,b": {1}}} {
		if err := m.table().save(path); err != nil {
			t.Fatal(err)
		}
	}
	var text bytes.Buffer
	if err := DiffFiles(a, b, out, &text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| x,y  | 2.0000 | 3.0000 | 2.5000 |   1.5000 | 0.7071 |", "only in " + a + ": only,a",
		"only in " + b + ": only,b"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("difference has no %q:\n%s", want, text.String())
		}
	}
	saved, err := loadTable(out)
	if want := (Row{"x,y", 2, 3, 2.5, 1.5, math.Sqrt(2) - math.Sqrt(0.5)}); err != nil || len(saved) != 1 ||
		saved[0] != want {
		t.Errorf("saved %+v, %v", saved, err)
	}
	again, err := loadTable(a)
	if err != nil || len(again) != 2 || !math.IsNaN(again[0].Stdev) || again[1] != rowOf("x,y", []float64{3, 5}) {
		t.Errorf("read again %+v, %v", again, err)
	}
}

// A file of the original, as pandas writes one, lines up with what a run of each hook saves, also where what carries
// the gradients has another name.
func TestDiffWithTheOriginal(t *testing.T) {
	const head = "name,min,max,mean,variance,stdev\n"
	for hook, original := range map[string][2]string{
		"allreduce":  {"hook_future_metric,gloo_dense_allreduce", "hook_future_metric,gloo_sparse_allreduce"},
		"hybrid":     {"hook_c10d_metric,gloo_sparse_allreduce", "hook_future_metric,nccl_dense_allreduce"},
		"rpc":        {"hook_future_metric,rpc_dense", "hook_future_metric,rpc_sparse"},
		"sparse-rpc": {"hook_future_metric,nccl_dense_allreduce", "hook_future_metric,rpc_sparse"},
	} {
		c := small(t, 2, hook, true)
		c.CSV = t.TempDir()
		if err := Run(testContext(t), c, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		theirs := map[string][]string{
			"trainer_all.csv": {"backward_metric,backward", "batch_level_metric,batch_all", "forward_metric,forward_pass",
				original[0], original[1]},
			"server_all.csv": {"method_metric,average computation", "parameter_server_batch_metric,param_index_batch",
				"parameter_server_straggler_metric,param_index_straggler"},
		}
		if hook == "allreduce" || hook == "hybrid" {
			delete(theirs, "server_all.csv")
		}
		for name, metrics := range theirs {
			text := head
			for _, m := range metrics {
				text += `"` + m + `",0.11059200018644333,12.5,3.0625,2.25,1.5` + "\n"
			}
			ours, err := loadTable(filepath.Join(c.CSV, name))
			if err != nil {
				t.Fatal(err)
			}
			original, err := loadTable(file(t, name, text))
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(ours, original); len(d.Table) != len(metrics) || len(d.OnlyFirst)+len(d.OnlySecond) != 0 {
				t.Errorf("%s, %s: %d of %d rows line up; only here %q, only there %q", hook, name, len(d.Table), len(metrics),
					d.OnlyFirst, d.OnlySecond)
			}
		}
	}
}

// One row lines up with one, the one of its own name first, and what was taken for another is said.
func TestDiffOfTransports(t *testing.T) {
	rows := func(names ...string) (all Table) {
		for i, n := range names {
			all = append(all, rowOf(n, []float64{float64(i), 7}))
		}
		return all
	}
	const nats, gloo, other = "h,nats_dense_allreduce", "h,gloo_dense_allreduce", "g,gloo_dense_allreduce"
	d := diff(rows(nats), rows(gloo, nats, other))
	if !slices.Equal(d.Other, []string{nats}) || !slices.Equal(d.OnlySecond, []string{gloo, other}) {
		t.Errorf("%+v", d)
	}
	d = diff(rows(nats, gloo), rows(gloo))
	if !slices.Equal(d.Other, []string{gloo}) || !slices.Equal(d.OnlyFirst, []string{nats}) || len(d.OnlySecond) != 0 {
		t.Errorf("%+v", d)
	}
	var out bytes.Buffer
	a, b := file(t, "a.csv", ""), file(t, "b.csv", "")
	for path, table := range map[string]Table{a: rows(nats), b: rows(gloo)} {
		if err := table.save(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := DiffFiles(a, b, "", &out); err != nil || !strings.Contains(out.String(), nats+": less "+gloo+"\n") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestBadTables(t *testing.T) {
	const head = "name,min,max,mean,variance,stdev\n"
	for text, want := range map[string]string{
		"":                         "no metrics: want a CSV file that --csv wrote",
		head:                       "no metrics",
		"a,b\n1,2\n":               `line 1: "a,b": want the columns name,min,max,mean,variance,stdev`,
		head + "a,1,2\n":           "line 2: 3 fields: want 6",
		head + "a,1,2,x,4,5\n":     `line 2: mean "x": want a number, or nothing`,
		head + "\"a,1,2,x,4,5\n":   "line 2",
		head + "a,1,2,3,,\n" + "b": "line 3: 1 fields",
	} {
		_, err := loadTable(file(t, "t.csv", text))
		checkError(t, text, err, want)
	}
	_, err := loadTable("/nowhere.csv")
	checkError(t, "no file", err, `table "/nowhere.csv": want a CSV file that --csv wrote: no such file or directory`)
}

// Results take the place of links, and lead nobody to another's file.
func TestResultsFollowNoLinks(t *testing.T) {
	victim, folder := file(t, "victim", "precious"), t.TempDir()
	table, trace := filepath.Join(folder, "x_all.csv"), filepath.Join(folder, "trace.json")
	for _, path := range []string{table, trace} {
		if err := os.Symlink(victim, path); err != nil {
			t.Fatal(err)
		}
	}
	x := tables{kind: "x", ranks: []int{0}, each: []Table{nil}, all: metrics{"a": {1}}.table()}
	for _, err := range []error{x.save(folder), (&Config{Trace: trace}).checkOutputs(),
		saveTrace(trace, nil)} {
		if err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("another's file holds %q, %v", text, err)
	}
	if _, err := loadTable(table); err != nil {
		t.Error(err)
	}
}
