//go:build native

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/cuda"
)

// Every command that computes takes its kernels from the library that it is told, by flag or variable, and so do the
// processes that it starts. A library that cannot be loaded is one clear error.
func TestKernelLibrary(t *testing.T) {
	t.Parallel()
	library := filepath.Join("..", "build", "libgradbus.so")
	absolute, err := filepath.Abs(library)
	if err != nil {
		t.Fatal(err)
	}
	data := index(t, 200)
	want := single(t, data)
	ps, url := server(t, "--kernel-library", library)
	ps.says(t, "kernels of "+absolute)
	job := "packages --lanes 4 --batch 32 --dim 8 --lr 1 --epochs 1 --spawn --trainers 2 --json --log-level info"
	p := startCommand(t, "trainer", variable(library, append(strings.Fields("trainer "+job), "--input", data, "--server",
		url)...))
	p.succeeds(t)
	if got := p.result(t).WeightsSHA256; got != want {
		t.Errorf("weights %s, want %s", got, want)
	}

	none := filepath.Join(t.TempDir(), "none.so")
	doctor := start(t, "ps", "doctor", "--kernel-library", none, "--gpu", "off")
	if status := doctor.status(t); status != 2 || !strings.Contains(doctor.stdout.String(), filepath.Base(none)) {
		t.Errorf("doctor: status %d: %s", status, doctor.stdout.String())
	}
	for _, line := range []string{"ps --listen 127.0.0.1:0", "trainer packages --local --input " + data,
		"trainer packages --spawn --trainers 1 --input " + data + " --server " + url, // a child says it
		"psbench kernels --quick", "psbench update --trainers 1 --batches 1 --warmup 0"} {
		words := strings.Fields(line)
		says := "kernel library " + none + ": "
		start(t, words[0], append(words[1:], "--kernel-library", none)...).fails(t, says)
		startCommand(t, words[0], variable(none, words...)).fails(t, says)
	}
}

// variable is a command that the environment tells its library.
func variable(library string, words ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(binaries, words[0]), words[1:]...)
	c.Env = append(c.Environ(), cuda.LibraryVariable+"="+library)
	return c
}
