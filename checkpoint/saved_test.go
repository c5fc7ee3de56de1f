package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/internal/safetensors"
	"gradbus/schema"
)

const savedDir = "testdata/saved" // checkpoints of an earlier build

// Checkpoints of every kind that an earlier build wrote verify, and are exported to models with the digests of that
// build.
func TestSavedByAnEarlierBuild(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(savedDir, "digests.txt"))
	must(t, err)
	kinds := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		kinds++
		fields := strings.Fields(line)
		t.Run(fields[0], func(t *testing.T) {
			found, err := List(savedDir, schema.JobName(fields[0]))
			must(t, err)
			for _, f := range found {
				must(t, f.Err)
				must(t, f.Manifest.Verify(savedDir))
			}
			path := filepath.Join(t.TempDir(), "model")
			must(t, found[0].Manifest.Export(savedDir, path))
			metadata, _, err := safetensors.Load(path,
				func(map[string]string, map[string]safetensors.Tensor) error { return nil })
			must(t, err)
			modules := metadata["gradbus.modules"]
			if modules == "" {
				modules = "-"
			}
			if got, want := []string{metadata["gradbus.version"], metadata["gradbus.digest"], modules},
				[]string{fields[1], fields[2], fields[5]}; strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("version and digests %q, want %q", got, want)
			}
		})
	}
	if jobs, err := Jobs(savedDir); err != nil || len(jobs) != kinds {
		t.Errorf("%d kinds with digests, %d with checkpoints: %v", kinds, len(jobs), err)
	}
}
