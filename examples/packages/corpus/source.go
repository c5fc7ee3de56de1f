package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"

	"gradbus/internal/regular"
)

// Synthetic is the input that is generated instead of read.
const Synthetic = "synthetic"

// ownMin is the fewest labelled packages that make a machine's own index worth training on. A machine whose lists were
// never fetched still knows the few hundred packages that are installed on it.
const ownMin = 1000

// Load reads the data of an input: the path of a Packages index (plain, gz, xz or lz4, or what apt-cache dumpavail
// prints), "" for this machine's own index, or Synthetic. Who has a file of that name writes ./synthetic.
//
// For this machine's own it fails with ErrNoIndex where there is none; for a file with the errors of readIndex and
// Unpack, of opening (fs.ErrNotExist) and with ErrTooFew. It ends early when ctx does.
func Load(ctx context.Context, input string) (*Data, error) {
	switch input {
	case "":
		return machine{Lists: "/var/lib/apt/lists", Dumpavail: []string{"apt-cache", "dumpavail"}}.load(ctx)
	case Synthetic:
		return loadSynthetic(ctx)
	}
	c := newCollector()
	if err := c.readFile(ctx, input); err != nil {
		return nil, err
	}
	return c.data(input)
}

func (c *collector) readFile(ctx context.Context, path string) error {
	f, err := regular.Open(path)
	if err != nil {
		return fmt.Errorf("read package index: %w", err)
	}
	defer f.Close()
	return c.read(ctx, f, path)
}

func (c *collector) read(ctx context.Context, r io.Reader, label string) error {
	text, err := unpack(r)
	if err != nil {
		return fmt.Errorf("read package index %s: %w", label, err)
	}
	_, err = readIndex(text, label, func(r record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return c.add(r)
	})
	if err != nil {
		return fmt.Errorf("read package index %w", err)
	}
	return nil
}

func loadSynthetic(ctx context.Context) (*Data, error) {
	var text bytes.Buffer
	if err := WriteSynthetic(&text, syntheticRecords, syntheticSeed); err != nil {
		return nil, err
	}
	c := newCollector()
	if err := c.read(ctx, &text, Synthetic); err != nil {
		return nil, err
	}
	d, err := c.data("generated text (synthetic, not real packages)")
	if err == nil {
		d.Synthetic = true
	}
	return d, err
}

// machine is where a machine keeps its own index.
type machine struct {
	Lists     string   // folder of the lists that apt has fetched
	Dumpavail []string // command that prints the index where the lists cannot be read here
}

// load reads the lists of the folder, all *_Packages files in the order of their names, plain or compressed; where
// there are none, or some are compressed in a way not read here, what the command prints. It fails with ErrNoIndex
// where that is nothing, or fewer than a thousand labelled packages.
func (m machine) load(ctx context.Context) (*Data, error) {
	paths, err := listFiles(m.Lists)
	if err != nil {
		return nil, fmt.Errorf("read package lists: %w", err)
	}
	if len(paths) > 0 {
		d, err := loadLists(ctx, m.Lists, paths)
		if !errors.Is(err, ErrCompression) {
			return d, err
		}
	}
	return m.dumpavail(ctx)
}

func loadLists(ctx context.Context, folder string, paths []string) (*Data, error) {
	c := newCollector()
	for _, path := range paths {
		// An archive without packages has an empty list.
		if err := c.readFile(ctx, path); err != nil && !errors.Is(err, ErrEmpty) {
			return nil, err
		}
	}
	return c.own(fmt.Sprintf("%d lists in %s", len(paths), folder))
}

// own makes data of a machine's own index, unless it is next to nothing.
func (c *collector) own(source string) (*Data, error) {
	if n := c.labelled(); n < ownMin {
		return nil, fmt.Errorf("%w: %s give %d packages, want %d; apt-get update fetches it", ErrNoIndex, source, n, ownMin)
	}
	return c.data(source)
}

