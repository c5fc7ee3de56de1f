package gradbus_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that docs/promises.md names exists, and every promise is in its table.
func TestPromisesNameTests(t *testing.T) {
	text, err := os.ReadFile("docs/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 20 {
		t.Fatalf("found %d names of tests only", len(named))
	}
	for _, m := range named {
		folder, name := m[1], m[2]
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(data), "\nfunc "+name+"(")
		}
		if !found {
			t.Errorf("docs/promises.md names %s.%s, which does not exist", folder, name)
		}
	}
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9"} {
		if !strings.Contains(string(text), "\n| "+p+" | ") {
			t.Errorf("docs/promises.md: no row for %s", p)
		}
	}
}
