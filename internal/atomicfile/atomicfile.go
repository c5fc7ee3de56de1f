// Package atomicfile writes files completely or not at all, also in folders that other users may write to. Create
// begins a file, and Commit gives it its name.
//
// A file is written under a random name beside its own, which cannot be guessed and must not exist: a planted link is
// never followed. The file is synced and renamed, and then the folder is synced.
//
//   - A name that is a symbolic link is replaced; the target of the link is unchanged.
//   - An existing file is replaced: it keeps neither its permissions nor its other hard links.
//   - A character device that is named directly, such as /dev/null, is written to. Folders, pipes and sockets, and
//     links to anything but files, are refused.
//   - A process that is killed while it writes leaves a file .NAME.RANDOM.tmp, which may be removed.
//
// All files that commands leave are written by it, except the event files of internal/tensorboard, which grow during a
// training and are read meanwhile. folder.go makes and removes folders that survive a power cut like the files in them.
// The package knows files. It must not know their contents.
package atomicfile

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gradbus/internal/planted"
)

const (
	bufferBytes  = 1 << 16
	baseBytesMax = 200 // of the name in that of the temporary file: file systems allow 255
)

// File is a file being written. Write appends to it; Commit gives it its name.
type File struct {
	*os.File
	path   string
	device bool // written in place
	over   bool
}

// Create begins a file that will be at path. mode has its permissions before the user's mask. It fails, and leaves
// nothing new in the folder, if the file could not have that name. The caller calls Discard, which does nothing after
// Commit.
func Create(path string, mode fs.FileMode) (*File, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeCharDevice != 0 {
		device, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
		return &File{File: device, path: path, device: true}, err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory, want the name of a file", path)
	} else if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is there and not a file", path)
	}
	base := filepath.Base(path)
	return createAs(filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s.tmp", base[:min(len(base), baseBytesMax)],
		rand.Text())), path, mode)
}

// createAs creates the temporary file, which must not be there, not even as a link to nowhere.
func createAs(name, path string, mode fs.FileMode) (*File, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		at.Path = path // the device itself was named
	}
	if err != nil {
		return nil, err
	}
	return &File{File: file, path: path}, nil
}

// Commit brings the file and its name to the disk. After an error the old file is there, whole, unless the error says
// that the new one is.
func (f *File) Commit() error {
	if f.device {
		f.over = true
		return f.Close()
	}
	err := error(nil)
	if !planted.Is(planted.SkipFileSync) {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		f.Discard()
		return err
	}
	f.over = true
	if planted.Is(planted.SkipFolderSync) {
		return nil
	}
	return syncName(f.path)
}

// Discard ends what was not committed, and leaves nothing of it behind.
func (f *File) Discard() {
	if f.over {
		return
	}
	f.over = true
	f.Close()
	if !f.device {
		os.Remove(f.Name())
	}
}

// syncFolder syncs the names in a folder to the disk. It ignores errors: an unreadable folder, or a file system without
// that operation, cannot be synced.
func syncFolder(folder string) error {
	d, err := os.Open(folder)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// Write writes a file: fill gets it, buffered, and its error leaves the old file as it was.
func Write(path string, mode fs.FileMode, fill func(io.Writer) error) error {
	f, err := Create(path, mode)
	if err != nil {
		return err
	}
	defer f.Discard()
	w := bufio.NewWriterSize(f, bufferBytes)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Commit()
}

// Check fails where Write could not write a file at path, so that this is known before hours have gone into what is in
// it. It leaves nothing behind.
func Check(path string) error {
	f, err := Create(path, 0o600)
	if err != nil {
		return err
	}
	f.Discard()
	return nil
}
