package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// secretBytesMax bounds a secret; a larger file is a mistake in the name.
const secretBytesMax = 4096

// Secret reads a secret from the first line of a file, so that it is never part of a command line. An empty path gives
// an empty secret; an empty first line is an error. log is warned of a file that any user of the machine may write:
// whoever does chooses the secret.
func Secret(path string, log *slog.Logger) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		err = errors.New("its first line is empty, want the token")
	case len(line) > secretBytesMax:
		err = fmt.Errorf("its first line has %d bytes, want at most %d", len(line), secretBytesMax)
	default:
		if why := writable(path); why != "" {
			log.Warn("any user of this machine may choose the token: take that away with chmod o-w", "path", path, "reason", why)
		}
		return line, nil
	}
	return "", fmt.Errorf("token file %s: %w", path, err)
}

// writable says why any user may write a file or put another in its place; empty where only its owner and group may.
func writable(path string) string {
	const others = 0o002
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&others != 0 {
		return fmt.Sprintf("the file has mode %v", info.Mode())
	}
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err == nil && info.Mode().Perm()&others != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Sprintf("its folder %s has mode %v", folder, info.Mode())
	}
	return ""
}
