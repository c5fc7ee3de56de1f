package average

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gradbus/bench/harness/harnesstest"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(testRoles())
	os.Exit(m.Run())
}

// small is a system of a few thousand values: 2 linear layers on rows of 8, 22 samples in batches of 4, the last of 2.
// Its rate is large enough for every weight to move, where the gradients of two softmaxes would leave the bits alone.
func small(t *testing.T, trainers int, hook string, sparse bool) Config {
	t.Helper()
	c := DefaultConfig()
	c.Trainers, c.Hook, c.Sparse, c.BatchSize, c.LR, c.InProcess, c.Timeout = trainers, hook, &sparse, 4, 500, true,
		10*time.Minute
	c.ModelFile = file(t, "model.json",
		`{"num_embeddings": 12, "embedding_dim": 8, "dense_input_size": 8, "dense_output_size": 8, "dense_layers_count": 2, "sparse": false}`)
	c.DataFile = file(t, "data.json", `{"max_val": 8, "sample_count": 22, "sample_length": 5, "sparsity_percentage": 20}`)
	return c
}

// file writes a file of a test's own.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func measure(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Measure(testContext(t), c, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
