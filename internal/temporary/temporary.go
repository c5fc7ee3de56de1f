// Package temporary makes folders for temporary files: temporary.Folder("folder of the benchmark"). Its errors name the
// variable by which a person puts such files elsewhere.
package temporary

import (
	"fmt"
	"os"
)

// Folder makes a folder in that of temporary files, for a purpose that an error names. Who gets it removes it.
// An error also names what the folder of temporary files has to be, and the variable that names another one.
func Folder(purpose string) (string, error) {
	folder, err := os.MkdirTemp("", "gradbus-")
	if err != nil {
		return "", fmt.Errorf("%s: %w", purpose, Advise(err))
	}
	return folder, nil
}

// Advise says of an error of a temporary file or folder how a person may put these elsewhere.
func Advise(err error) error {
	return fmt.Errorf("%w: want the folder for temporary files, %s, to take new folders and to have room, or "+
		"TMPDIR to name one that does", err, os.TempDir())
}
