package regular

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The owner's file is private; a file of another user may be read by its group, to which this process belongs.
func TestExposed(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "f")
	path := filepath.Join(folder, "secret")
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.WriteFile(path, nil, 0o600))
	for _, c := range []struct {
		file, folder fs.FileMode
		want         string
	}{
		{0o400, 0o755, ""},
		{0o600, 0o777 | fs.ModeSticky, ""},
		{0o640, 0o700, "the file has mode -rw-r-----: want chmod go= for it"},
		{0o604, 0o700, "the file has mode -rw----r--: want chmod go= for it"},
		{0o602, 0o700, "the file has mode -rw-----w-: want chmod go= for it"},
		{0o600, 0o777, "has mode drwxrwxrwx: want chmod o-w for it"},
	} {
		must(t, os.Chmod(path, c.file))
		must(t, os.Chmod(folder, c.folder))
		if got := Exposed(path); (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
			t.Errorf("modes %v in %v: %q, want %q", c.file, c.folder, got, c.want)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root makes a file of another user")
	}
	must(t, os.Chmod(folder, 0o700))
	must(t, os.Chmod(path, 0o440))
	must(t, os.Chown(path, 4222, 4222))
	if got := Exposed(path); got != "" {
		t.Errorf("a file of another user that its group reads: %q", got)
	}
}
