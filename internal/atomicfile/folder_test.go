package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFolders(t *testing.T) {
	folder := t.TempDir()
	deep := filepath.Join(folder, "a", "b")
	for range 2 { // also where it is there
		must(t, MakeFolder(deep, 0o777))
	}
	path := filepath.Join(deep, "f")
	must(t, Write(path, 0o600, text("one")))
	for _, under := range []string{path, filepath.Join(path, "c")} {
		if err := MakeFolder(under, 0o777); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v, want that a file is no folder", under, err)
		}
	}
	holds(t, deep, "f")
	must(t, Remove(path))
	holds(t, deep)
	must(t, Write(path, 0o600, text("one")))
	for range 2 { // also where it is not there
		must(t, Remove(filepath.Join(folder, "a")))
	}
	holds(t, folder)
	if os.Getuid() == 0 {
		t.Skip("root writes into any folder")
	}
	must(t, os.Chmod(folder, 0o500))
	defer os.Chmod(folder, 0o700)
	if err := MakeFolder(deep, 0o777); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a folder that may not be written: %v", err)
	}
}

// A folder that cannot be opened is not brought to the disk, and whoever wants that hears of it.
func TestFolderThatCannotBeOpened(t *testing.T) {
	if err := syncFolder(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
