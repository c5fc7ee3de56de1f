package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// P6: a wrong bit in what a server computes ends the job with what it was, nothing is saved, and the server, whose
// processor no driver watches, computes nothing more.
func TestWrongBitOnServer(t *testing.T) {
	t.Parallel()
	ps, url, at := page(t, "--verify", "1", "--inject", "bit,after=1s")
	data, model := index(t, 200), filepath.Join(t.TempDir(), "model.safetensors")
	first := start(t, "trainer", long(url, data, "--trainers", "2", "--save", model)...)
	second := start(t, "trainer", long(url, data, "--trainers", "2")...)
	for _, p := range []*process{first, second} {
		p.fails(t, "verification failed", "in block", "gives", "a wrong bit was injected")
	}
	ps.says(t, "a wrong bit was injected")
	if _, err := os.Stat(model); err == nil {
		t.Error("a model was saved")
	}
	poll(t, "the metrics have the mismatch", func() bool {
		_, body := get(t, at+"metrics")
		return strings.Contains(body, "\ngradbus_ps_verify_mismatches_total 1\n") &&
			strings.Contains(body, "\ngradbus_ps_verify_interval_blocks 1\n")
	})
	poll(t, "the page has it, marked", func() bool {
		_, body := get(t, at+"api/v1/status")
		return strings.Contains(body, `"injected":true`) &&
			strings.Contains(body, "optimizer blocks gave other bits (injected) than when computed again")
	})
	start(t, "trainer", short(url, data, "--job", "another")...).fails(t, "this machine computes wrongly: 1 of the",
		"(Injected.)")
}

// So does one in what a trainer computes that keeps the parameters, and the server goes on.
func TestWrongBitOnTrainer(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	data, model := index(t, 200), filepath.Join(t.TempDir(), "model.safetensors")
	first := start(t, "trainer", long(url, data, "--apply", "mean", "--trainers", "2", "--id", "t0", "--save", model)...)
	second := start(t, "trainer", long(url, data, "--apply", "mean", "--trainers", "2", "--id", "t1", "--verify", "1",
		"--inject", "bit,after=1s")...)
	second.fails(t, "verification failed", "in block", "gives", "a wrong bit was injected")
	first.fails(t, "trainer t1 on", "verification failed", "in block", "gives", "a wrong bit was injected")
	if _, err := os.Stat(model); err == nil {
		t.Error("a model was saved")
	}
	start(t, "trainer", short(url, data, "--verify", "1")...).succeeds(t)
}
