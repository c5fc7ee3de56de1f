package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/pierrec/lz4/v4"
)

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
