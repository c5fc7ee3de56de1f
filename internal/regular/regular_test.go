package regular

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// others makes one of everything that is no regular file, and says what an error calls it.
func others(t *testing.T, folder string) map[string]string {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(folder, "folder"), 0o700))
	must(t, syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o600))
	listener, err := net.Listen("unix", filepath.Join(folder, "socket"))
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	return map[string]string{"folder": "a directory", "pipe": "a pipe", "socket": "a socket"}
}

// Whatever is no regular file is refused at once, by its path and what it is.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	folder := t.TempDir()
	paths := map[string]string{os.DevNull: "a device", "/dev/zero": "a device"}
	for name, what := range others(t, folder) {
		paths[filepath.Join(folder, name)] = what
		must(t, os.Symlink(name, filepath.Join(folder, "to-"+name)))
		paths[filepath.Join(folder, "to-"+name)] = what
	}
	for path, what := range paths {
		_, err := Open(path)
		_, read := Read(path, 10)
		for name, err := range map[string]error{"Open": err, "Read": read} {
			if name == "Read" && what == "a pipe" {
				if err == nil || err.Error() != "read "+path+": no program has written to this pipe" {
					t.Errorf("Read(%s): %v", path, err)
				}
				continue
			}
			want := fmt.Sprintf("open %s: is %s: want a regular file", path, what)
			if !errors.Is(err, ErrNotRegular) || err.Error() != want {
				t.Errorf("%s(%s): %v, want %q", name, path, err, want)
			}
		}
	}
	if _, err := Open(filepath.Join(folder, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// A name cannot lead out of its folder, nor to anything but a regular file.
func TestNameStaysInItsFolder(t *testing.T) {
	outside, folder := t.TempDir(), filepath.Join(t.TempDir(), "in")
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "f"), []byte("text"), 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "..", "f"), []byte("secret"), 0o600))
	must(t, os.Symlink(filepath.Join(outside, "f"), filepath.Join(folder, "link")))
	must(t, os.Symlink(outside, filepath.Join(folder, "folder-link")))
	for name := range others(t, folder) {
		if _, err := ReadIn(folder, name, 10); !errors.Is(err, ErrNotRegular) ||
			!strings.Contains(err.Error(), filepath.Join(folder, name)) {
			t.Errorf("%s: %v, want that it is no regular file", name, err)
		}
	}
	for _, name := range []string{"../f", "link", "folder-link/f", filepath.Join(outside, "f")} {
		if data, err := ReadIn(folder, name, 10); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %q, %v, want that it is outside of the folder", name, data, err)
		}
	}
	if data, err := ReadIn(folder, "f", 10); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := ReadIn(folder, "none", 10); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), filepath.Join(folder, "none")) {
		t.Errorf("no file: %v", err)
	}
}

func TestReadIsBounded(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "f")
	must(t, os.WriteFile(path, []byte("0123456789"), 0o600))
	if data, err := Read(path, 10); err != nil || string(data) != "0123456789" {
		t.Errorf("%q, %v", data, err)
	}
	_, read := Read(path, 9)
	_, readIn := ReadIn(folder, "f", 9)
	for _, err := range []error{read, readIn} {
		if want := "read " + path + ": file too large: want at most 9 bytes"; !errors.Is(err, ErrTooLarge) ||
			err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	must(t, os.WriteFile(path, nil, 0o600))
	if data, err := Read(path, 9); err != nil || len(data) != 0 {
		t.Errorf("an empty file: %q, %v", data, err)
	}
}

// Process substitution of a shell gives the path of a pipe.
func TestReadTakesPipes(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err := os.Stat(path); err != nil {
		t.Skip("no files of a process's own: ", err)
	}
	if _, err := readPipe(path, 10, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a pipe that is written to later: %v", err)
	}
	_, err = w.WriteString("token")
	must(t, err)
	must(t, w.Close())
	for range 2 { // a program that reads its settings again finds the pipe empty
		if data, err := Read(path, 10); err != nil || string(data) != "token" {
			t.Errorf("%q, %v", data, err)
		}
	}
	if _, err := Open(path); !errors.Is(err, ErrNotRegular) {
		t.Errorf("Open: %v", err)
	}
}

// What a pipe gave is not what another pipe of its path gives.
func TestReadTellsPipesApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	for _, text := range []string{"first", "second", ""} {
		must(t, syscall.Mkfifo(path, 0o600))
		r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // with it the pipe keeps what is written
		must(t, err)
		defer r.Close()
		if text != "" {
			must(t, os.WriteFile(path, []byte(text), 0))
		}
		data, err := Read(path, 10)
		if string(data) != text || (err == nil) != (text != "") {
			t.Errorf("%q, %v, want %q", data, err, text)
		}
		must(t, os.Rename(path, path+text+"-before")) // which keeps its number
	}
}
