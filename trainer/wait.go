package trainer

import (
	"context"
	"errors"
	"time"
)

// wait returns when ready gets a value. It calls again where none comes within a first time, then after twice the time and
// so on up to eight times RetryAfter, since what is late is more often not there yet than lost; and at once when the
// connection is back, since whatever was sent to it meanwhile is lost. again says whether things have moved, so that the
// time begins anew. Where ctx ends by ErrAgain, the next wait for the same goes on: what is late is asked for when it is due, however often
// that happens.
func (s *Session) wait(ctx context.Context, ready <-chan struct{}, first time.Duration, again func(lost bool) (moved bool, err error)) error {
	w := interrupted{ready: ready, after: first, due: time.Now().Add(first)}
	if s.waiting.ready == ready {
		w = s.waiting
	}
	s.waiting = interrupted{}
	s.retry.Reset(time.Until(w.due))
	defer s.retry.Stop()
	for {
		lost := false
		select {
		case <-ready:
			return nil
		case <-s.back:
			lost = true
		case <-s.retry.C:
		case <-ctx.Done():
			err := context.Cause(ctx)
			if errors.Is(err, ErrAgain) {
				s.waiting = w
			}
			return err
		}
		moved, err := again(lost)
		if err != nil {
			return err
		}
		if w.after = min(2*w.after, 8*s.config.RetryAfter); lost || moved {
			w.after = first
		}
		w.due = time.Now().Add(w.after)
		s.retry.Reset(w.after)
	}
}

// interrupted is how far a wait was that is to go on.
type interrupted struct {
	ready <-chan struct{} // of that wait; nil for none
	after time.Duration
	due   time.Time // to ask again
}
