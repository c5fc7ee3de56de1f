package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// named are the names of tests in a document, as `package.TestName`.
var named = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// checkNamedTests fails where a document names a test that does not exist, or hardly any.
func checkNamedTests(t *testing.T, document string, least int) (text string) {
	t.Helper()
	atRoot(t)
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	all := named.FindAllStringSubmatch(string(data), -1)
	if len(all) < least {
		t.Fatalf("%s: found %d names of tests only", document, len(all))
	}
	for _, m := range all {
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
			t.Errorf("%s names %s.%s, which does not exist", document, folder, name)
		}
	}
	return string(data)
}

// Every test that docs/promises.md names exists, and every promise is in its table.
func TestPromisesNameTests(t *testing.T) {
	text := checkNamedTests(t, "docs/promises.md", 20)
	for _, p := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9"} {
		if !strings.Contains(text, "\n| "+p+" | ") {
			t.Errorf("docs/promises.md: no row for %s", p)
		}
	}
}

// defect is the beginning of a row about a defect of a reference system, whose letter it takes.
var defect = regexp.MustCompile(`^\| ([A-D])[0-9]+ \|`)

// Every defect of the reference systems stands in docs/reference-systems.md with a test that exists.
func TestReferenceSystemsNameTests(t *testing.T) {
	const document = "docs/reference-systems.md"
	text := checkNamedTests(t, document, 20)
	rows := map[string]int{}
	for line := range strings.Lines(text) {
		m := defect.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows[m[1]]++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if last := cells[len(cells)-1]; len(cells) != 4 || !named.MatchString(last) {
			t.Errorf("%s: no test in the row %s", document, strings.TrimSpace(line))
		}
	}
	for system, least := range map[string]int{"A": 8, "B": 8, "C": 5, "D": 5} {
		if rows[system] < least {
			t.Errorf("%s: %d defects of system %s: want at least %d", document, rows[system], system, least)
		}
	}
}

// Every feature of the originals has a row with a verdict, of those that are explained.
func TestReferenceSystemsHaveVerdicts(t *testing.T) {
	const document = "docs/reference-systems.md"
	_, text, found := strings.Cut(markdown(t)[document], "\n## Every feature\n")
	text, _, ended := strings.Cut(text, "\n## ")
	if !found || !ended {
		t.Fatalf("%s: no table of features", document)
	}
	rows := map[string]int{}
	system, verdicts := "", regexp.MustCompile(`(?m)^- (\w+): `).FindAllStringSubmatch(text, -1)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, "### Features of "); is {
			system = name
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| feature ") {
			continue
		}
		rows[system]++
		cells := strings.Split(strings.Trim(line, "|"), "|")
		known := func(v []string) bool { return v[1] == strings.TrimSpace(cells[len(cells)-1]) }
		if len(cells) != 3 || !slices.ContainsFunc(verdicts, known) || strings.TrimSpace(cells[0]) == "" ||
			strings.TrimSpace(cells[1]) == "" {
			t.Errorf("%s: no verdict, or an empty cell, in the row %s", document, line)
		}
	}
	for system, least := range map[string]int{"A": 20, "B": 40, "C": 20, "D": 20} {
		if rows[system] < least {
			t.Errorf("%s: %d features of system %s: want at least %d", document, rows[system], system, least)
		}
	}
}
