package fabric

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// loopback is a TCP connection to itself.
func loopback(t testing.TB) (near, far net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if near, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func TestPadBytes(t *testing.T) {
	for n, want := range map[int]int{
		10: 0, 32767 - 1024: 0, 32768 - 1024: 1024, 32767: 1, 32768: 0, 32769: 0,
		65535 - 1024: 0, 65536 - 1024: 1024, 65500: 36, 65536: 0, 65537: 0,
	} {
		if got := padBytes(n); got != want {
			t.Errorf("a message of %d bytes is filled up by %d, want %d", n, got, want)
		}
	}
}

// The words are the protocol's, whatever the connection and the size; near 64 KiB they are filled up with spaces.
func TestWireWriter(t *testing.T) {
	subject := At("j", "t0", KindDense, "s0").WithBucket(12, 3)
	for _, kind := range []string{"tcp", "pipe", "tcp with room", "pipe with room"} {
		for _, size := range []int{0, 1, 4000, 65024 + 128, 65536 - 40, 65536, 70_000, 262_144 + 128, 1_000_000} {
			near, far := net.Pipe()
			if strings.HasPrefix(kind, "tcp") {
				near, far = loopback(t)
			}
			data := bytes.Repeat([]byte("0123456789\r\n"), size/12+1)[:size]
			payload := WithoutRoom(data)
			if strings.HasSuffix(kind, "room") {
				memory := slices.Concat(make([]byte, HeadroomBytes), data, make([]byte, TailroomBytes))
				payload = NewPayload(memory, HeadroomBytes, HeadroomBytes+size)
			}
			var w wireWriter
			w.use(near, 1<<20)
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 2 {
					if err := w.message(&subject, payload); err != nil {
						t.Error(err)
					}
				}
				near.Close()
			})
			var said bytes.Buffer
			if _, err := said.ReadFrom(far); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			whole := said.Bytes()
			one := whole[:len(whole)/2]
			head, rest, _ := bytes.Cut(one, crlf)
			fields := strings.Fields(string(head))
			if len(fields) != 3 || fields[0] != "PUB" || fields[1] != subject.String() ||
				!bytes.Equal(rest, append(bytes.Clone(data), crlf...)) {
				t.Errorf("%s, %d bytes: %.100q", kind, size, one)
			}
			if bare := len("PUB  ") + len(fields[1]) + len(fields[2]) + 2 + size + 2; len(one) != bare+padBytes(bare) {
				t.Errorf("%s, %d bytes: %d on the wire, want %d", kind, size, len(one), bare+padBytes(bare))
			}
			if !bytes.Equal(one, whole[len(whole)/2:]) {
				t.Errorf("%s, %d bytes: the second message differs", kind, size)
			}
		}
	}
}

// Bytes with room are written at once, from where they lie, and nothing beyond the room is touched.
func TestWireWriterInPlace(t *testing.T) {
	subject := At("j", "s0", KindMean, "all").WithBucket(1, 1)
	const beyond, size = 64, 200_000
	memory := bytes.Repeat([]byte{0xa5}, beyond+HeadroomBytes+size+TailroomBytes+beyond)
	lo := beyond + HeadroomBytes
	for i := range size {
		memory[lo+i] = byte(i)
	}
	data := bytes.Clone(memory[lo : lo+size])
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var w wireWriter
	w.use(near, 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		room := NewPayload(memory[beyond:len(memory)-beyond], HeadroomBytes, HeadroomBytes+size)
		if err := w.message(&subject, room); err != nil {
			t.Error(err)
		}
	})
	read := make([]byte, len(memory))
	n, err := far.Read(read) // one write is one read
	wg.Wait()
	head, rest, _ := bytes.Cut(read[:n], crlf)
	if err != nil || !bytes.HasPrefix(head, []byte("PUB ")) || !bytes.Equal(rest, append(data, crlf...)) {
		t.Errorf("one read has %d bytes, %v, after %q: want the whole message", n, err, head)
	}
	for i, b := range slices.Concat(memory[:beyond], memory[len(memory)-beyond:]) {
		if b != 0xa5 {
			t.Fatalf("byte %d beyond the room has changed", i)
		}
	}
	if !bytes.Equal(memory[lo:lo+size], data) {
		t.Error("the bytes themselves have changed")
	}
}

