// Package regular opens the files that a user or a message names, so that no name can make a program wait or fill its
// memory.
//
// Open and OpenIn open regular files alone: a named pipe, a device, a socket or a folder is an error that says so, and
// opening one never waits. Read and ReadIn read a whole file of a stated length at most.
//
//   - Read, for settings and secrets, also takes a pipe, so that process substitution works in a shell:
//     --token-file <(pass show gradbus). It waits for the writer of a pipe for pipeTime at most. A named pipe that no
//     program has open for writing is an error at once, unless it gave something before: a program that reads its
//     settings again then has what they were.
//   - OpenIn and ReadIn are for names that others choose. A name that leaves the folder is an error, also by a link.
//
// Every other use of os.Open and os.ReadFile is in a list of internal/rules. The package knows files. It must not know
// what is in them.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Errors of this package. Those of a file that is not there, or that may not be read, are those of os.
var (
	ErrNotRegular = errors.New("want a regular file")
	ErrTooLarge   = errors.New("file too large")
)

// pipeTime bounds the time for which Read waits for the writer of a pipe: a password manager asks its user.
const pipeTime = 30 * time.Second

// Open opens a regular file for reading. It fails with ErrNotRegular where path is anything else. The caller closes the
// file.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	return checked(f, err, path, 0)
}

// OpenIn opens a regular file below a folder for reading; name is relative to the folder. It fails with ErrNotRegular
// where name is anything else, and where it leads out of the folder. The caller closes the file.
func OpenIn(folder, name string) (*os.File, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, openFlags, 0)
	path := folder + string(os.PathSeparator) + name
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		at.Op, at.Path = "open", path
		if _, system := at.Err.(syscall.Errno); !system { // os has no name for it
			at.Err = fmt.Errorf("%w: %w", at.Err, ErrNotRegular)
		}
	}
	return checked(f, err, path, 0)
}

// Read reads a whole regular file, or what comes out of a pipe. It fails with ErrTooLarge beyond bytesMax bytes and
// with ErrNotRegular where path is neither, and with os.ErrDeadlineExceeded where the writer of a pipe takes too long.
func Read(path string, bytesMax int64) ([]byte, error) {
	return readPipe(path, bytesMax, pipeTime)
}

func readPipe(path string, bytesMax int64, within time.Duration) ([]byte, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if f, err = checked(f, err, path, fs.ModeNamedPipe); err != nil {
		return nil, err
	}
	pipe := f.SetReadDeadline(time.Now().Add(within)) == nil // a regular file knows no deadline
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	data, err := readAll(f, bytesMax)
	if err == nil && pipe {
		data, err = pipes.recall(path, info, data)
	}
	return data, err
}

// pipes are the pipes that Read has read. They are settings and secrets that a user names, so they are few.
var pipes remembered

// remembered has what pipes gave, by path. It is safe for concurrent use.
type remembered struct {
	mu sync.Mutex // guards of
	of map[string]pipeData
}

// pipeData is the contents of a pipe. info distinguishes it from a later pipe at the same path.
type pipeData struct {
	info fs.FileInfo
	data []byte
}

// recall remembers what a pipe has given, or gives what it gave before where it is empty by now.
func (r *remembered) recall(path string, info fs.FileInfo, data []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(data) > 0 {
		if r.of == nil {
			r.of = map[string]pipeData{}
		}
		r.of[path] = pipeData{info, slices.Clone(data)}
		return data, nil
	}
	if before, ok := r.of[path]; ok && os.SameFile(before.info, info) {
		return slices.Clone(before.data), nil
	}
	return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no program has written to this pipe")}
}

// ReadIn reads a whole regular file below a folder: see OpenIn. It fails with ErrTooLarge beyond bytesMax bytes.
func ReadIn(folder, name string, bytesMax int64) ([]byte, error) {
	f, err := OpenIn(folder, name)
	if err != nil {
		return nil, err
	}
	return readAll(f, bytesMax)
}

// readAll reads what a file has, and closes it.
func readAll(f *os.File, bytesMax int64) ([]byte, error) {
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("%w: want at most %d bytes", ErrTooLarge, bytesMax)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// checked closes a file, and fails, unless it is regular or of a type that is also taken.
func checked(f *os.File, err error, path string, also fs.FileMode) (*os.File, error) {
	var info fs.FileInfo
	switch {
	case err == nil:
		info, err = f.Stat()
	case errors.Is(err, syscall.ENXIO): // a socket cannot be opened
		if stat, _ := os.Stat(path); stat != nil && stat.Mode()&fs.ModeSocket != 0 {
			info, err = stat, nil
		}
	}
	if err == nil && !info.Mode().IsRegular() && info.Mode().Type() != also {
		err = &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("is %s: %w", kind(info.Mode()), ErrNotRegular)}
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	return f, nil
}

// kind says what a file is that is not regular.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "of type " + mode.Type().String()
}
