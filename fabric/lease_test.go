package fabric

import (
	"sync"
	"testing"
)

func TestLeaseSizes(t *testing.T) {
	for _, c := range []struct{ n, bytes int }{
		{1, 1024}, {1024, 1024}, {1025, 1088}, {1088, 1088}, {1089, 1152}, {2048, 2048}, {2049, 2176},
		{65536, 65536}, {65537, 69632}, {262_144 + 130, 278_528}, {64<<20 + 2, 68 << 20},
	} {
		if _, got := leaseSize(c.n); got != c.bytes {
			t.Errorf("a lease of %d bytes: %d, want %d", c.n, got, c.bytes)
		}
	}
	last := -1
	for n := 1; n < 3*payloadBytesMaxMax/2; n += 1 + n/40 {
		index, bytes := leaseSize(n)
		if bytes < n || n > leaseBytesMin && bytes > n+n/16+1 || index < last || index >= leaseSizes {
			t.Fatalf("a lease of %d bytes: size %d of %d bytes", n, index, bytes)
		}
		if again, same := leaseSize(bytes); again != index || same != bytes {
			t.Fatalf("size %d of %d bytes is size %d of %d", index, bytes, again, same)
		}
		last = index
	}
}

func TestLeaseIsUsedAgain(t *testing.T) {
	p := &Buffers{bytesMax: 10_000}
	a := p.get(2000)
	a.Release()
	if b := p.get(1990); b != a || p.idleBytes() != 0 {
		t.Error("a free buffer was not used again")
	}
	var none *Lease
	none.Release() // nothing to give back
}

func TestLeaseReleasedTwice(t *testing.T) {
	p := &Buffers{bytesMax: 10_000}
	l := p.get(10)
	l.Release()
	defer func() {
		if recover() == nil {
			t.Error("a second Release went unnoticed")
		}
	}()
	l.Release()
}

// Free buffers stay below the bound, and those of a size that nobody uses any more make room.
func TestLeasePoolIsBounded(t *testing.T) {
	p := &Buffers{bytesMax: 10 * 4096}
	take := func(n, size int) {
		var all []*Lease
		for range n {
			all = append(all, p.get(size))
		}
		for _, l := range all {
			l.Release()
		}
	}
	take(20, 4096)
	if got := p.idleBytes(); got != 10*4096 {
		t.Errorf("%d bytes are free, want %d", got, 10*4096)
	}
	take(1, 16384)
	if got := p.idleBytes(); got != 16384 {
		t.Errorf("%d bytes are free, want those of the last size alone", got)
	}
	take(1, 65536)
	if got := p.idleBytes(); got != 0 {
		t.Errorf("%d bytes are free: a buffer beyond the bound was kept", got)
	}
}

func TestLeasesConcurrently(t *testing.T) {
	p := &Buffers{bytesMax: 1 << 20}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 2000 {
				l := p.get(1 + n*37%9000)
				mine := byte(n + i)
				for j := range l.room {
					l.room[j] = mine
				}
				for _, b := range l.room {
					if b != mine {
						t.Error("two have the same buffer")
						return
					}
				}
				l.Release()
			}
		})
	}
	wg.Wait()
}

// Connections that share buffers keep no more of them together than one does alone.
func TestConnectionsShareBuffers(t *testing.T) {
	server := startServer(t, ServerConfig{})
	shared, got := NewBuffers(8<<10), make(chan Message)
	var all []Message
	for _, to := range []string{"t1", "t2", "t3"} {
		conn := dial(t, Config{Server: server, Buffers: shared})
		if err := conn.Subscribe(Pattern("share", "t0", KindMean, to, true), func(m Message) { got <- m }); err != nil {
			t.Fatal(err)
		}
		if err := conn.Send(At("share", "t0", KindMean, to).WithBucket(0, 0), make([]byte, 4<<10-2)); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-got:
			all = append(all, m)
		case <-guarded(t).Done():
			t.Fatal("nothing came")
		}
	}
	for i := range all {
		all[i].Release()
	}
	if n := shared.idleBytes(); n != 8<<10 {
		t.Errorf("%d bytes wait to be used again, want 8 KiB of the 12", n)
	}
}
