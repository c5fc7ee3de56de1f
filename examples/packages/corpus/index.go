package corpus

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// record is the part of a package that the classifier uses.
type record struct {
	Name        string
	Section     string // after its last slash: "contrib/games" is "games"; empty where the record has none
	Description string // its first line
}

const (
	lineBytesMax = 1 << 20 // of one line; real ones reach some 60 KiB
	recordsMax   = 1 << 22 // of one index; Debian 12 has 64,000
	nameBytesMax = 255     // of a package name or section, as in a file name
)

// readIndex reads the records of a Packages index in the order of the input and gives each to yield; it returns their
// number. label names the input in errors. It holds one line at a time.
//
// A record is lines "Field: value", of which lines that begin with a blank continue the one before, up to an empty
// line; lines that begin with # are comments. Field names are not case sensitive. An index that was cut within a record
// is refused with ErrCut: the last line must end; and where no empty line follows the last record, it may not both lack
// a field that all records before it have and end with a field that ends none of them.
//
//	n, err := readIndex(strings.NewReader("Package: 0ad\nSection: games\n"), "example", func(record) error { return nil })
func readIndex(r io.Reader, label string, yield func(record) error) (int, error) {
	x := indexReader{
		in: bufio.NewReaderSize(r, lineBytesMax), label: label, yield: yield,
		fields: map[string]fieldSet{}, common: ^fieldSet(0),
	}
	for {
		line, err := x.in.ReadSlice('\n')
		switch {
		case err == nil:
			x.line++
			if err := x.take(bytes.TrimRight(line, " \t\r\n")); err != nil {
				return x.records, err
			}
		case errors.Is(err, io.EOF):
			return x.records, x.finish(line)
		case errors.Is(err, bufio.ErrBufferFull):
			return x.records, x.fail(x.line+1, ErrNotIndex, "a line of more than %d bytes", lineBytesMax)
		default:
			return x.records, fmt.Errorf("%s: after line %d: %w", label, x.line, err)
		}
	}
}

// fieldSet is a set of field names, by number; names beyond the 64th are left out.
type fieldSet uint64

type indexReader struct {
	in      *bufio.Reader
	label   string
	yield   func(record) error
	line    int // of the line in hand, from 1
	records int

	open   bool // within a record
	begin  int  // its first line
	record record
	spare  string              // its Description-en, for where it has no Description
	seen   fieldSet            // its fields
	last   fieldSet            // the last of them
	common fieldSet            // fields that all records before it have
	ends   fieldSet            // fields that end a record before it
	fields map[string]fieldSet // as spelt
}

func (x *indexReader) fail(line int, kind error, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w: %s", x.label, line, kind, fmt.Sprintf(format, args...))
}

// take handles one line, its end trimmed.
func (x *indexReader) take(line []byte) error {
	if len(line) == 0 {
		return x.close()
	}
	switch line[0] {
	case '#':
		return nil
	case ' ', '\t':
		if !x.open {
			return x.fail(x.line, ErrNotIndex, "%s continues no field", quoted(line))
		}
		return nil
	}
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || !isFieldName(name) {
		return x.fail(x.line, ErrNotIndex, `%s is not of the form "Field: value"`, quoted(line))
	}
	if !x.open {
		x.open, x.begin, x.record, x.spare, x.seen = true, x.line, record{}, "", 0
	}
	x.last = x.field(name)
	x.seen |= x.last
	return x.set(name, bytes.TrimLeft(value, " \t"))
}

// field gives the set of one field name.
func (x *indexReader) field(name []byte) fieldSet {
	bit, ok := x.fields[string(name)]
	if !ok && len(x.fields) < 64 {
		bit = 1 << len(x.fields)
		x.fields[string(name)] = bit
	}
	return bit
}

func (x *indexReader) set(field, value []byte) error {
	switch {
	case is(field, "package"):
		if x.record.Name != "" {
			return x.fail(x.line, ErrNotIndex,
				"a second Package field in the record that begins at line %d: want an empty line between records", x.begin)
		}
		if !isPackageName(value) {
			return x.fail(x.line, ErrNotIndex, "package name %s: want letters, digits and + - . _ ~", quoted(value))
		}
		x.record.Name = string(value)
	case is(field, "section"):
		section := value[bytes.LastIndexByte(value, '/')+1:]
		if len(section) > nameBytesMax || bytes.ContainsAny(section, " \t\x00") {
			return x.fail(x.line, ErrNotIndex, "section %s: want one word", quoted(value))
		}
		x.record.Section = string(section)
	case is(field, "description"):
		x.record.Description = string(value)
	case is(field, "description-en"):
		x.spare = string(value)
	}
	return nil
}

// close ends the open record, if there is one.
func (x *indexReader) close() error {
	if !x.open {
		return nil
	}
	x.open = false
	if x.record.Name == "" {
		return x.fail(x.begin, ErrNotIndex, "the record that begins here has no Package field")
	}
	if x.records == recordsMax {
		return x.fail(x.begin, ErrTooLarge, "more than %d records", recordsMax)
	}
	x.records++
	x.common &= x.seen
	x.ends |= x.last
	if x.record.Description == "" {
		x.record.Description = x.spare
	}
	return x.yield(x.record)
}

// finish ends the input; rest is what follows the last end of a line.
func (x *indexReader) finish(rest []byte) error {
	if len(rest) > 0 {
		if x.line == 0 && (!bytes.Contains(rest, []byte{':'}) || bytes.IndexByte(rest, 0) >= 0) {
			return x.fail(1, ErrNotIndex, `%s is not of the form "Field: value"`, quoted(rest))
		}
		return x.fail(x.line+1, ErrCut, "the input ends in the middle of a line, at %s", quoted(rest))
	}
	if x.open && x.records > 0 && x.common&^x.seen != 0 && x.ends&x.last == 0 {
		return x.fail(x.line, ErrCut, "the input ends within the record of %q, which lacks %s", x.record.Name, x.missing())
	}
	if err := x.close(); err != nil {
		return err
	}
	if x.records == 0 {
		return fmt.Errorf("%s: %w: no package records", x.label, ErrEmpty)
	}
	return nil
}

// missing names the fields that all records but the open one have.
func (x *indexReader) missing() string {
	var names []string
	for name, bit := range x.fields {
		if bit&x.common&^x.seen != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// is compares a field name with one in lower case.
func is(field []byte, lower string) bool {
	if len(field) != len(lower) {
		return false
	}
	for i, c := range field {
		if toLower(c) != lower[i] {
			return false
		}
	}
	return true
}

func isFieldName(name []byte) bool {
	for _, c := range name {
		if !isWord(toLower(c)) && c != '-' && c != '_' {
			return false
		}
	}
	return len(name) > 0 && name[0] != '-'
}

func isPackageName(name []byte) bool {
	for _, c := range name {
		switch c {
		case '+', '-', '.', '_', '~':
		default:
			if !isWord(toLower(c)) {
				return false
			}
		}
	}
	return len(name) > 0 && len(name) <= nameBytesMax
}

// isWord reports whether c is one of a-z and 0-9.
func isWord(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// toLower is for ASCII alone.
func toLower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// quoted shows the beginning of a line in an error.
func quoted(line []byte) string {
	if len(line) > 40 {
		return fmt.Sprintf("%q...", line[:40])
	}
	return fmt.Sprintf("%q", line)
}
