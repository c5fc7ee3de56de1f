package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// secretBytesMax bounds a secret; a larger file is a mistake in the name.
const secretBytesMax = 4096

// Secret reads a secret from the first line of a file, so that it is never part of a command line. An empty path gives
// an empty secret; an empty first line is an error.
func Secret(path string) (string, error) {
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
		return line, nil
	}
	return "", fmt.Errorf("token file %s: %w", path, err)
}
