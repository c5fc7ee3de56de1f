package temporary

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder for temporary files that takes nothing, as one that is mounted read-only, is named with the variable that
// names another.
func TestFolder(t *testing.T) {
	of := t.TempDir()
	t.Setenv("TMPDIR", of)
	folder, err := Folder("a purpose")
	if err != nil || filepath.Dir(folder) != of {
		t.Fatalf("%q, %v: want one in %s", folder, err, of)
	}
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", file) // which takes no folder, whoever asks
	_, err = Folder("a purpose")
	for _, want := range []string{"a purpose: ", file, "to have room", "TMPDIR"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}
