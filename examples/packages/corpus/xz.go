package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz"
)

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
