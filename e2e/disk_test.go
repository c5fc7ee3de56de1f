package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// within starts bin/NAME where no file can grow beyond a number of blocks of 512 bytes, as on a disk that is full: what
// is written beyond fails.
func within(t *testing.T, blocks int, name string, args ...string) *process {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	script := "ulimit -f " + strconv.Itoa(blocks) + ` && exec "$@"`
	return startCommand(t, name,
		exec.Command("/bin/sh", append([]string{"-c", script, "sh", filepath.Join(binaries, name)}, args...)...))
}

// left are the files in a folder and below.
func left(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A model that does not fit is an error, and no part of one is left that looks like a model.
func TestSaveOnFullDisk(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	dir := t.TempDir()
	p := within(t, 2, "trainer", short(url, index(t, 200), "--save", filepath.Join(dir, "m.safetensors"))...)
	p.fails(t, "save model", "too large")
	if files := left(t, dir); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

// It ends that trainer alone: the other one of the trained job saves its own.
func TestTrainedJobOutlivesAFullDisk(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	data, dir := index(t, 200), t.TempDir()
	two := func(to string) []string {
		return short(url, data, "--trainers", "2", "--save", filepath.Join(dir, to), "--json")
	}
	full, other := within(t, 2, "trainer", two("full")...), start(t, "trainer", two("whole")...)
	full.fails(t, "save model", "too large")
	other.succeeds(t)
	if saved := other.result(t).Saved; saved == "" || !slices.Equal(left(t, dir), []string{saved}) {
		t.Errorf("saved %q, and there are %v", saved, left(t, dir))
	}
}

// So is an address that nobody could read.
func TestPortFileOnFullDisk(t *testing.T) {
	for _, flag := range []string{"--port-file", "--http-port-file"} {
		dir := t.TempDir()
		p := within(t, 0, "ps", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", flag, filepath.Join(dir, "file"))
		p.fails(t, "address", "too large")
		if files := left(t, dir); len(files) > 0 {
			t.Errorf("%s: left behind: %v", flag, files)
		}
	}
}

// Curves that cannot be written are an error before the training, and a warning during it.
func TestTensorBoardOnFullDisk(t *testing.T) {
	_, url := server(t)
	data := index(t, 200)
	dir := t.TempDir()
	p := within(t, 0, "trainer", short(url, data, "--tensorboard", dir)...)
	p.fails(t, "tensorboard "+dir+": cannot be written", "too large")
	if strings.Contains(p.stderr.String(), "batch 1 of") || len(left(t, dir)) > 0 {
		t.Errorf("it trained, or left %v behind", left(t, dir))
	}
	// The file's first record fits, and the manifest does not.
	p = within(t, 1, "trainer", short(url, data, "--tensorboard", dir, "--json")...)
	p.succeeds(t)
	p.result(t)
	said := p.stderr.String()
	if n := strings.Count(said, "events for TensorBoard are not written"); n != 1 ||
		!strings.Contains(said, "the curves of this run have gaps") || !strings.Contains(said, "too large") {
		t.Errorf("%d warnings, want one, and what is lost at the end:\n%s", n, said)
	}
	if files := left(t, dir); len(files) != 1 {
		t.Errorf("files %v, want one", files)
	}
}

// Each trainer writes a file of its own, and what one that was started by another logs is handed on.
func TestTensorBoard(t *testing.T) {
	_, url := server(t)
	dir := t.TempDir()
	start(t, "trainer", short(url, index(t, 200), "--spawn", "--trainers", "2", "--tensorboard",
		filepath.Join(dir, "runs"))...).succeeds(t)
	files := left(t, dir)
	if len(files) != 2 || filepath.Base(filepath.Dir(files[0])) != "t0" || filepath.Base(filepath.Dir(files[1])) != "t1" {
		t.Fatalf("files %v, want one of t0 and one of t1", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range []string{"brain.Event:2", "loss", "samples_per_second", "phase_seconds/compute", "accuracy",
			"manifest"} {
			if !strings.Contains(string(text), tag) {
				t.Errorf("%s: no %s", file, tag)
			}
		}
	}
	p := within(t, 1, "trainer", short(url, index(t, 200), "--spawn", "--trainers", "2", "--tensorboard",
		filepath.Join(dir, "full"))...)
	p.succeeds(t)
	for _, member := range []string{`"member":"t0"`, `"member":"t1"`} {
		if said := p.stderr.String(); !strings.Contains(said, "are not written") || !strings.Contains(said, member) {
			t.Errorf("the warning of %s was not handed on:\n%s", member, said)
		}
	}
	occupied := filepath.Join(dir, "file")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "trainer", short(url, index(t, 200), "--tensorboard", occupied)...).fails(t,
		"tensorboard "+occupied+": cannot be written", "not a directory")
}
