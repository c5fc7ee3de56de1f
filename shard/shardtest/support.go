package shardtest

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
)

// Leases counts the releases of payloads that a shard was given.
type Leases struct{ All []*Lease }

// Lease is the payload of one frame. Releasing it overwrites the frame, so that a later reader gets wrong results.
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

// Release counts the release and overwrites the frame.
func (p *Lease) Release() {
	p.released++
	for i := range p.frame {
		p.frame[i] = 0x55 // in every four bytes 1.46e13
	}
}

// Check fails if a payload was not released exactly once, except for held ones.
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

// Fading is a context that ends after a number of calls of Err.
type Fading struct {
	context.Context
	Looks atomic.Int64
}

// Err counts the call.
func (f *Fading) Err() error {
	if f.Looks.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

func bits(f float32) uint32 { return math.Float32bits(f) }
