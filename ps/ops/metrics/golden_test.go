package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md again")

const documentation = "../../../docs/metrics.md"

// listing is a line of families.txt.
type listing struct {
	name, kind, help string
	labels           []string
}

func listed() (all []listing) {
	for line := range strings.Lines(families) {
		part := strings.SplitN(strings.TrimSpace(line), " ", 4)
		f := listing{name: part[0], kind: part[1], help: part[3]}
		if part[2] != "-" {
			f.labels = strings.Split(part[2], ",")
		}
		all = append(all, f)
	}
	return all
}

// docs/metrics.md has a table of every group of families, between marks.
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	text, left := string(data), listed()
	for _, prefix := range []string{"job", "trainer", "shard_bucket", "shard",
		"ps", "disk", "gpu", "problem", "ops", "build"} {
		var mine, others []listing
		for _, f := range left {
			if strings.HasPrefix(f.name, "gradbus_"+prefix) {
				mine = append(mine, f)
			} else {
				others = append(others, f)
			}
		}
		left = others
		begin, end := "<!-- families: "+prefix+" -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(text, begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s: no %q ... %q", documentation, begin, end)
		}
		text = before + begin + inTable(mine) + end + after
	}
	for _, f := range left {
		t.Errorf("%s is in no group of %s", f.name, documentation)
	}
	golden(t, documentation, text)
}

// inTable is a table in Markdown.
func inTable(families []listing) string {
	var b strings.Builder
	b.WriteString("| name | type | labels | |\n|---|---|---|---|\n")
	for _, f := range families {
		labels := strings.Join(f.labels, ", ")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, labels, f.help)
	}
	return b.String()
}

func golden(t *testing.T, path, want string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s differs from the tables; look at the difference after\n\tgo test ./ps/ops/metrics -rewrite", path)
	}
}

// House rules of names that the linter does not know.
func TestNames(t *testing.T) {
	helps := map[string]string{}
	for _, f := range listed() {
		if !strings.HasPrefix(f.name, "gradbus_") {
			t.Errorf("%s: want the prefix gradbus_", f.name)
		}
		if (f.kind == "counter") != strings.HasSuffix(f.name, "_total") {
			t.Errorf("%s is a %s: counters, and only they, end in _total", f.name, f.kind)
		}
		if !strings.HasSuffix(f.help, ".") {
			t.Errorf("%s: the help is no sentence: %q", f.name, f.help)
		}
		if other := helps[f.help]; other != "" && f.help != "Bytes of these." {
			t.Errorf("%s and %s have the same help", f.name, other)
		}
		helps[f.help] = f.name
		for _, l := range f.labels {
			switch l {
			case "job", "instance": // Prometheus puts labels of that name on every series, and hides ours
				t.Errorf("%s has the label %s, which Prometheus has", f.name, l)
			case "bucket": // of which a report has schema.TelemetryBucketsMax for a shard
				if !strings.HasPrefix(f.name, "gradbus_shard_bucket_") {
					t.Errorf("%s has the label %s, of which there is no end", f.name, l)
				}
			case "batch", "chunk", "version", "pid", "url":
				if f.name != "gradbus_build_info" {
					t.Errorf("%s has the label %s, of which there is no end", f.name, l)
				}
			case "run_id":
				if !strings.HasSuffix(f.name, "_info") {
					t.Errorf("%s has the label %s, which only an _info family may have", f.name, l)
				}
			}
		}
	}
}
