package schema

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"gradbus/philox"
)

// docs/protocol.md is what a client in another language is written from, so what can be compared with the code is.

func document(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/protocol.md")
	check(t, err)
	return string(b)
}

func needs(t *testing.T, doc, what, text string) {
	t.Helper()
	if !strings.Contains(doc, text) {
		t.Errorf("docs/protocol.md: %s: want\n%s", what, text)
	}
}

func flagNames(flags uint32) string {
	var names []string
	for i, name := range []string{"more", "parameters", "evaluate", "input", "step", "gradients", "complete", "narrow",
		"copy"} {
		if flags&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "-"
	}
	return strings.Join(names, ", ")
}

// kindTable is the rules as the document has them.
func kindTable() string {
	yes := func(b bool) string { return map[bool]string{true: "yes", false: "-"}[b] }
	need := func(n need) string { return [...]string{"-", "may", "yes"}[n] }
	var b strings.Builder
	b.WriteString("| kind | number | chunk | node | weight | offset | flags | values | sections, keys | ack | body |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|\n")
	for k := Kind(1); k <= kindMax; k++ {
		r := &rules[k]
		values := yes(r.values)
		if r.rows {
			values = "rows"
		}
		if r.bags && r.values {
			values = "rows or bags"
		}
		flags := flagNames(r.flags)
		chunk := [...]string{"-", "of chunks", "of chunks, or open"}[r.place]
		keys := yes(r.keys)
		if r.bags && !r.values {
			keys = "yes, or bags"
		}
		if r.someRow {
			values, keys = "yes, or rows", "may"
		}
		if r.contexts.most > 0 {
			keys = r.contexts.String() + " contexts"
			if r.contexts.most == 1 {
				keys = r.contexts.String() + " context"
			}
		}
		if r.repeats {
			fmt.Fprintf(&b, "| %v | %d | the refused frame's head, unchecked |||||||| %s |\n", k, k, need(r.body))
			continue
		}
		fmt.Fprintf(&b, "| %v | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
			k, k, chunk, need(r.node), yes(r.weight), yes(r.offset), flags, values, keys, yes(r.ack), need(r.body))
	}
	return b.String()
}

func TestDocumentHasTheRules(t *testing.T) {
	doc := document(t)
	needs(t, doc, "kinds", kindTable())
	for r := range Reason(ReasonCount) {
		needs(t, doc, "reasons", fmt.Sprintf("| `%v` |", r))
	}
	for _, limit := range []string{
		fmt.Sprintf("| bytes of a frame | %d |", FrameBytesMax),
		fmt.Sprintf("| bytes of a body | %d |", bodyBytesMax),
		fmt.Sprintf("| keys in a frame | %d |", keysMax),
		fmt.Sprintf("| sections in a frame, tables of a job | %d |", tablesMax),
		fmt.Sprintf("| chunks of a round or request | %d |", ChunksMax),
		fmt.Sprintf("| values in a row | %d |", DimMax),
		fmt.Sprintf("| bytes of a text for people | %d |", TextBytesMax),
		fmt.Sprintf("| depth of JSON | %d |", jsonDepthMax),
	} {
		needs(t, doc, "limits", limit)
	}
}

var fieldForm = regexp.MustCompile(`(?m)^  (\w+):(uint16|uint32|uint64|float64);`)

// The table of the head's fields follows from gradbus.fbs.
func TestDocumentHasTheHead(t *testing.T) {
	fbs, err := os.ReadFile("gradbus.fbs")
	check(t, err)
	_, head, _ := strings.Cut(string(fbs), "struct Head {")
	head, _, _ = strings.Cut(head, "}")
	doc, at, fields := document(t), 0, 0
	for _, field := range fieldForm.FindAllStringSubmatch(head, -1) {
		needs(t, doc, "head", fmt.Sprintf("| %d | %s | %s |", at, field[1], field[2]))
		at += map[string]int{"uint16": 2, "uint32": 4, "uint64": 8, "float64": 8}[field[2]]
		fields++
	}
	if at != headBytes || fields != 18 {
		t.Errorf("%d fields of %d bytes, want a head of %d", fields, at, headBytes)
	}
	needs(t, doc, "schema", string(fbs))
}

