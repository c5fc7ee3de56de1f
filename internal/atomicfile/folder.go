package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MakeFolder makes a folder, with its missing parents, and syncs their names to the disk, together with that of the
// lowest existing folder, which another process may not have synced. mode has the permissions of new folders before the
// user's mask. It fails if a name is that of something else.
func MakeFolder(path string, mode fs.FileMode) error {
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return syncName(path)
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above := filepath.Dir(path)
	if above != path {
		if err := MakeFolder(above, mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) { // another has made it meanwhile
		return err
	}
	return syncName(path)
}

func syncName(path string) error {
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s is there, but a power cut may lose it: %w", path, err)
	}
	return nil
}

// Remove removes a file, or a folder with all that is in it, so that a power cut does not bring it back. What is not
// there is removed.
func Remove(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s is removed, but a power cut may bring it back: %w", path, err)
	}
	return nil
}
