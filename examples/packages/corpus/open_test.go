//go:build unix

package corpus

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"gradbus/internal/regular"
)

// A pipe would be waited for.
func TestOnlyFilesAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{path, t.TempDir()} {
		if _, err := Load(t.Context(), input); !errors.Is(err, regular.ErrNotRegular) {
			t.Errorf("%s: %v, want that it is no regular file", input, err)
		}
	}
}
