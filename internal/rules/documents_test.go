package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// markdown are the repository's documents.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	atRoot(t)
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range strings.Fields(string(out)) {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(data)
	}
	if len(all) < 10 {
		t.Fatalf("found %d documents only", len(all))
	}
	return all
}

// Every relative link leads to a file that exists, and to a heading of it where it names one.
func TestDocumentsLinkToWhatExists(t *testing.T) {
	all := markdown(t)
	for name, document := range all {
		for _, wrong := range brokenLinks(name, document, func(file string) (string, bool) {
			if text, ok := all[file]; ok {
				return text, true
			}
			_, err := os.Stat(file)
			return "", err == nil
		}) {
			t.Error(wrong)
		}
	}
}

var target = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)

// brokenLinks lists the relative links of a document that lead nowhere. open reads a file, and says whether it exists.
func brokenLinks(name, document string, open func(string) (string, bool)) []string {
	var wrong []string
	for _, b := range blocks(document) {
		if b.kind == code {
			continue
		}
		for _, m := range target.FindAllStringSubmatch(span.ReplaceAllStringFunc(b.text, hideLinks), -1) {
			to := m[1] + m[2]
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			if file == "" {
				file = name
			} else {
				file = path.Join(path.Dir(name), file)
			}
			if file == name && anchor != "" {
				if !anchors(document)[anchor] {
					wrong = append(wrong, name+": no heading for the link #"+anchor)
				}
				continue
			}
			text, ok := open(file)
			switch {
			case !ok:
				wrong = append(wrong, name+": a link to "+to+", which does not exist")
			case anchor != "" && !anchors(text)[anchor]:
				wrong = append(wrong, name+": "+file+" has no heading for the link #"+anchor)
			}
		}
	}
	return wrong
}

// hideLinks makes code that looks like a link no link.
func hideLinks(s string) string { return strings.ReplaceAll(s, "](", "] (") }

// Every document below docs is named in docs/README.md.
func TestDocumentsAreListed(t *testing.T) {
	all := markdown(t)
	list := all["docs/README.md"]
	for name := range all {
		rest, ok := strings.CutPrefix(name, "docs/")
		if ok && rest != "README.md" && !strings.Contains(list, "]("+rest+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}

var required = regexp.MustCompile(`(?m)^\s+(?:require )?(\S+) v\S+$`) // without "// indirect"

// Every module that go.mod requires directly stands in docs/dependencies.md with its reason.
func TestDependenciesAreListed(t *testing.T) {
	atRoot(t)
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	document := markdown(t)["docs/dependencies.md"]
	direct := required.FindAllStringSubmatch(string(mod), -1)
	if len(direct) < 10 {
		t.Fatalf("found %v only", direct)
	}
	for _, m := range direct {
		if !strings.Contains(document, m[1]) {
			t.Errorf("docs/dependencies.md does not say why %s is needed", m[1])
		}
	}
}

// What documents tell to run exists: commands of this repository, files, packages, targets of make, and flags.
func TestDocumentsRunWhatExists(t *testing.T) {
	known := readCommands(t)
	found := 0
	for name, document := range markdown(t) {
		for _, c := range shown(document) {
			found++
			for _, wrong := range known.check(c) {
				t.Errorf("%s: %s: %s", name, c, wrong)
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands only", found)
	}
}

var variable = regexp.MustCompile(`(?:^|[^D])GRADBUS_([A-Z][A-Z0-9_]+)`) // -DGRADBUS_EMU is CMake's

// A variable of the environment that a document names sets a flag that exists, where the name is no code of the C
// library.
func TestDocumentsNameVariables(t *testing.T) {
	known := readCommands(t)
	header, err := os.ReadFile("capi/gradbus.h") // readCommands goes to the root
	if err != nil {
		t.Fatal(err)
	}
	for name, document := range markdown(t) {
		for _, m := range variable.FindAllStringSubmatch(document, -1) {
			if bytes.Contains(header, []byte("  GRADBUS_"+m[1]+" = ")) {
				continue
			}
			flag := strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")
			if m[1] != "FLAG_NAME" && !known.has(command{words: []string{"--" + flag}}, "", flag) {
				t.Errorf("%s: GRADBUS_%s sets no flag: there is no --%s", name, m[1], flag)
			}
		}
	}
}

// stands tells whether a path of the repository exists; built files and data do not count.
func stands(name string) bool {
	if matches, err := filepath.Glob(name); err == nil && len(matches) > 0 {
		return true
	}
	_, err := os.Stat(name)
	return err == nil
}
