package trainer

import (
	"testing"

	"gradbus/cuda"
)

// testBackend is the portable backend: the oracle of the others.
func testBackend(t testing.TB) cuda.Backend {
	t.Helper()
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	return backend
}
