package fabric

import (
	"context"
	"fmt"
	"sync"
)

// life is what every connection has, of however many lines: its states, the goroutines that run its handlers, and why
// it is closed.
type life struct {
	states   *stateLoop
	handlers sync.WaitGroup // one count for each goroutine that runs handlers

	mu  sync.Mutex // a leaf
	err error      // why the connection is closed; nil while it is not
}

// lineEvent is told by a line what happened to it.
func (l *life) lineEvent(event lineEvent, err error) {
	switch event {
	case lineLost:
		l.states.lost()
	case lineBack:
		l.states.back()
	case lineEnded:
		l.fail(fmt.Errorf("%w: %w", ErrRefused, err))
		l.states.end()
	}
}

func (l *life) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// Err is nil while the connection is open or trying to be, then ErrClosed after Close, or what ended it.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// addHandler counts one more handler, unless Close may wait for them already.
func (l *life) addHandler() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.handlers.Add(1)
	}
	return l.err
}

// subscribe subscribes on a line. While it runs it counts as a handler, so that Close waits for a handler that the line
// may add.
func (l *life) subscribe(on line, pattern string, handler func(Message)) error {
	if err := l.addHandler(); err != nil {
		return fmt.Errorf("subscribe %s: %w", pattern, err)
	}
	defer l.handlers.Done()
	err := on.subscribe(pattern, handler)
	if err == nil {
		return nil
	}
	if closed := l.Err(); closed != nil {
		return fmt.Errorf("subscribe %s: %w", pattern, closed)
	}
	return fmt.Errorf("subscribe %s: %w: %w", pattern, ErrLost, err)
}

// flush waits until the server has taken in what was published on the lines before, at most 5 s.
func (l *life) flush(ctx context.Context, lines ...line) error {
	ctx, cancel := context.WithTimeout(ctx, roundTripTimeout)
	defer cancel()
	for _, on := range lines {
		if err := on.flush(ctx); err != nil {
			if closed := l.Err(); closed != nil {
				return fmt.Errorf("flush: %w", closed)
			}
			return fmt.Errorf("flush: %w: %w", ErrLost, err)
		}
	}
	return nil
}
