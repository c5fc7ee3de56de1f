package corpus

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
)

// classesMax bounds the number of sections, and with it the classifier.
const classesMax = 4096

// Data is a training set and a test set.
type Data struct {
	Source    string // where it came from, for people
	Synthetic bool   // generated: its accuracy says nothing about real packages
	Records   int    // read, before those without a section and those named twice were left out
	Classes   []string
	Train     Examples
	Test      Examples
	Digest    [32]byte // of names, classes and keys; equal for equal records
}

// Examples are packages, ordered by name.
type Examples struct {
	Names   []string
	Labels  []int32  // [n] index into Data.Classes
	Offsets []int64  // [n+1] where each example's keys begin in Keys
	Keys    []uint64 // in [0, Rows)
}

// Len is the number of examples.
func (e *Examples) Len() int { return len(e.Labels) }

// KeysOf are the keys of example i; the slice is part of e.Keys.
func (e *Examples) KeysOf(i int) []uint64 { return e.Keys[e.Offsets[i]:e.Offsets[i+1]] }

func (e *Examples) add(r record, label int32) {
	if len(e.Offsets) == 0 {
		e.Offsets = append(e.Offsets, 0)
	}
	e.Names = append(e.Names, r.Name)
	e.Labels = append(e.Labels, label)
	e.Keys = AppendKeys(e.Keys, r.Name, r.Description)
	e.Offsets = append(e.Offsets, int64(len(e.Keys)))
}

// collector keeps the records that count: the last of each name.
type collector struct {
	total  int
	byName map[string]record
}

func newCollector() *collector { return &collector{byName: make(map[string]record, 1<<16)} }

func (c *collector) add(r record) error {
	c.total++
	if _, known := c.byName[r.Name]; !known && len(c.byName) == recordsMax {
		return fmt.Errorf("%w: more than %d packages", ErrTooLarge, recordsMax)
	}
	c.byName[r.Name] = r
	return nil
}

// labelled is the number of packages with a section.
func (c *collector) labelled() int {
	n := 0
	for _, r := range c.byName {
		if r.Section != "" {
			n++
		}
	}
	return n
}

// data makes examples of the records. It fails with ErrTooFew.
func (c *collector) data(source string) (*Data, error) {
	d := &Data{Source: source, Records: c.total}
	labels := map[string]int32{}
	names := make([]string, 0, len(c.byName))
	for name, r := range c.byName {
		if r.Section != "" {
			names = append(names, name)
			labels[r.Section] = 0
		}
	}
	if len(labels) < 2 {
		return nil, fmt.Errorf("%s: %w: %d packages have a section, of %d sections in all; want at least two sections",
			source, ErrTooFew, len(names), len(labels))
	}
	if len(labels) > classesMax {
		return nil, fmt.Errorf("%s: %w: %d sections, want at most %d", source, ErrTooLarge, len(labels), classesMax)
	}
	d.Classes = slices.Sorted(maps.Keys(labels))
	for i, class := range d.Classes {
		labels[class] = int32(i)
	}
	slices.Sort(names)
	sum := newDigest()
	for _, name := range names {
		r := c.byName[name]
		set := &d.Train
		if isTest(name) {
			set = &d.Test
		}
		set.add(r, labels[r.Section])
		sum.add(r, set.KeysOf(set.Len()-1))
	}
	if d.Train.Len() == 0 || d.Test.Len() == 0 {
		return nil, fmt.Errorf("%s: %w: %d to train with and %d to test with; want at least one of each", source, ErrTooFew,
			d.Train.Len(), d.Test.Len())
	}
	sum.hash.Sum(d.Digest[:0])
	return d, nil
}

// digest hashes, for each example in the order of names: the name, a zero byte, the class, a zero byte, the number of
// keys and the keys, these as 32-bit little-endian words.
type digest struct {
	hash   hash.Hash
	buffer []byte
}

func newDigest() *digest { return &digest{hash: sha256.New()} }

func (d *digest) add(r record, keys []uint64) {
	b := append(append(append(append(d.buffer[:0], r.Name...), 0), r.Section...), 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(keys)))
	for _, k := range keys {
		b = binary.LittleEndian.AppendUint32(b, uint32(k))
	}
	d.hash.Write(b)
	d.buffer = b
}

// Dump writes the examples for programs in other languages: one line each, in the order of names; the name, the class
// and the keys, separated by tabs, the keys by spaces.
func (d *Data) Dump(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	train, test := 0, 0
	for train < d.Train.Len() || test < d.Test.Len() {
		set, i := &d.Train, &train
		if train == d.Train.Len() || test < d.Test.Len() && d.Test.Names[test] < d.Train.Names[train] {
			set, i = &d.Test, &test
		}
		line = append(append(append(append(line[:0], set.Names[*i]...), '\t'), d.Classes[set.Labels[*i]]...), '\t')
		for j, k := range set.KeysOf(*i) {
			if j > 0 {
				line = append(line, ' ')
			}
			line = strconv.AppendUint(line, k, 10)
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("write examples: %w", err)
		}
		*i++
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write examples: %w", err)
	}
	return nil
}
