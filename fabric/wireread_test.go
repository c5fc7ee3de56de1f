package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"unsafe"
)

// heard is an event with what it points to copied.
type heard struct {
	op                  wireOp
	sid                 uint64
	subject, text, data string
}

// hear reads everything that a server says, and the error that ends it.
func hear(source io.Reader) (all []heard, err error) {
	r := newWireReader(source, &Buffers{bytesMax: 1 << 20})
	r.payloadMax = 1 << 20
	for {
		var e wireEvent
		if err := r.next(&e); err != nil {
			return all, err
		}
		all = append(all, heard{e.op, e.sid, string(e.subject), string(e.text), string(e.data)})
		e.lease.Release()
	}
}

func TestWireReaderLiterals(t *testing.T) {
	for _, c := range []struct {
		said string
		want []heard
	}{
		{"PING\r\n", []heard{{op: opPing}}},
		{"pong\r\n", []heard{{op: opPong}}},
		{"+OK\r\n\r\n", []heard{{}, {}}},
		{"INFO {\"a\":1}\r\n", []heard{{op: opInfo, text: `{"a":1}`}}},
		{"-ERR 'Slow Consumer'\r\n", []heard{{op: opErr, text: "Slow Consumer"}}},
		{"MSG a.b 7 0\r\n\r\n", []heard{{op: opMsg, sid: 7, subject: "a.b"}}},
		{"MSG a 1 3\r\nxyz\r\nPING\r\n", []heard{{op: opMsg, sid: 1, subject: "a", data: "xyz"}, {op: opPing}}},
		{"MSG  a  1  answer.to  002\r\n\r\n\r\n", []heard{{op: opMsg, sid: 1, subject: "a", data: "\r\n"}}},
		{"MSG a 1 5\r\nMSG a\r\nMSG b 2 1\r\nx\r\n",
			[]heard{{op: opMsg, sid: 1, subject: "a", data: "MSG a"}, {op: opMsg, sid: 2, subject: "b", data: "x"}}},
	} {
		for name, source := range map[string]io.Reader{
			"at once": strings.NewReader(c.said), "bytewise": iotest.OneByteReader(strings.NewReader(c.said)),
		} {
			got, err := hear(source)
			if err != io.EOF || fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%q %s: %+v, %v; want %+v", c.said, name, got, err, c.want)
			}
		}
	}
}

func TestWireReaderRefuses(t *testing.T) {
	for _, said := range []string{
		"SSH-2.0\r\n", "MSG\r\n", "MSG a 1\r\n", "MSG a 1 2 3 4\r\n", "MSG a x 1\r\n", "MSG a 1 -1\r\n",
		"MSG a 1 1048577\r\n",
		"MSG a 1 99999999999999999999999\r\n", "MSG a 18446744073709551616 1\r\n", "MSG a 1 2\r\nxyz\r\n",
		"MSG a 1 2\r\nx\r\nPING\r\n",
		"HMSG a 1 12 12\r\n", strings.Repeat("x", lineBytesMax+1), "INFO " + strings.Repeat("x", lineBytesMax) + "\r\n",
	} {
		if got, err := hear(strings.NewReader(said)); !errors.Is(err, errProtocol) {
			t.Errorf("%q: %+v, %v; want errProtocol", clip(said), got, err)
		}
	}
	if _, err := hear(strings.NewReader("MSG a 1 100\r\nx")); err != io.EOF {
		t.Errorf("a message cut off: %v", err)
	}
	if _, err := hear(iotest.ErrReader(nil)); err != io.ErrNoProgress {
		t.Errorf("a source that gives nothing: %v", err)
	}
}

// conversation makes up what a server might say, and what should be heard.
func conversation(rng *rand.Rand) (said []byte, want []heard) {
	for range 1 + rng.IntN(60) {
		switch rng.IntN(6) {
		case 0:
			said, want = append(said, "PING\r\n"...), append(want, heard{op: opPing})
		case 1:
			text := strings.Repeat("i", rng.IntN(lineBytesMax-100))
			said, want = append(said, "INFO "+text+"\r\n"...), append(want, heard{op: opInfo, text: text})
		default:
			data := make([]byte, []int{rng.IntN(100), rng.IntN(6000), rng.IntN(100_000)}[rng.IntN(3)])
			for i := range data {
				data[i] = "\r\nMSG 1"[rng.IntN(7)]
			}
			h := heard{op: opMsg, sid: rng.Uint64N(1000), subject: strings.Repeat("s", 1+rng.IntN(200)), data: string(data)}
			said = fmt.Appendf(said, "MSG %s %d %d\r\n%s\r\n", h.subject, h.sid, len(data), data)
			want = append(want, h)
		}
	}
	return said, want
}

// stutter gives what it has in pieces of random size.
type stutter struct {
	rng  *rand.Rand
	left []byte
}

func (s *stutter) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		return 0, io.EOF
	}
	most := []int{1, 10, 1000, 70_000}[s.rng.IntN(4)]
	n := copy(p, s.left[:min(len(s.left), 1+s.rng.IntN(most))])
	s.left = s.left[n:]
	return n, nil
}

func TestWireReaderRandom(t *testing.T) {
	rng := newRand(t)
	conversations := 300
	if testing.Short() {
		conversations = 60
	}
	for range conversations {
		said, want := conversation(rng)
		got, err := hear(&stutter{rng, said})
		if err != io.EOF || len(got) != len(want) {
			t.Fatalf("%d events, %v; want %d", len(got), err, len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("event %d: %.100v, want %.100v", i, got[i], want[i])
			}
		}
	}
}

// What a hostile server sends is an error and no more: no panic, no memory for lengths that were not checked.
func FuzzWireReader(f *testing.F) {
	f.Add([]byte("INFO {}\r\nPING\r\nMSG a.b 1 3\r\nxyz\r\n-ERR 'x'\r\n"), uint64(1))
	f.Add([]byte("MSG a 1 1048576\r\n"), uint64(2))
	f.Add(bytes.Repeat([]byte("MSG a 1 0\r\n\r\n"), 5000), uint64(3))
	f.Fuzz(func(t *testing.T, said []byte, seed uint64) {
		whole, err := hear(bytes.NewReader(said))
		if err == nil {
			t.Fatal("no end")
		}
		// In whichever pieces it comes, the same is heard.
		pieces, _ := hear(&stutter{rand.New(rand.NewPCG(seed, 1)), said})
		if fmt.Sprint(whole) != fmt.Sprint(pieces) {
			t.Fatalf("at once %.200v, in pieces %.200v", whole, pieces)
		}
	})
}

func TestMessagesAreAligned(t *testing.T) {
	rng := newRand(t)
	said, _ := conversation(rng)
	r := newWireReader(&stutter{rng, said}, &Buffers{bytesMax: 1 << 20})
	for {
		var e wireEvent
		if err := r.next(&e); err != nil {
			return
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(e.data))); e.op == opMsg && at%64 != 0 {
			t.Fatalf("a message at %#x", at)
		}
		if cap(e.data) != len(e.data) {
			t.Fatal("appending to a message would overwrite what is behind it")
		}
	}
}
