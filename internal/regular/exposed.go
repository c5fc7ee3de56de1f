package regular

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// Exposed says why other users of the machine may read a file that holds a secret, write it, or put another in its
// place; empty where they may not. A file of another user, such as root, may be read by its group: by this process,
// too, which else could not.
func Exposed(path string) string {
	const others, group, write = 0o007, 0o070, 0o002
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		open := info.Mode().Perm() & others
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) == os.Geteuid() {
			open |= info.Mode().Perm() & group
		}
		if open != 0 {
			return fmt.Sprintf("the file has mode %v: want chmod go= for it", info.Mode())
		}
	}
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err == nil && info.Mode().Perm()&write != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Sprintf("its folder %s has mode %v: want chmod o-w for it", folder, info.Mode())
	}
	return ""
}

// WarnExposed warns of a file with a secret that other users of the machine may read or change. An empty path is none.
func WarnExposed(path string, log *slog.Logger) {
	if why := Exposed(path); path != "" && why != "" {
		log.Warn("secret file is open to other users", "path", path, "reason", why)
	}
}