// The annotated frame is the golden one, and every message of control has an example that is one.
func TestDocumentHasTheFrames(t *testing.T) {
	doc := document(t)
	var dense []byte
	for _, s := range samples(t) {
		if s.name == "dense" {
			dense = s.frame
		}
	}
	var shown []string
	for _, line := range regexp.MustCompile(`(?m)^\d{3}  ((?:[0-9a-f]{2} )+) `).FindAllStringSubmatch(doc, -1) {
		shown = append(shown, strings.Fields(line[1])...)
	}
	if got, want := strings.Join(shown, " "), strings.TrimSpace(fmt.Sprintf("% x", dense)); got != want {
		t.Errorf("docs/protocol.md shows the frame\n%s\nwant\n%s", got, want)
	}
	examples := map[string]bool{}
	for _, line := range strings.Split(doc, "\n") {
		if strings.HasPrefix(line, `{"`) {
			c, err := DecodeControl(controlView(t, KindControl, line))
			if err != nil {
				t.Errorf("docs/protocol.md: %s: %v", line, err)
			}
			examples[c.Name()] = true
		}
	}
	for _, c := range testControls() {
		if !examples[c.Name()] {
			t.Errorf("docs/protocol.md: no example of %s", c.Name())
		}
	}
}

// The initial values that the document gives to check an implementation against.
func TestDocumentHasInitialValues(t *testing.T) {
	doc := document(t)
	for _, kind := range []string{InitUniform, InitNormal} {
		var values [4]float32
		check(t, philox.FillRow(values[:], kind, 0.5, 7, "hidden.weight", 3))
		line := fmt.Sprintf("%-8s", kind)
		for _, v := range values {
			line += fmt.Sprintf(" %08x", math.Float32bits(v))
		}
		needs(t, doc, "initial values", line)
	}
	var partitions []string
	for _, key := range []uint64{0, 1, 63, 64, 65, 128, 191, 1<<40 - 1} {
		partitions = append(partitions, fmt.Sprint(PartitionOf(key, 64)))
	}
	needs(t, doc, "partitions", fmt.Sprintf("keys 0, 1, 63, 64, 65, 128, 191, 2^40 - 1 are in partitions %s of 64",
		strings.Join(partitions, ", ")))
	var keys []string
	for p := range Partition(3) {
		of, _ := rowsOf(TableSpec{Rows: 10, Dim: 1, Partitions: 3}, p, make([]float32, 10))
		keys = append(keys, "keys "+strings.Trim(fmt.Sprint(of), "[]"))
	}
	needs(t, doc, "partitions", "10 rows in 3 partitions: "+strings.Join(keys, ", "))
	needs(t, doc, "turns", fmt.Sprintf("h(0), h(1), h(2) = %d, %d, %d, and h(2^34 - 1) = %d", rotation(0, 64),
		rotation(1, 64), rotation(2, 64), rotation(1<<34-1, 64)))
}

// Where the document has the chunks of its examples.
func TestDocumentPlacesChunks(t *testing.T) {
	doc, ten := document(t), []int{4, 4, 4, 4, 4, 4, 4, 4, 4, 4}
	for _, c := range []struct {
		text   string
		sizes  []int
		owners int
	}{{"4 4 4 4 1", []int{4, 4, 4, 4, 1}, 2}, {"ten times 4", ten, 2}, {"ten times 4", ten, 3}, {"ten times 4", ten, 4}} {
		placed := strings.Trim(fmt.Sprint(spread(c.sizes, c.owners)), "[]")
		needs(t, doc, "chunks", fmt.Sprintf("| %s | %d | %s |", c.text, c.owners, placed))
	}
	needs(t, doc, "bit order", "of six, "+strings.Trim(fmt.Sprint(bitOrder(6)), "[]"))
}
