package corpus

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gradbus/philox"
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

// Errors of reading, wrapped with the file and, where there is one, the line. No data is returned with them.
var (
	// ErrNoIndex: this machine has no package index of its own, or next to none. A caller may fall back to Synthetic.
	ErrNoIndex = errors.New("this machine has no package index")
	// ErrEmpty: the input has no bytes, or no records.
	ErrEmpty = errors.New("empty")
	// ErrCut: the input ends within a record or within compressed data.
	ErrCut = errors.New("cut short")
	// ErrDamaged: compressed data does not unpack, or its checksum differs.
	ErrDamaged = errors.New("damaged")
	// ErrNotIndex: the input is no Packages index; the error names the line.
	ErrNotIndex = errors.New("not a Packages index")
	// ErrCompression: the input is compressed in a way that is not read here.
	ErrCompression = errors.New("unsupported compression")
	// ErrTooLarge: the input goes beyond a limit of this package.
	ErrTooLarge = errors.New("too large")
	// ErrTooFew: the records give no classifier to train: fewer than two sections, or nothing to train or test with.
	ErrTooFew = errors.New("too few packages")
)

// Rows is the number of rows of the embedding table: a token's key is its CRC-32 (IEEE) modulo Rows.
const Rows = 1 << 18

// Tokenizer names the rules of this file; it is kept with saved models and compared when they are loaded.
const Tokenizer = "d:[a-z0-9+#.]+ n:split[-.+] crc32 mod 262144"

// Tokens gives the tokens of a package to yield: "d:" and each word of the description, in order, then "n:" and each
// part of the name. A word is a run of a-z, 0-9, +, # and . after upper-case ASCII letters were made lower; the name is
// split at each -, . and +, and empty parts are left out. The bytes are valid until yield returns.
//
// Tokens("g++-12", "GNU C++ compiler") gives d:gnu d:c++ d:compiler n:g n:12.
func Tokens(name, description string, yield func(token []byte)) {
	var buffer [64]byte
	each(buffer[:0], "d:", description, isTextByte, yield)
	each(buffer[:0], "n:", name, func(c byte) bool { return c != '-' && c != '.' && c != '+' }, yield)
}

// each yields prefix and every longest run of accepted bytes. Descriptions are lowered; names are lower case already.
func each(token []byte, prefix, text string, accepted func(byte) bool, yield func([]byte)) {
	token = append(token, prefix...)
	for i := range len(text) {
		c := text[i]
		if prefix == "d:" {
			c = toLower(c)
		}
		if accepted(c) {
			token = append(token, c)
			continue
		}
		if len(token) > len(prefix) {
			yield(token)
			token = token[:len(prefix)]
		}
	}
	if len(token) > len(prefix) {
		yield(token)
	}
}

func isTextByte(c byte) bool { return isWord(c) || c == '+' || c == '#' || c == '.' }

// Key is the row of a token: CRC-32 (IEEE) modulo Rows. Key([]byte("d:game")) is 107096.
func Key(token []byte) uint64 { return uint64(crc32.ChecksumIEEE(token) % Rows) }

// AppendKeys appends the keys of a package's tokens, in their order, repeats included. Either text may be empty.
func AppendKeys(keys []uint64, name, description string) []uint64 {
	Tokens(name, description, func(token []byte) { keys = append(keys, Key(token)) })
	return keys
}

// isTest reports whether a package belongs to the test set: one in ten, by the CRC-32 of its name.
func isTest(name string) bool { return crc32.ChecksumIEEE([]byte(name))%10 == 0 }

// Size and seed of the corpus that the input Synthetic stands for.
const (
	syntheticRecords = 12_000
	syntheticSeed    = 1
)

// topics are the sections of the generated corpus and the words that tell them apart.
var topics = []struct{ section, words string }{
	{"admin", "administration backup boot cluster cron daemon disk filesystem log monitoring partition quota system user"},
	{"database", "cache database index key mysql postgresql query record redis replication sql sqlite table transaction"},
	{"devel",
		"assembler bindings build c++ compiler debugger generator headers ide linker parser static symbols toolchain"},
	{"editors", "buffer edit editor emacs highlighting indent markdown notepad outline plugin spell tab text vim"},
	{"fonts", "arabic bitmap cursive family font glyph latin monospace opentype sans script serif truetype typeface"},
	{"games", "adventure arcade board card chess dungeon game level multiplayer play player puzzle shooter strategy"},
	{"graphics", "camera color drawing icon image jpeg paint photo pixel png render scanner thumbnail vector"},
	{"mail", "address attachment delivery filter imap inbox mail maildir message mime pop3 sender smtp spam"},
	{"math", "algebra calculator equation fraction geometry graph integral matrix number plot polynomial prime " +
		"solver statistics"},
	{"net", "bandwidth dhcp dns firewall ftp interface ip network packet proxy router ssh tunnel wireless"},
	{"python",
		"asyncio cpython decorator django iterator module notebook numpy pip pytest python python3 virtualenv wheel"},
	{"science", "astronomy atom biology chemistry climate dna genome molecule physics protein sequence simulation " +
		"star telescope"},
	{"sound", "album audio codec equalizer flac jack karaoke midi mixer mp3 music sample song synthesizer"},
	{"video", "capture dvd film frame movie mpeg player recorder screen stream subtitle television video webcam"},
	{"web", "apache blog browser css forum html http https javascript page server site url wiki"},
	{"x11", "applet clipboard compositor desktop display dock keyboard launcher mouse panel tray wallpaper widget window"},
}

// common are words that any description may have.
var common = strings.Fields(
	`a an and application based based client code collection common configuration data development
	documentation easy example extensible fast file files flexible for format framework free from full generic handling helper
	in interface library light lightweight linux modern new of on open package powerful program reader runtime service set shared
	simple small software source support suite the to tool tools unix using utilities utility various version with writer`)

// WriteSynthetic writes a Packages index of generated records, for machines that have none: names and descriptions made
// of words that are typical of a section, of words that any may have, and now and then of another section's. Equal
// arguments give equal bytes. Accuracy on it says that the machinery works, and nothing about real packages.
func WriteSynthetic(w io.Writer, records int, seed uint64) error {
	out := bufio.NewWriterSize(w, 1<<16)
	words := make([][]string, len(topics))
	for i, t := range topics {
		words[i] = strings.Fields(t.words)
	}
	for i := range records {
		s := philox.New(seed, "synthetic", uint64(i), 0, 0)
		pick := func(from []string) string { return from[s.Below(uint32(len(from)))] }
		topic := int(s.Below(uint32(len(topics))))
		word := func() string {
			switch at := s.Below(100); {
			case at < 52:
				return pick(common)
			case at < 92:
				return pick(words[topic])
			default:
				return pick(words[s.Below(uint32(len(words)))])
			}
		}
		description := make([]string, 4+s.Below(5))
		for j := range description {
			description[j] = word()
		}
		fmt.Fprintf(out,
			"Package: %s-%s-%d\nVersion: 1.%d\nArchitecture: all\nDescription: %s\nSection: %s\nTag: synthetic\n\n",
			pick(common), word(), i, i, strings.Join(description, " "), topics[topic].section)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write synthetic index: %w", err)
	}
	return nil
}
