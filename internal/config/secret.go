package config

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"gradbus/internal/regular"
)

// secretBytesMax bounds a secret, and secretFileBytesMax its file: a larger one is a mistake in the name.
const (
	secretBytesMax     = 4096
	secretFileBytesMax = 1 << 16
)

// Secret reads a secret from the first line of a file, or of a pipe, so that it is never part of a command line. An
// empty path gives an empty secret; an empty first line is an error. log is warned of a file that other users of the
// machine may read, or write: they know the secret, or choose it.
func Secret(path string, log *slog.Logger) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := regular.Read(path, secretFileBytesMax)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		err = errors.New("its first line is empty, want the token")
	case len(line) > secretBytesMax:
		err = fmt.Errorf("its first line has %d bytes, want at most %d", len(line), secretBytesMax)
	default:
		regular.WarnExposed(path, log)
		return line, nil
	}
	return "", fmt.Errorf("token file %s: %w", path, err)
}
