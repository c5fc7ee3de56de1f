package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/rendered.md")

// kept puts the two runs of testdata below their own names into a folder, as keep leaves them.
func kept(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	for from, name := range map[string]string{"earlier.json": "nvidia-test-2026-01-02.json",
		"later.json": "nvidia-test-2026-02-03.json", "predicted.json": "predicted.json"} {
		copyFile(t, filepath.Join("testdata", from), filepath.Join(to, name))
	}
	return to
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Predicted, measured, last time and changes of more than 5 %, of the newest of two runs.
func TestRender(t *testing.T) {
	all, err := load(kept(t))
	if err != nil {
		t.Fatal(err)
	}
	got, golden := all.render(), filepath.Join("testdata", "rendered.md")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("rendered:\n%s\nwant:\n%s", got, want)
	}
}

// The document has what is kept.
func TestDocument(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	all, err := load(folder)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want, err := insert(text, all.render())
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(text) {
		t.Errorf("%s differs from what %s has: go run ./bench/gpu", document, folder)
	}
}

// What does not fit is one error, which names the file and the place.
func TestValidate(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "earlier.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"phase": "fast"`, `"phase": "quick"`, `phase "quick": want right, fast, whole`},
		{`"card": "NVIDIA Test"`, `"card": ""`, "no GPU was found"},
		{`"commit": "0123456789abcdef"`, `"commit": ""`, "commit is empty"},
		{`"date": "2026-01-02T03:04:05Z"`, `"date": "yesterday"`, "yesterday"},
		{`"date": "2026-01-02T03:04:05Z"`, `"date": "2026-01-03T03:04:05Z"`, "belong into nvidia-test-2026-01-03.json"},
		{`"status": "ok"`, `"status": "fine"`, `step "kernels": status "fine": want ok, failed, skipped`},
		{`"status": "ok"`, `"status": "failed"`, "want a reason"},
		{`"name": "slower"`, `"name": "a|b"`, `figure "a|b"`},
		{`"name": "slower"`, `"name": "faster"`, `figure "faster": it is there twice`},
		{`"value": 1.0`, `"value": 1.0, "low": 2, "high": 3`, `figure "slower": want low and high`},
		{`"value": 1.0`, `"value": NaN`, "invalid character"},
		{`"value": 1.0`, `"valve": 1.0`, `unknown field "valve"`},
		{`"unit": "us"`, `"unit": ""`, `figure "another unit": unit is empty`},
		{"]}]}\n]", "]}]}\n][]", "more than one JSON value"},
	} {
		path := filepath.Join(t.TempDir(), "nvidia-test-2026-01-02.json")
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Fatalf("testdata has no %s", c.old)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readKept(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one error of %s that says %q", c.new, err, path, c.want)
		}
	}
}

// A phase that is run again replaces itself alone, and the document follows.
func TestKeep(t *testing.T) {
	var phases []phase
	if err := decode(filepath.Join("testdata", "later.json"), &phases); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	out := filepath.Join(root, "out")
	for _, folder := range []string{out, filepath.Join(root, folder), filepath.Join(root, "docs")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	if err := os.WriteFile(document, []byte("before\n"+sectionBegin+"old\n"+sectionEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const nothing = "none of right.json, fast.json, whole.json"
	if err := run([]string{out}, io.Discard); err == nil || !strings.Contains(err.Error(), nothing) {
		t.Errorf("an empty folder: %v", err)
	}
	for _, p := range phases {
		writeJSON(t, filepath.Join(out, p.Phase+".json"), p)
		if err := run([]string{out}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(out, p.Phase+".json")); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readKept(filepath.Join(folder, "nvidia-test-2026-02-03.json"))
	if err != nil || len(got) != 2 || got[0].Phase != "right" || got[1].Phase != "fast" {
		t.Errorf("kept %+v, %v", got, err)
	}
	text, err := os.ReadFile(document)
	if err != nil || !strings.HasPrefix(string(text), "before\n"+sectionBegin+"\n#### NVIDIA Test, 3 February 2026\n") ||
		!strings.HasSuffix(string(text), "\n"+sectionEnd+"after\n") {
		t.Errorf("%s: %s, %v", document, text, err)
	}
	phases[0].Emulated = true
	writeJSON(t, filepath.Join(out, "right.json"), phases[0])
	if err := run([]string{out}, io.Discard); err == nil || !strings.Contains(err.Error(), "emulated device") {
		t.Errorf("a phase of the emulated device: %v", err)
	}
}

func writeJSON(t *testing.T, path string, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The runner's own tests; and what it writes is what is read here, also of a step that fails and of one that hangs.
func TestRunner(t *testing.T) {
	out := t.TempDir()
	command := exec.Command("python3", "-B", filepath.Join("..", "..", "scripts", "gpu", "test_gpu.py"), out)
	text, err := command.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no python3")
	} else if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	p, err := readPhase(filepath.Join(out, "right.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"good": statusOK, "wrong": statusFailed, "hangs": statusFailed, "unbuilt": statusSkipped,
		"defect": statusFailed, "last": statusOK, "unchosen": statusSkipped}
	for _, s := range p.Steps {
		if s.Status != want[s.Name] {
			t.Errorf("step %s is %s (%s), want %s", s.Name, s.Status, s.Reason, want[s.Name])
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("no steps %v", want)
	}
	if _, err := os.Stat(filepath.Join(out, "right.log")); errors.Is(err, fs.ErrNotExist) {
		t.Error("no log")
	}
}

// A prediction that names no phase would never be shown.
func TestPredictedOfNoPhase(t *testing.T) {
	for _, key := range []string{"fast/kernels", "quick/kernels/copy", ""} {
		err := predicted{"NVIDIA Test": {key: 1}}.validate()
		if err == nil || !strings.Contains(err.Error(), "PHASE/STEP/NAME") {
			t.Errorf("%q: %v", key, err)
		}
	}
}