// In process each write is a read of the server's: a message of up to 64 KiB is one.
func TestWireWriterInOnePiece(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var w wireWriter
	w.use(near, 1<<20)
	subject := At("j", "s0", KindMean, "all").WithBucket(1, 1)
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.message(&subject, WithoutRoom(make([]byte, 65024+128))) })
	read := make([]byte, 100_000)
	if n, err := far.Read(read); n != readBytes || err != nil {
		t.Errorf("the first read gives %d bytes, %v; want %d", n, err, readBytes)
	}
	wg.Wait()
}

func TestWireWriterAllocations(t *testing.T) {
	near, far := loopback(t)
	var w wireWriter
	w.use(near, 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		room := make([]byte, 1<<16)
		for {
			if _, err := far.Read(room); err != nil {
				return
			}
		}
	})
	subject := At("j", "t0", KindDense, "s0").WithBucket(12, 3)
	data := make([]byte, 65024+128)
	if n := testing.AllocsPerRun(200, func() { _ = w.message(&subject, WithoutRoom(data)) }); n != 0 {
		t.Errorf("publishing allocates %v times", n)
	}
	near.Close()
	wg.Wait()
}

// A message of another size puts the stream out of step; the next large one, a mebibyte later, finds it in step
// again. What the server hears is the same.
func TestWireWriterFills(t *testing.T) {
	rng := newRand(t)
	near, far := loopback(t)
	var w wireWriter
	w.use(near, 1<<20)
	large := make([]byte, 65024+128)
	subject := At("j", "t0", KindDense, "s0").WithBucket(12, 3)
	const rounds = 300
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			if err := w.message(&subject, WithoutRoom(make([]byte, rng.IntN(70_000)))); err != nil {
				t.Error(err)
			}
			for range fillEvery / readBytes {
				_ = w.message(&subject, WithoutRoom(large))
			}
			if err := w.message(&subject, WithoutRoom(large)); err != nil || w.phase != 0 {
				t.Errorf("%v; %d bytes behind the border of a read", err, w.phase)
			}
		}
		near.Close()
	})
	heard := map[string]int{}
	lines := bufio.NewReader(far)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "PUB" {
			t.Fatalf("%q", line)
		}
		size, _ := strconv.Atoi(fields[2])
		if _, err := lines.Discard(size); err != nil {
			t.Fatal(err)
		}
		if end, err := lines.ReadString('\n'); err != nil || end != "\r\n" {
			t.Fatalf("%q does not end after %d bytes: %q, %v", line, size, end, err)
		}
		heard[fields[1]]++
	}
	wg.Wait()
	const fillings = "gradbus.v1.j.t0.fill.nobody"
	if n := rounds * (2 + fillEvery/readBytes); heard[subject.String()] != n || heard[fillings] == 0 ||
		heard[fillings] > rounds || len(heard) != 2 {
		t.Errorf("heard %v; want %d messages and up to %d fillings", heard, n, rounds)
	}
}

// Where the server takes too little for a filling there is none.
func TestWireWriterFillsWithinPayloadMax(t *testing.T) {
	near, far := loopback(t)
	var w wireWriter
	w.use(near, 32<<10)
	var wg sync.WaitGroup
	wg.Go(func() {
		subject := At("j", "t0", KindDense, "s0").WithBucket(12, 3)
		_ = w.message(&subject, WithoutRoom(make([]byte, 100)))
		for range 100 {
			_ = w.message(&subject, WithoutRoom(make([]byte, 32<<10-100)))
		}
		near.Close()
	})
	var said bytes.Buffer
	_, _ = said.ReadFrom(far)
	wg.Wait()
	for _, after := range bytes.Split(said.Bytes(), []byte("fill.nobody "))[1:] {
		digits, _, _ := bytes.Cut(after, crlf)
		if size, err := strconv.Atoi(string(digits)); err != nil || size > 32<<10 {
			t.Errorf("filled with %q bytes", digits)
		}
	}
}