// listFiles gives the Packages files among apt's lists, sorted by name. A folder that is not there has none.
func listFiles(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		_, suffix, ok := cutLast(e.Name(), "_Packages")
		if ok && !e.IsDir() && slices.Contains([]string{"", ".gz", ".xz", ".lz4", ".zst", ".bz2", ".lzma"}, suffix) {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	slices.Sort(paths)
	return paths, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// dumpavail runs the command and reads what it prints.
func (m machine) dumpavail(ctx context.Context) (*Data, error) {
	if len(m.Dumpavail) == 0 {
		return nil, fmt.Errorf("%w: no lists in %s", ErrNoIndex, m.Lists)
	}
	label := strings.Join(m.Dumpavail, " ")
	cmd := exec.CommandContext(ctx, m.Dumpavail[0], m.Dumpavail[1:]...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", label, err)
	}
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: no lists in %s, and %w", ErrNoIndex, m.Lists, err)
	}
	c := newCollector()
	readErr := c.read(ctx, out, label)
	out.Close() // ends a command whose output was not read to its end
	waitErr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case readErr != nil && !errors.Is(readErr, ErrEmpty):
		return nil, readErr
	case waitErr != nil:
		return nil, fmt.Errorf("%w: no lists in %s, and %s: %w: %s", ErrNoIndex, m.Lists, label, waitErr,
			firstLine(complaint.String()))
	}
	return c.own(label)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// magics are the first bytes of compressed files; those without a reader are only named in an error.
var magics = []struct {
	name   string
	magic  []byte
	reader func(io.Reader) (io.Reader, error)
}{
	{"gz", []byte{0x1f, 0x8b}, func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, newXZ},
	{"lz4", []byte{0x04, 0x22, 0x4d, 0x18}, func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil }},
	{"zst", []byte{0x28, 0xb5, 0x2f, 0xfd}, nil},
	{"bz2", []byte("BZh"), nil},
	{"lzma", []byte{0x5d, 0, 0}, nil},
	{"zip", []byte("PK\x03\x04"), nil},
}

// unpack gives the text of r, whichever way it is compressed; its first bytes decide, not its name. Errors of the
// reader it returns are ErrCut and ErrDamaged; without a single byte in r it fails with ErrEmpty.
func unpack(r io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	head, err := in.Peek(6)
	if len(head) == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: no bytes", ErrEmpty)
		}
		return nil, err
	}
	for _, m := range magics {
		if !bytes.HasPrefix(head, m.magic) {
			continue
		}
		if m.reader == nil {
			return nil, fmt.Errorf("%w %s: want plain text, gz, xz or lz4; unpack it first", ErrCompression, m.name)
		}
		u := &unpacked{name: m.name, in: in}
		u.out, err = m.reader(in)
		if err != nil {
			return nil, u.blame(err)
		}
		return u, nil
	}
	return in, nil
}

// unpacked gives a decompressor's errors our names.
type unpacked struct {
	name string
	in   *bufio.Reader
	out  io.Reader
}

func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.out.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = u.blame(err)
	}
	return n, err
}

// blame calls the data cut where the decompressor wanted more than there is, and damaged otherwise.
func (u *unpacked) blame(err error) error {
	if _, end := u.in.Peek(1); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) && errors.Is(end, io.EOF) {
		return fmt.Errorf("%s data: %w", u.name, ErrCut)
	}
	return fmt.Errorf("%s data: %w: %w", u.name, ErrDamaged, err)
}

// The xz library takes the end of the input within a block's header or within the index for the end of the data. So the
// last bytes of the input are looked at too: a whole file ends with a stream footer, followed by zeros at most.
//
// Source: The .xz File Format, 1.2.0, sections 2.1.2 and 2.2.

const footerBytes = 12 // CRC-32 of the next six, backward size, flags, "YZ"

type xzReader struct {
	in  *tail
	out *xz.Reader
}

func newXZ(r io.Reader) (io.Reader, error) {
	in := &tail{in: r}
	out, err := xz.NewReader(in)
	if err != nil {
		return nil, err
	}
	return &xzReader{in, out}, nil
}

func (x *xzReader) Read(p []byte) (int, error) {
	n, err := x.out.Read(p)
	if errors.Is(err, io.EOF) && !isFooter(x.in.last) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func isFooter(b []byte) bool {
	return len(b) == footerBytes && b[10] == 'Y' && b[11] == 'Z' &&
		binary.LittleEndian.Uint32(b) == crc32.ChecksumIEEE(b[4:10])
}

// tail remembers the last bytes that were read, without the zeros after them.
type tail struct {
	in    io.Reader
	last  []byte // at most footerBytes, the last of them not zero
	zeros int    // after last, as far as they matter
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.in.Read(p)
	if kept := bytes.TrimRight(p[:n], "\x00"); len(kept) > 0 {
		t.last = append(t.last, make([]byte, t.zeros)...)
		t.last = append(t.last, kept[max(0, len(kept)-footerBytes):]...)
		t.last = append(t.last[:0], t.last[max(0, len(t.last)-footerBytes):]...)
		t.zeros = min(n-len(kept), footerBytes)
	} else {
		t.zeros = min(t.zeros+n, footerBytes)
	}
	return n, err
}
