package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	lineBytesMax    = 64 << 10
	messageBytesMax = 16 << 20
)

// frame is one unit of the protocol: a line, and the data that follows it. Its bytes are valid until the next read.
type frame struct {
	raw     []byte
	subject []byte // of a message; else nil
	payload []byte // within raw, without the header block of HPUB and HMSG
	name    string // of the connection, if the line was a CONNECT with a name
}

// errProtocol ends a connection whose framing is lost.
var errProtocol = errors.New("not the NATS client protocol")

// reader cuts a stream into frames.
type reader struct {
	from *bufio.Reader
	raw  []byte // of the latest frame, reused
	args [][]byte
}

func newReader(from io.Reader) *reader {
	return &reader{from: bufio.NewReaderSize(from, lineBytesMax)}
}

// next reads one frame. It never gives a part of one.
func (r *reader) next() (frame, error) {
	line, err := r.from.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			err = fmt.Errorf("%w: a line of more than %d bytes", errProtocol, lineBytesMax)
		}
		return frame{}, err
	}
	r.raw = append(r.raw[:0], line...)
	verb, rest, _ := bytes.Cut(bytes.TrimRight(r.raw, "\r\n"), []byte(" "))
	var sizes int // numbers at the end of the line: of the header block, and of all
	switch {
	case is(verb, "PUB"), is(verb, "MSG"):
		sizes = 1
	case is(verb, "HPUB"), is(verb, "HMSG"):
		sizes = 2
	case is(verb, "CONNECT"):
		var options struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(rest, &options) // the server will report what is wrong with it
		return frame{raw: r.raw, name: options.Name}, nil
	default:
		return frame{raw: r.raw}, nil
	}
	return r.message(rest, sizes)
}

func is(verb []byte, name string) bool {
	return len(verb) == len(name) && bytes.EqualFold(verb, []byte(name))
}

// message reads what follows the line of a message.
func (r *reader) message(rest []byte, sizes int) (frame, error) {
	r.args = append(r.args[:0], bytes.Fields(rest)...)
	if len(r.args) < 1+sizes {
		return frame{}, fmt.Errorf("%w: %q", errProtocol, r.raw)
	}
	line, subject := len(r.raw), r.args[0]
	total, err := strconv.Atoi(string(r.args[len(r.args)-1]))
	header := 0
	if sizes == 2 && err == nil {
		header, err = strconv.Atoi(string(r.args[len(r.args)-2]))
	}
	if err != nil || header < 0 || total < header || total > messageBytesMax {
		return frame{}, fmt.Errorf("%w: %q: want sizes of at most %d bytes", errProtocol, r.raw, messageBytesMax)
	}
	need := line + total + 2
	if cap(r.raw) < need {
		r.raw = append(make([]byte, 0, need), r.raw...)
	}
	r.raw = r.raw[:need]
	if _, err := io.ReadFull(r.from, r.raw[line:]); err != nil {
		return frame{}, err
	}
	if !bytes.HasSuffix(r.raw, []byte("\r\n")) {
		return frame{}, fmt.Errorf("%w: a payload of %d bytes does not end with its line", errProtocol, total)
	}
	return frame{raw: r.raw, subject: subject, payload: r.raw[line+header : line+total]}, nil
}

// idle reports whether nothing more has been read ahead.
func (r *reader) idle() bool { return r.from.Buffered() == 0 }
