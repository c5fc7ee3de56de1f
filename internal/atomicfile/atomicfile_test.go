package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// text is the fill of a file.
func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holds tells whether a folder has these names alone.
func holds(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, want) {
		t.Errorf("%s holds %q, want %q", folder, names, want)
	}
}

func reads(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v, want %q", path, got, err, want)
	}
}

func TestWrite(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "f")
	for _, content := range []string{"", "one", strings.Repeat("two", bufferBytes)} {
		must(t, Check(path))
		must(t, Write(path, 0o640, text(content)))
		reads(t, path, content)
		holds(t, folder, "f")
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm()&^0o640 != 0 || info.Mode().Perm()&0o600 != 0o600 {
		t.Errorf("permissions %v, want those of 0640 that the mask leaves", info.Mode())
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	must(t, Write(long, 0o600, text("long")))
	reads(t, long, "long")
}

// What goes wrong leaves the old file, and nothing beside it.
func TestWriteFails(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "f")
	must(t, Write(path, 0o600, text("old")))
	full := errors.New("full")
	if err := Write(path, 0o600, func(w io.Writer) error { _ = text("new")(w); return full }); !errors.Is(err, full) {
		t.Errorf("fill failed: %v", err)
	}
	f, err := Create(path, 0o600)
	must(t, err)
	must(t, text("new")(f))
	must(t, f.Close())
	if err := f.Commit(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the disk failed: %v", err)
	}
	reads(t, path, "old")
	holds(t, folder, "f")

	blocked := filepath.Join(folder, "g") // becomes a folder after it was begun
	f, err = Create(blocked, 0o600)
	must(t, err)
	must(t, os.Mkdir(blocked, 0o700))
	if err := f.Commit(); err == nil {
		t.Error("a folder is replaced")
	}
	f.Discard()
	holds(t, folder, "f", "g")
}

// Names cannot be guessed, and one that is there already is not written through.
func TestPlantedLinks(t *testing.T) {
	folder := t.TempDir()
	victim, path := filepath.Join(folder, "victim"), filepath.Join(folder, "f")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	names := map[string]bool{}
	for range 100 {
		f, err := Create(path, 0o600)
		must(t, err)
		names[f.Name()] = true
		f.Discard()
	}
	if len(names) != 100 {
		t.Errorf("%d names for 100 files", len(names))
	}
	for planted, to := range map[string]string{filepath.Join(folder, "a"): victim,
		filepath.Join(folder, "b"): filepath.Join(folder, "none"), filepath.Join(folder, "c"): ""} {
		if to == "" {
			must(t, os.Link(victim, planted))
		} else {
			must(t, os.Symlink(to, planted))
		}
		if _, err := createAs(planted, path, 0o600); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want that it is there", planted, err)
		}
	}
	reads(t, victim, "precious")
	holds(t, folder, "a", "b", "c", "victim")
}

// A name that is a link is replaced, wherever it leads.
func TestNameIsLink(t *testing.T) {
	folder, elsewhere := t.TempDir(), t.TempDir()
	victim := filepath.Join(elsewhere, "victim")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	for name, to := range map[string]string{"a": victim, "b": filepath.Join(elsewhere, "none"), "c": "c"} {
		path := filepath.Join(folder, name)
		must(t, os.Symlink(to, path))
		must(t, Check(path))
		must(t, Write(path, 0o600, text("new")))
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v, want a file", name, info, err)
		}
		reads(t, path, "new")
	}
	reads(t, victim, "precious")
	holds(t, elsewhere, "victim")
	holds(t, folder, "a", "b", "c")
}

// Only a device that is named itself is written in place.
func TestNoFiles(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	must(t, os.Mkdir(at("folder"), 0o700))
	must(t, syscall.Mkfifo(at("pipe"), 0o600))
	must(t, os.Symlink(os.DevNull, at("link")))
	for name, want := range map[string]string{"folder": "is a directory, want the name of a file",
		"pipe": "is there and not a file",
		"link": "is there and not a file", "none/f": "no such file or directory"} {
		for _, err := range []error{Check(at(name)), Write(at(name), 0o600, text("x"))} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), folder) {
				t.Errorf("%s: %v, want that it %s", name, err, want)
			}
		}
	}
	holds(t, folder, "folder", "link", "pipe")
	before, err := os.Stat(os.DevNull)
	must(t, err)
	must(t, Check(os.DevNull))
	must(t, Write(os.DevNull, 0o600, text("x")))
	if after, err := os.Stat(os.DevNull); err != nil || after.Mode() != before.Mode() || !os.SameFile(before, after) {
		t.Errorf("%s was %v and is %v, %v", os.DevNull, before, after, err)
	}
}

// An error names the file that was asked for, and not the one on the way to it.
func TestErrorNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "f")
	for _, err := range []error{Check(path), Write(path, 0o600, text("x"))} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(err.Error(), "open "+path+": no such file or directory") {
			t.Errorf("%v", err)
		}
	}
}
