package rules

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// fileBytesMax is more than any source, picture or golden file needs.
const fileBytesMax = 512 << 10

// What is built is not committed: no file is so large that it was not written by hand or by a test, and none is a
// program.
func TestNothingBuiltIsCommitted(t *testing.T) {
	atRoot(t)
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > fileBytesMax || strings.HasPrefix(string(data), "\x7fELF") {
			t.Errorf("%s: %d bytes: want no built file, and at most %d bytes", name, len(data), fileBytesMax)
		}
	}
}
