package corpus

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// two is an index as apt keeps it: the last record ends with an empty line.
const two = `Package: 0ad
Version: 0.0.26-3
Description: Real-time strategy game of ancient warfare
Description-md5: d943033bedada21853d2ae54a2578a7b
Tag: game::strategy, interface::graphical,
 uitoolkit::sdl
Section: games
SHA256: 3a21

Package: g++-12
Version: 12.2.0-14
Description: GNU C++ compiler
Description-md5: aaaa
Section: contrib/devel
SHA256: 3b22

`

func read(text string) ([]record, error) {
	var records []record
	n, err := readIndex(strings.NewReader(text), "F", func(r record) error {
		records = append(records, r)
		return nil
	})
	if err == nil && n != len(records) {
		err = fmt.Errorf("%d records reported, %d yielded", n, len(records))
	}
	return records, err
}

func TestReadIndex(t *testing.T) {
	game := record{"0ad", "games", "Real-time strategy game of ancient warfare"}
	compiler := record{"g++-12", "devel", "GNU C++ compiler"}
	for name, c := range map[string]struct {
		text string
		want []record
	}{
		"as apt keeps it":         {two, []record{game, compiler}},
		"without last empty line": {strings.TrimSuffix(two, "\n"), []record{game, compiler}},
		"with more empty lines":   {"\n\n" + strings.ReplaceAll(two, "\n\n", "\n \t\n\n"), []record{game, compiler}},
		"lines end as in Windows": {strings.ReplaceAll(two, "\n", "\r\n"), []record{game, compiler}},
		"with comments": {"# made by hand\n" + strings.ReplaceAll(two, "Section", "# not: now\nSection"),
			[]record{game, compiler}},
		"one record":              {"Package: a\n", []record{{Name: "a"}}},
		"field names in capitals": {"PACKAGE:a\nsection:x/y/z\nDESCRIPTION:  b  \n\n", []record{{"a", "z", "b"}}},
		"long description": {"Package: a\nDescription: first\n second: line\n .\n third\nSection: s\n\n",
			[]record{{"a", "s", "first"}}},
		"translated description": {"Package: a\nDescription-en: english\n long\nSection: s\n\n",
			[]record{{"a", "s", "english"}}},
		"both descriptions": {"Package: a\nDescription-en: english\nDescription: d\nSection: s\n\n",
			[]record{{"a", "s", "d"}}},
		"optional last field, no last empty line": {"Package: a\nSection: s\n\nPackage: b\nSection: s\nTag: x\n\nPackage: " +
			"c\nSection: s\n",
			[]record{{"a", "s", ""}, {"b", "s", ""}, {"c", "s", ""}}},
		"empty values":            {"Package: a\nSection:\nDescription:\n\n", []record{{Name: "a"}}},
		"section ends in a slash": {"Package: a\nSection: contrib/\n\n", []record{{Name: "a"}}},
	} {
		got, err := read(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestReadIndexRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		kind error
		want string
	}{
		"empty":         {"", ErrEmpty, `F: empty: no package records`},
		"blank":         {"\n \n\t\n", ErrEmpty, `F: empty: no package records`},
		"comments only": {"# nothing\n", ErrEmpty, `F: empty: no package records`},
		"prose": {"Hello\nthere\n", ErrNotIndex,
			`F:1: not a Packages index: "Hello" is not of the form "Field: value"`},
		"prose in one line": {"Hello there", ErrNotIndex,
			`F:1: not a Packages index: "Hello there" is not of the form "Field: value"`},
		"html": {"<!DOCTYPE html>\n<html lang=\"x:y\">\n", ErrNotIndex,
			`F:1: not a Packages index: "<!DOCTYPE html>" is not of the form "Field: value"`},
		"json": {"{\"Package\": 1}\n", ErrNotIndex,
			`F:1: not a Packages index: "{\"Package\": 1}" is not of the form "Field: value"`},
		"binary": {"\x7fELF\x02\x01\x01\x00\x00:\x00\n", ErrNotIndex,
			`F:1: not a Packages index: "\x7fELF\x02\x01\x01\x00\x00:\x00" is not of the form "Field: value"`},
		"binary without a line": {"\x00\x01:\x02", ErrNotIndex,
			`F:1: not a Packages index: "\x00\x01:\x02" is not of the form "Field: value"`},
		"later line": {two + "Package: x\nwhat is this\n\n", ErrNotIndex,
			`F:18: not a Packages index: "what is this" is not of the form "Field: value"`},
		"long line": {"x" + strings.Repeat("y", 60) + "\n", ErrNotIndex,
			`F:1: not a Packages index: "xyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"... is not of the form "Field: value"`},
		"no field name": {": x\n\n", ErrNotIndex,
			`F:1: not a Packages index: ": x" is not of the form "Field: value"`},
		"signature": {"-----BEGIN PGP: x\n", ErrNotIndex,
			`F:1: not a Packages index: "-----BEGIN PGP: x" is not of the form "Field: value"`},
		"continues nothing": {" x\n", ErrNotIndex, `F:1: not a Packages index: " x" continues no field`},
		"release file": {"Origin: Debian\nLabel: Debian\n\n", ErrNotIndex,
			`F:1: not a Packages index: the record that begins here has no Package field`},
		"second record unnamed": {two + "Version: 1\n\n", ErrNotIndex,
			`F:17: not a Packages index: the record that begins here has no Package field`},
		"two in one": {"Package: a\nPackage: b\n\n", ErrNotIndex,
			`F:2: not a Packages index: a second Package field in the record that begins at line 1: want an empty line between records`},
		"name with blank": {"Package: a b\n\n", ErrNotIndex,
			`F:1: not a Packages index: package name "a b": want letters, digits and + - . _ ~`},
		"name empty": {"Package:\n\n", ErrNotIndex,
			`F:1: not a Packages index: package name "": want letters, digits and + - . _ ~`},
		"name too long": {"Package: " + strings.Repeat("a", 256) + "\n\n", ErrNotIndex,
			`F:1: not a Packages index: package name "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"...: want letters, digits and + - . _ ~`},
		"section of two words": {"Package: a\nSection: b c\n\n", ErrNotIndex,
			`F:2: not a Packages index: section "b c": want one word`},
		"line without end": {"Package: a\nSection: b\nX: " + strings.Repeat("y", lineBytesMax), ErrNotIndex,
			`F:3: not a Packages index: a line of more than 1048576 bytes`},
		"cut in a line": {two[:len(two)-4], ErrCut,
			`F:15: cut short: the input ends in the middle of a line, at "SHA256: 3b"`},
		"cut in the first line": {"Package: a", ErrCut,
			`F:1: cut short: the input ends in the middle of a line, at "Package: a"`},
		"cut after a line": {two[:strings.LastIndex(two, "Section")], ErrCut,
			`F:13: cut short: the input ends within the record of "g++-12", which lacks SHA256, Section, Tag`},
	} {
		got, err := read(c.text)
		if !errors.Is(err, c.kind) || err.Error() != c.want {
			t.Errorf("%s: records %q\ngot  %v\nwant %s", name, got, err, c.want)
		}
	}
}

// Cut anywhere within a record, an index is refused; between records it cannot be told from a shorter one.
func TestReadIndexEveryCut(t *testing.T) {
	whole := map[int]int{}
	first := strings.Index(two, "\n\n") + 1
	for _, at := range []int{first, first + 1} {
		whole[at] = 1
	}
	for _, at := range []int{len(two) - 1, len(two)} {
		whole[at] = 2
	}
	// The first record has none before it to compare with: cut between two of its lines it is a short record.
	for i := range first {
		if i > 0 && two[i-1] == '\n' {
			whole[i] = 1
		}
	}
	for i := range len(two) + 1 {
		records, err := read(two[:i])
		switch want, ok := whole[i]; {
		case ok && (err != nil || len(records) != want):
			t.Errorf("cut at %d: %d records, %v", i, len(records), err)
		case !ok && i > 0 && !errors.Is(err, ErrCut) && !errors.Is(err, ErrNotIndex):
			t.Errorf("cut at %d (%q): %v", i, two[max(0, i-10):i], err)
		}
	}
}

// However the reader deals out its bytes, the records are the same; its own error comes through with the line.
func TestReadIndexReaders(t *testing.T) {
	var names []string
	if _, err := readIndex(iotest.OneByteReader(strings.NewReader(two)), "F", func(r record) error {
		names = append(names, r.Name)
		return nil
	}); err != nil || !slices.Equal(names, []string{"0ad", "g++-12"}) {
		t.Errorf("byte by byte: %q, %v", names, err)
	}
	broken := errors.New("disk on fire")
	_, err := readIndex(io.MultiReader(strings.NewReader(two[:30]), iotest.ErrReader(broken)), "F",
		func(record) error { return nil })
	if !errors.Is(err, broken) || err.Error() != "F: after line 1: disk on fire" {
		t.Errorf("broken reader: %v", err)
	}
	stop := errors.New("enough")
	n, err := readIndex(strings.NewReader(two), "F", func(record) error { return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("yield's error: %d records, %v", n, err)
	}
}

// No text makes the reader panic, and what it yields keeps the rules that the rest relies on.
func FuzzReadIndex(f *testing.F) {
	for _, s := range []string{two, "", "Package: a\n\n", " x\n", ":", "Package: a\nSection: b/c\nDescription: d",
		"#\n\nPackage: x\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := readIndex(strings.NewReader(text), "F", func(r record) error {
			if r.Name == "" || strings.ContainsAny(r.Name+r.Section, " \t\n\x00") || strings.Contains(r.Section, "/") ||
				strings.Contains(r.Description, "\n") {
				t.Errorf("record %q", r)
			}
			return nil
		})
		if err == nil && n == 0 {
			t.Error("neither records nor an error")
		}
	})
}
