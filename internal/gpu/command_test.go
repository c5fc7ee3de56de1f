package gpu

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/internal/process"
	"gradbus/schema"
)

// remembered is a file with two GPUs of which something holds.
func remembered(t *testing.T) *File {
	t.Helper()
	file := &File{filepath.Join(t.TempDir(), "gpus.json"), lockTime}
	of := func(index int, uuid string) Kept {
		return Kept{GPU: GPU{Index: index, UUID: uuid, Name: "H100"}}
	}
	a, b, c, d := of(0, "GPU-aa10"), of(1, "GPU-aa20"), of(2, "GPU-c"), of(0, "GPU-d")
	a.Findings = []Finding{
		{Code: "xid-48", Reason: "XID 48: uncorrectable memory error", Action: "Reset it.", SinceMS: nowMS,
			Memory: true},
		{Code: "remap-failed", Reason: "a faulty memory row could not be remapped", Action: "Have it replaced.",
			SinceMS: nowMS + 1000}}
	b.Findings = []Finding{{Code: "xid-79", Reason: "XID 79: it fell off", Action: "Power it off.", SinceMS: nowMS}}
	if err := file.Change(func([]Kept) ([]Kept, bool) { return []Kept{a, b, c, d}, true }); err !=
		nil {
		t.Fatal(err)
	}
	return file
}

// What is listed, letter by letter.
func TestList(t *testing.T) {
	t.Parallel()
	file := remembered(t)
	all, err := file.Read()
	if err != nil {
		t.Fatal(err)
	}
	out := list(all, AcknowledgedBy(""), time.UTC)
	const want = `GPU 0 GPU-aa10 (H100)
  unhealthy since 2027-01-15 08:00:00 UTC (xid-48): XID 48: uncorrectable memory error.
  Reset it.
  unhealthy since 2027-01-15 08:00:01 UTC (remap-failed): a faulty memory row could not be remapped.
  Have it replaced.
  When that is done: PS gpu-ack 0
GPU 1 GPU-aa20 (H100)
  unhealthy since 2027-01-15 08:00:00 UTC (xid-79): XID 79: it fell off.
  Power it off.
  When that is done: PS gpu-ack 1
`
	if want := strings.ReplaceAll(want, "PS", process.Invoked("ps")); out != want {
		t.Errorf("listed\n%s\nwant\n%s", out, want)
	}
	if out := list(nil, "", time.UTC); out != nothing {
		t.Errorf("listed %q", out)
	}
}

// What stands in another user's file is shown, and nothing in it that a terminal acts upon.
func TestListIsPrintable(t *testing.T) {
	t.Parallel()
	file := &File{filepath.Join(t.TempDir(), "gpus.json"), lockTime}
	bad := Kept{GPU: GPU{UUID: "GPU-a\x1b[2J", Name: "H\u009b100"},
		Findings: []Finding{{Code: "x\x07", Reason: "r\nforged: all is well", Action: "a\u202e", SinceMS: nowMS}}}
	var out bytes.Buffer
	out.WriteString(list([]Kept{bad}, "c", time.UTC))
	if err := file.Change(func([]Kept) ([]Kept, bool) { return []Kept{bad}, true }); err != nil {
		t.Fatal(err)
	}
	said, err := acknowledgeIn(file, []Kept{bad}, []string{"0"})
	if err != nil {
		t.Fatal(err)
	}
	out.WriteString(said)
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != schema.Printable(line) || strings.HasPrefix(line, "forged") {
			t.Errorf("a terminal is shown %q", line)
		}
	}
	if n := strings.Count(out.String(), "GPU-a?[2J (H?100)"); n != 2 {
		t.Errorf("named %d times, want in the list and acknowledged:\n%s", n, out.String())
	}
}

func TestAcknowledgedBy(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{"": " gpu-ack", "/var/lib/g.json": " gpu-ack --gpu-state /var/lib/g.json",
		"/my state/g.json": ` gpu-ack --gpu-state "/my state/g.json"`} {
		want = process.Invoked("ps") + want
		if got := AcknowledgedBy(flag); got != want {
			t.Errorf("%q: %q, want %q", flag, got, want)
		}
	}
}

// GPUs are named by UUID, its beginning, or index; what is said, what is left, and what is wrong with other names.
func TestAcknowledgeIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names []string
		said  []string // beginnings of lines
		left  []string // UUIDs of which something still holds
		wrong string
	}{
		{[]string{"0"}, []string{"GPU 0 GPU-aa10 (H100): acknowledged xid-48, XID 48",
			"GPU 0 GPU-aa10 (H100): acknowledged remap-failed"}, []string{"GPU-aa20"}, ""},
		{[]string{"GPU-aa10"}, []string{"GPU 0", "GPU 0"}, []string{"GPU-aa20"}, ""},
		{[]string{"gpu-AA1"}, []string{"GPU 0", "GPU 0"}, []string{"GPU-aa20"}, ""},
		{[]string{"1"}, []string{"GPU 1 GPU-aa20 (H100): acknowledged xid-79"}, []string{"GPU-aa10"}, ""},
		{[]string{"1", "0", "1"}, []string{"GPU 0", "GPU 0", "GPU 1"}, nil, ""},
		{[]string{"all"}, []string{"GPU 0", "GPU 0", "GPU 1"}, nil, ""},
		{[]string{"GPU-aa"}, nil, nil, ": it could be GPU-aa10 or GPU-aa20: want more of the UUID"},
		{[]string{"GPU-"}, nil, nil, `it could be GPU-aa10 or GPU-aa20`},
		{[]string{"GPU-c"}, nil, nil, "want one of 0 (GPU-aa10), 1 (GPU-aa20)"},
		{[]string{"0", "7"}, nil, nil, `GPU "7", of those of which something is remembered in `},
		{[]string{""}, nil, nil, `GPU "", of those`},
	} {
		file := remembered(t)
		held, err := file.Read()
		if err != nil {
			t.Fatal(err)
		}
		out, err := acknowledgeIn(file, held, c.names)
		if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%q: %v, want %q", c.names, err, c.wrong)
		}
		all, err := file.Read()
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, k := range all {
			left = append(left, k.UUID)
		}
		if c.wrong != "" {
			c.left = []string{"GPU-aa10", "GPU-aa20"}
		}
		if slices.Sort(left); !slices.Equal(left, c.left) {
			t.Errorf("%q: %q still hold, want %q", c.names, left, c.left)
		}
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if c.wrong == "" && !slices.EqualFunc(lines, c.said, strings.HasPrefix) {
			t.Errorf("%q: said %q, want %q", c.names, lines, c.said)
		}
	}
}

// Where nothing is remembered, all of it is acknowledged and one GPU is not, and no file is made.
func TestAcknowledgeNothing(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := &File{filepath.Join(folder, "state", "gpus.json"), lockTime}
	if out, err := acknowledgeIn(file, nil, []string{"all"}); err != nil ||
		out != "Nothing is remembered that is wrong with a GPU.\n" {
		t.Errorf("said %q, %v", out, err)
	}
	if _, err := acknowledgeIn(file, nil, []string{"0"}); err == nil ||
		err.Error() != `GPU "0", of those of which something is remembered in `+file.Path()+": there is none" {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("made %v, %v", entries, err)
	}
}
