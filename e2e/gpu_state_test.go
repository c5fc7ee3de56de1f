package e2e

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gradbus/internal/gpu/fake"
)

// A GPU that broke is not taken by the next ps, until somebody acknowledges it: by a command, of which those that run
// notice.
func TestGPUAcknowledge(t *testing.T) {
	t.Parallel()
	library := fake.Build(t)
	library.Set("count 2\n%s\n%s", fake.Healthy(0), fake.Healthy(1))
	state := filepath.Join(t.TempDir(), "gradbus", "gpus.json")
	flags := []string{"--gpu-library", library.Path, "--gpu-state", state, "--log-format", "text"}
	ps, _ := server(t, flags...)
	ps.says(t, "to=healthy")
	ps.says(t, `msg="no GPU is used" reason=`)
	if _, err := os.Stat(filepath.Dir(state)); err == nil {
		t.Error("something is remembered although nothing was wrong")
	}
	library.XID(0, 79)
	ps.says(t, "XID 79")
	ps.signal(t, syscall.SIGINT)
	ps.succeeds(t)
	library.Unset("xid ")

	start(t, "ps", append(flags, "--listen", "127.0.0.1:0", "--http", "off", "--gpu-use", "0")...).fails(t,
		"take a GPU: GPU 0", "XID 79", "ps gpu-ack --gpu-state "+state+" 0")
	listed := start(t, "ps", "gpu-ack", "--gpu-state", state)
	listed.succeeds(t)
	if out := listed.stdout.String(); !strings.HasPrefix(out, "GPU 0 GPU-fake-0 (Fake GPU)\n  unhealthy since 2") ||
		!strings.HasSuffix(out, "\n  When that is done: "+listed.Path+" gpu-ack --gpu-state "+state+" 0\n") {
		t.Errorf("listed %q", out)
	}
	doctor := start(t, "ps", append([]string{"doctor"}, flags[:4]...)...)
	doctor.exits(t, 2)
	if out := doctor.stdout.String(); !strings.Contains(out, "XID 79") ||
		!strings.Contains(out, "wrong with 1 of them is remembered in") {
		t.Errorf("doctor says %q", out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"1"}, `GPU "1", of those of which something is remembered in ` + state + ": want one of 0 (GPU-fake-0)"},
		{[]string{"GPU-none"}, "of those of which something is remembered"},
		{[]string{"0", "--gpu-state", "off"}, "gpu-state off: want a file"},
	} {
		start(t, "ps", append([]string{"gpu-ack", "--gpu-state", state}, c.args...)...).fails(t, c.want)
	}
	// as on a full disk
	within(t, 0, "ps", "gpu-ack", "--gpu-state", state, "0").fails(t, "acknowledge GPUs in "+state, "too large")
	if files := left(t, filepath.Dir(state)); len(files) != 2 {
		t.Errorf("a full disk has left %q: want the file and its lock", files)
	}

	beside, _ := server(t, flags...) // watches it, and does not use it
	beside.says(t, "XID 79")
	acknowledged := start(t, "ps", "gpu-ack", "--gpu-state", state, "gpu-fake-0")
	acknowledged.succeeds(t)
	if out := acknowledged.stdout.String(); out != "GPU 0 GPU-fake-0 (Fake GPU): acknowledged xid-79, XID 79: the GPU "+
		"has fallen off the bus\n" {
		t.Errorf("printed %q", out)
	}
	beside.says(t, "What was wrong has been acknowledged.")
	server(t, append(flags, "--gpu-use", "0")...)
	start(t, "ps", "gpu-ack", "--gpu-state", state, "all").succeeds(t)
}

// A file that cannot be read stops no work, and is told in the log and by doctor.
func TestGPUStateDamaged(t *testing.T) {
	t.Parallel()
	library := fake.Build(t)
	library.Set("%s", fake.Healthy(0))
	state := filepath.Join(t.TempDir(), "gpus.json")
	const newer = `{"version":99}`
	if err := os.WriteFile(state, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--gpu-library", library.Path, "--gpu-state", state}
	ps, _, _ := page(t, append(flags, "--log-format", "text")...)
	ps.says(t, "the file is damaged or of another version")
	doctor := start(t, "ps", append([]string{"doctor", "--json"}, flags...)...)
	if doctor.status(t); !strings.Contains(doctor.stdout.String(),
		"cannot be remembered: "+state+": the file is damaged or of another version") {
		t.Errorf("doctor says %s", doctor.stdout.String())
	}
	start(t, "ps", "gpu-ack", "--gpu-state", state, "all").fails(t, "the file is damaged or of another version")
	if data, err := os.ReadFile(state); err != nil || string(data) != newer {
		t.Errorf("it was changed: %q, %v", data, err)
	}
}

// What was trained while the GPU's memory went wrong is saved, and says so; whoever asks the model is warned.
func TestSuspectModel(t *testing.T) {
	t.Parallel()
	library := fake.Build(t)
	library.Set("%s", fake.Healthy(0))
	_, url := server(t)
	data, model := index(t, 200), filepath.Join(t.TempDir(), "m.safetensors")
	job := func(id string, more ...string) *process {
		return start(t, "trainer",
			append(short(url, data, "--trainers", "2", "--id", id, "--log-format", "text", "--log-level", "debug"), more...)...)
	}
	p := job("t0", "--json", "--save", model, "--gpu-use", "0", "--gpu-library", library.Path, "--gpu-state",
		filepath.Join(t.TempDir(), "gpus.json"))
	p.says(t, "to=healthy")
	// the next sample comes when it is let through, and tells of errors then
	library.Set("wait nvmlDeviceGetTemperature *")
	poll(t, "a sample that waits", library.Waiting)
	library.Set("set ecc_uncorrected 0 3")
	job("t1").succeeds(t)
	p.says(t, "asking the GPU whether its memory was sound")
	library.Unset("wait ")
	p.succeeds(t)
	r := p.result(t)
	// A sample that takes five seconds from here is not waited for, and leaves as much doubt.
	if !strings.Contains(r.Suspect, "Memory of GPU 0 (GPU-fake-0) was faulty during the run: 3 memory errors") &&
		!strings.Contains(r.Suspect, "GPU 0 (GPU-fake-0) has not answered since") {
		t.Errorf("the model is not suspect: %+v", r)
	}
	asked := start(t, "trainer", "packages", "--load", model, "--predict", "x")
	asked.succeeds(t)
	if note := asked.stderr.String(); !strings.Contains(note, "this model may be wrong, and should be trained again: "+
		r.Suspect) {
		t.Errorf("said %q", note)
	}
}

// The commands bind the driver's functions when they are first called, as built: linked with -z now they would not
// start where one is missing.
func TestCommandsBindLazily(t *testing.T) {
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ps", "trainer"} {
		file, err := elf.Open(filepath.Join(binaries, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for tag, bit := range map[elf.DynTag]uint64{elf.DT_FLAGS: uint64(elf.DF_BIND_NOW),
			elf.DT_FLAGS_1: uint64(elf.DF_1_NOW)} {
			values, err := file.DynValue(tag)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				if v&bit != 0 {
					t.Errorf("%s is linked with -z now: %v is %s", name, tag, strconv.FormatUint(v, 2))
				}
			}
		}
	}
}
