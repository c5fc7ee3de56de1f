package corpus

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
)

func dataOf(t testing.TB, records ...record) *Data {
	t.Helper()
	d, err := tryData(records...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tryData(records ...record) (*Data, error) {
	c := newCollector()
	for _, r := range records {
		if err := c.add(r); err != nil {
			return nil, err
		}
	}
	return c.data("F")
}

// bash, 9mount and abacas are of the test set; the others are not.
var five = []record{
	{"vim", "editors", "Vi IMproved"},
	{"bash", "shells", "old, replaced below"},
	{"0ad", "games", "game"},
	{"none", "", "has no section"},
	{"9mount", "games", "mount game"},
	{"bash", "editors", "GNU shell"},
}

func TestData(t *testing.T) {
	d := dataOf(t, five...)
	if !slices.Equal(d.Classes, []string{"editors", "games"}) {
		t.Errorf("classes %q: those of replaced records do not count", d.Classes)
	}
	if d.Records != 6 || d.Synthetic || d.Source != "F" {
		t.Errorf("records %d, synthetic %v, source %q", d.Records, d.Synthetic, d.Source)
	}
	for name, c := range map[string]struct {
		set    *Examples
		names  []string
		labels []int32
	}{"train": {&d.Train, []string{"0ad", "vim"}, []int32{1, 0}},
		"test": {&d.Test, []string{"9mount", "bash"}, []int32{1, 0}}} {
		if !slices.Equal(c.set.Names, c.names) || !slices.Equal(c.set.Labels, c.labels) || c.set.Len() != 2 {
			t.Errorf("%s: %q %v", name, c.set.Names, c.set.Labels)
		}
	}
	if got, want := d.Test.KeysOf(1), AppendKeys(nil, "bash", "GNU shell"); !slices.Equal(got, want) {
		t.Errorf("keys of bash %v, want %v", got, want)
	}
	if got, want := d.Train.KeysOf(0), AppendKeys(nil, "0ad", "game"); !slices.Equal(got, want) {
		t.Errorf("keys of 0ad %v, want %v", got, want)
	}
}

// The digest, spelt out: name, 0, class, 0, number of keys, keys.
func TestDigest(t *testing.T) {
	d := dataOf(t, record{"vim", "a", ""}, record{"bash", "b", ""})
	// zlib.crc32(b"n:bash") % 2**18 = 0x326e and zlib.crc32(b"n:vim") % 2**18 = 0x2ff1d
	want := sha256.Sum256(
		[]byte("bash\x00b\x00\x01\x00\x00\x00\x6e\x32\x00\x00" + "vim\x00a\x00\x01\x00\x00\x00\x1d\xff\x02\x00"))
	if d.Digest != want {
		t.Errorf("digest %x, want %x", d.Digest, want)
	}
}

// Equal records, equal digest, whatever their order; any difference that training sees changes it.
func TestDigestTells(t *testing.T) {
	base := dataOf(t, five...)
	shuffled := slices.Clone(five)
	shuffled[0], shuffled[2], shuffled[4] = shuffled[4], shuffled[0], shuffled[2]
	if dataOf(t, shuffled...).Digest != base.Digest {
		t.Error("the order of records changes the digest")
	}
	unseen := append(slices.Clone(five), record{"other", "", "no section either"})
	unseen[0].Description = "VI, improved"
	if dataOf(t, unseen...).Digest != base.Digest {
		t.Error("what training does not see changes the digest")
	}
	seen := map[[32]byte]string{base.Digest: "base"}
	for what, change := range map[string]func(r []record){
		"name":        func(r []record) { r[0].Name = "vix" },
		"section":     func(r []record) { r[0].Section = "games" },
		"description": func(r []record) { r[0].Description = "Vi IMproved!?x" },
		"order":       func(r []record) { r[0].Description = "IMproved Vi" },
		"last of two": func(r []record) { r[1], r[5] = r[5], r[1] },
	} {
		changed := slices.Clone(five)
		change(changed)
		digest := dataOf(t, changed...).Digest
		if with, ok := seen[digest]; ok {
			t.Errorf("a changed %s gives the digest of %s", what, with)
		}
		seen[digest] = what
	}
}

func TestDataTooFew(t *testing.T) {
	for want, records := range map[string][]record{
		"F: too few packages: 0 packages have a section, of 0 sections in all; want at least two sections": {{"vim", "", ""}},
		"F: too few packages: 2 packages have a section, of 1 sections in all; want at least two sections": {{"vim", "a", ""},
			{"bash", "a", ""}},
		"F: too few packages: 2 to train with and 0 to test with; want at least one of each": {{"vim", "a", ""},
			{"0ad", "b", ""}},
		"F: too few packages: 0 to train with and 2 to test with; want at least one of each": {
			{"bash", "a", ""}, {"9mount", "b", ""},
		},
	} {
		if _, err := tryData(records...); !errors.Is(err, ErrTooFew) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestDataTooManyClasses(t *testing.T) {
	c := newCollector()
	for i := range classesMax + 1 {
		name := hex.EncodeToString([]byte{byte(i >> 8), byte(i)})
		if err := c.add(record{Name: name, Section: "s" + name}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.data("F"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%d sections: %v", classesMax+1, err)
	}
}

func TestDump(t *testing.T) {
	d := dataOf(t, record{"vim", "a", ""}, record{"bash", "b", ""}, record{"0ad", "b", "game"}, record{"+", "b", ""})
	var b strings.Builder
	if err := d.Dump(&b); err != nil {
		t.Fatal(err)
	}
	want := "+\tb\t\n0ad\tb\t107096 15555\nbash\tb\t12910\nvim\ta\t196381\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
