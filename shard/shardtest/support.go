package shardtest

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
)

// Leases counts what becomes of the payloads that a shard was given.
type Leases struct{ All []*Lease }

// Lease is the payload of one frame. What is released is overwritten, so that who reads it later gives wrong results.
type Lease struct {
	frame    []byte
	released int
}

// Of makes the payload of a frame.
func (l *Leases) Of(frame []byte) *Lease {
	p := &Lease{frame: frame}
	l.All = append(l.All, p)
	return p
}

// Release counts.
func (p *Lease) Release() {
	p.released++
	for i := range p.frame {
		p.frame[i] = 0x55 // in every four bytes 1.46e13
	}
}

// Check wants every payload to be released once, but for those that are held.
func (l *Leases) Check(t testing.TB, held int) {
	t.Helper()
	open := 0
	for i, p := range l.All {
		switch p.released {
		case 0:
			open++
		case 1:
		default:
			t.Errorf("payload %d was released %d times", i, p.released)
		}
	}
	if open != held {
		t.Errorf("%d of %d payloads are held, want %d", open, len(l.All), held)
	}
}

// Fading is a context that ends after a number of looks at it.
type Fading struct {
	context.Context
	Looks atomic.Int64
}

// Err counts a look.
func (f *Fading) Err() error {
	if f.Looks.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

func bits(f float32) uint32 { return math.Float32bits(f) }
