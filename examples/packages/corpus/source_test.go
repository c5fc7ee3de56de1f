package corpus

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func synthetic(t testing.TB, records int) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteSynthetic(&b, records, 7); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// folder writes files, given as name and content in turn.
func folder(t testing.TB, files ...string) string {
	t.Helper()
	at := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(at, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// The same records give the same data, however they are kept.
func TestLoadFile(t *testing.T) {
	text := synthetic(t, 300)
	records := strings.SplitAfter(text, "\n\n")
	slices.Reverse(records)
	files := folder(t, "plain", text, "reversed", strings.Join(records, ""),
		"gz", string(pack(t, "gz", text)), "xz", string(pack(t, "xz", text)), "lz4", string(pack(t, "lz4", text)))
	var first *Data
	for _, name := range []string{"plain", "reversed", "gz", "xz", "lz4"} {
		d, err := Load(t.Context(), filepath.Join(files, name))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = d
		}
		if d.Digest != first.Digest || d.Records != 300 || d.Train.Len()+d.Test.Len() != 300 || d.Synthetic {
			t.Errorf("%s: %d records, digest %x, want %x", name, d.Records, d.Digest, first.Digest)
		}
	}
}

func TestLoadFileRefuses(t *testing.T) {
	text := synthetic(t, 300)
	at := folder(t, "empty", "", "cut.gz", string(pack(t, "gz", text)[:4000]), "cut", text[:len(text)-5],
		"page", "<html>\n",
		"few", "Package: a\nSection: b\n\n", "zst", "\x28\xb5\x2f\xfdxxxx", "gz of nothing", string(pack(t, "gz", "")))
	for name, want := range map[string]error{
		"missing": fs.ErrNotExist, "empty": ErrEmpty, "cut.gz": ErrCut, "cut": ErrCut, "page": ErrNotIndex, "few": ErrTooFew,
		"zst": ErrCompression, "gz of nothing": ErrEmpty,
	} {
		path := filepath.Join(at, name)
		_, err := Load(t.Context(), path)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %v with the path", name, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	whole := folder(t, "whole", text)
	if _, err := Load(ctx, filepath.Join(whole, "whole")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestMachineLists(t *testing.T) {
	text := synthetic(t, 2*ownMin)
	at := strings.Index(text[len(text)/2:], "\n\n") + len(text)/2 + 2
	lists := folder(t,
		"a_binary-amd64_Packages.lz4", string(pack(t, "lz4", text[:at])),
		"b_binary-amd64_Packages", text[at:],
		"c_binary-amd64_Packages", "", // an archive without packages
		"a_InRelease", "Origin: x\n", "a_Packages.diff_Index", "SHA1-Current: 1 2\n", "lock", "")
	if err := os.Mkdir(filepath.Join(lists, "d_Packages"), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := machine{Lists: lists}.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load(t.Context(), filepath.Join(folder(t, "whole", text), "whole"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Digest != want.Digest || d.Source != "3 lists in "+lists {
		t.Errorf("source %q, %d records, digest %x, want %x", d.Source, d.Records, d.Digest, want.Digest)
	}
}

// Of packages in several lists, that of the last list by name counts.
func TestMachineListsOrder(t *testing.T) {
	text := synthetic(t, ownMin+10)
	one := func(section string) string { return "Package: bash\nSection: " + section + "\n\n" }
	lists := folder(t, "m_Packages", text, "z_Packages", one("last"), "a_Packages", one("first"))
	d, err := machine{Lists: lists}.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(d.Classes, "first") || !slices.Contains(d.Classes, "last") {
		t.Errorf("classes %q", d.Classes)
	}
}

func TestMachineDumpavail(t *testing.T) {
	text := synthetic(t, ownMin+500)
	at := folder(t, "avail", text, "few", synthetic(t, 20), "cut", text[:len(text)-30])
	print := func(name string) []string { return []string{"cat", filepath.Join(at, name)} }
	packed := folder(t, "a_Packages.zst", "\x28\xb5\x2f\xfdxxxx")
	for _, m := range []machine{{Lists: filepath.Join(at, "not there"), Dumpavail: print("avail")},
		{Lists: packed, Dumpavail: print("avail")}} {
		d, err := m.load(t.Context())
		if err != nil || d.Records != ownMin+500 || d.Source != "cat "+filepath.Join(at, "avail") {
			t.Errorf("%v: %+v, %v", m, d, err)
		}
	}
	none := t.TempDir()
	for name, c := range map[string]struct {
		m    machine
		want error
		text string
	}{
		"no command": {machine{Lists: none, Dumpavail: []string{"apt-cache-that-is-not-there"}}, ErrNoIndex,
			"executable file not found"},
		"no command at all": {machine{Lists: none}, ErrNoIndex, "no lists in " + none},
		"command fails": {machine{Lists: none, Dumpavail: []string{"sh", "-c", "echo no cache >&2; exit 3"}},
			ErrNoIndex, "exit status 3: no cache"},
		"fails after records": {
			machine{Lists: none, Dumpavail: []string{"sh", "-c", "cat " + filepath.Join(at, "avail") + "; exit 3"}}, ErrNoIndex,
			"exit status 3",
		},
		"prints nothing": {machine{Lists: none, Dumpavail: []string{"true"}}, ErrNoIndex,
			"true give 0 packages, want 1000; apt-get update fetches it"},
		"installed alone": {machine{Lists: none, Dumpavail: print("few")}, ErrNoIndex, "give 20 packages, want 1000"},
		"few in lists": {machine{Lists: folder(t, "a_Packages", synthetic(t, 20))}, ErrNoIndex,
			"give 20 packages, want 1000"},
		"cut":      {machine{Lists: none, Dumpavail: print("cut")}, ErrCut, "cat "},
		"cut list": {machine{Lists: folder(t, "a_Packages", text[:1000])}, ErrCut, "a_Packages:"},
	} {
		if d, err := c.m.load(t.Context()); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: data %v, error %v", name, d != nil, err)
		}
	}
}

// A command that does not end by itself ends with the context.
func TestDumpavailEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	script := "printf 'Package: a\\n\\n'; exec sleep 1000"
	m := machine{Lists: t.TempDir(), Dumpavail: []string{"sh", "-c", script}}
	done := make(chan error, 1)
	go func() {
		_, err := m.load(ctx)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestSyntheticInput(t *testing.T) {
	d, err := Load(t.Context(), Synthetic)
	if err != nil {
		t.Fatal(err)
	}
	if !d.Synthetic || d.Records != syntheticRecords || !strings.Contains(d.Source, "synthetic") ||
		len(d.Classes) != len(topics) {
		t.Errorf("synthetic %v, %d records from %q, classes %q", d.Synthetic, d.Records, d.Source, d.Classes)
	}
	if d.Train.Len()+d.Test.Len() != syntheticRecords {
		t.Errorf("%d and %d examples of %d records: names repeat", d.Train.Len(), d.Test.Len(), d.Records)
	}
	if !slices.IsSorted(d.Classes) {
		t.Errorf("classes %q", d.Classes)
	}
	if first, second := synthetic(t, 50), synthetic(t, 50); first != second {
		t.Error("equal arguments give different text")
	}
}

// The machine that runs the test may have an index: then it loads.
func TestOwnIndex(t *testing.T) {
	d, err := Load(t.Context(), "")
	if errors.Is(err, ErrNoIndex) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if d.Train.Len()+d.Test.Len() < ownMin {
		t.Errorf("%d and %d examples", d.Train.Len(), d.Test.Len())
	}
	t.Logf("%s: %d records, %d sections, %d to train and %d to test with", d.Source, d.Records, len(d.Classes),
		d.Train.Len(), d.Test.Len())
}
