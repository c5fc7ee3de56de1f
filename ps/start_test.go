package ps

import (
	"context"
	"sync"
	"testing"
)

// countdown is a context that ends when it is looked at for the n-th time.
type countdown struct {
	context.Context
	mu    sync.Mutex
	looks int
	done  chan struct{}
}

func (c *countdown) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looks--; c.looks == 0 {
		close(c.done)
	}
	return c.done
}

func (c *countdown) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// A context that ends at any moment of the start leaves either an error or a server that ends.
func TestStartInterrupted(t *testing.T) {
	started := 0
	for _, looks := range []int{1, 2, 3, 4, 5, 6, 7, 8, 1000} {
		s, err := Start(&countdown{Context: context.Background(), looks: looks, done: make(chan struct{})},
			Config{}, Options{})
		if err != nil {
			continue
		}
		started++
		s.Close()
		<-s.Done()
	}
	if started == 0 {
		t.Error("no start came as far as a server")
	}
}
