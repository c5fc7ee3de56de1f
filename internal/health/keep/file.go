package keep

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/internal/health"
	"gradbus/internal/regular"
)

// File is the file at a path. It may be used by any number of processes and goroutines.
type File struct {
	path   string
	within time.Duration                     // that somebody else may hold the lock
	create func(path string) (writer, error) // begins the new file, in tests one on a full disk
}

// writer is what is used of an *atomicfile.File.
type writer interface {
	io.Writer
	Chown(uid, gid int) error
	Commit() error
	Discard()
}

// At gives the file at a path. Nothing is opened or made.
func At(path string) *File {
	return &File{path: path, within: lockTime, create: func(path string) (writer, error) {
		return atomicfile.Create(path, 0o600)
	}}
}

// Default is where the file is unless somebody says otherwise: gradbus/gpus.json below $XDG_STATE_HOME, or
// ~/.local/state.
func Default() (string, error) {
	folder := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(folder) { // such as empty; others are to be ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("where to remember GPUs: %w", err)
		}
		folder = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(folder, "gradbus", "gpus.json"), nil
}

// Path is the file's name.
func (f *File) Path() string { return f.path }

// Stamp is a moment in a file's life: two that are equal are of the same content. The zero value is no file.
type Stamp struct {
	inode    uint64
	size     int64
	modified time.Time
}

// Stamp says which content the file has now.
func (f *File) Stamp() (Stamp, error) {
	info, err := os.Stat(f.path)
	return stampOf(info, err)
}

func stampOf(info fs.FileInfo, err error) (Stamp, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return Stamp{}, nil
	}
	if err != nil {
		return Stamp{}, err
	}
	s := Stamp{size: info.Size(), modified: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s, nil
}

// Read gives what the file holds, nothing where there is none, and which content that is.
func (f *File) Read() ([]health.Kept, Stamp, error) {
	file, err := regular.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Stamp{}, nil
	}
	if err != nil {
		return nil, Stamp{}, err
	}
	defer file.Close()
	stamp, err := stampOf(file.Stat())
	if err != nil {
		return nil, stamp, err
	}
	text, err := io.ReadAll(io.LimitReader(file, bytesMax+1))
	if err != nil {
		return nil, stamp, err
	}
	all, err := decode(text)
	if err != nil {
		return nil, stamp, fmt.Errorf("%s: %w", f.path, err)
	}
	return all, stamp, nil
}

// Check finds what would keep the file from being read or changed, and gives the number of GPUs with which something is
// wrong. It changes nothing.
func (f *File) Check() (wrong int, err error) {
	all, _, err := f.Read()
	if err != nil {
		return 0, err
	}
	for _, k := range all {
		if len(k.Findings) > 0 {
			wrong++
		}
	}
	folder := filepath.Dir(f.path)
	for { // the nearest that is there: those below would be made
		info, err := os.Stat(folder)
		if err == nil && !info.IsDir() {
			return wrong, fmt.Errorf("%s is no folder", folder)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || folder == filepath.Dir(folder) {
			return wrong, err
		}
		folder = filepath.Dir(folder)
	}
	const writable, passable = 2, 1
	if err := syscall.Access(folder, writable|passable); err != nil {
		return wrong, fmt.Errorf("write in %s: %w", folder, err)
	}
	return wrong, nil
}

// Change changes what the file holds, while nobody else does. edit gets what it holds, and gives what it shall, and
// whether that is something else. A damaged file counts as empty, and is set aside when another one takes its place.
func (f *File) Change(edit func([]health.Kept) ([]health.Kept, bool)) (Stamp, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return Stamp{}, err
	}
	unlock, err := f.lock()
	if err != nil {
		return Stamp{}, err
	}
	defer unlock()
	all, stamp, err := f.Read()
	damaged := errors.Is(err, ErrDamaged)
	if err != nil && !damaged {
		return stamp, err
	}
	all, changed := edit(all)
	if !changed {
		return stamp, nil
	}
	if damaged {
		if err := os.Rename(f.path, f.path+".damaged"); err != nil {
			return stamp, err
		}
	}
	if err := f.write(encode(all, time.Now())); err != nil {
		return stamp, err
	}
	return f.Stamp()
}

// write puts a new file in the place of the old one, on the disk before it has the name.
func (f *File) write(text []byte) error {
	w, err := f.create(f.path)
	if err != nil {
		return err
	}
	defer w.Discard()
	if _, err := w.Write(text); err != nil {
		return err
	}
	// root, who may have been asked to acknowledge, does not take it away from whose it is
	if old, gone := os.Lstat(f.path); gone == nil {
		if sys, ok := old.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			_ = w.Chown(int(sys.Uid), int(sys.Gid))
		}
	}
	return w.Commit()
}

// Time that somebody else may hold the lock: it is held for one short write, which a disk that is busy draws out.
const (
	lockTime  = 10 * time.Second
	lockEvery = 5 * time.Millisecond
)

// lock holds the lock until unlock is called, or its process ends.
func (f *File) lock() (unlock func(), err error) {
	path := f.path + ".lock"
	// a planted link would have root make a file elsewhere
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(f.within); ; time.Sleep(lockEvery) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
