package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Ask repeats a request until it is answered: ask is called at once and then every retry, and the first value of
// answers is returned. Answers come by way of the caller's own subscription, on a subject derived from the request's;
// a request must therefore be one that may be answered more than once, and answers should have room for one value.
//
// ErrLost from ask is not the end, since the next repetition may find the server again; any other error is. Where ctx
// ends first, the error wraps its cause and says how often was asked, and the last ErrLost if there was one; where it
// has ended before, nothing is.
//
//	rows, err := fabric.Ask(ctx, time.Second, func() error { return conn.Publish(subject, frame) }, arrived)
func Ask[T any](ctx context.Context, retry time.Duration, ask func() error, answers <-chan T) (T, error) {
	var none T
	if ctx.Err() != nil { // where all is in one process, an answer is there as soon as it was asked
		return none, fmt.Errorf("ask: nothing was asked: %w", context.Cause(ctx))
	}
	timer := time.NewTimer(retry)
	defer timer.Stop()
	for asked := 1; ; asked++ {
		err := ask()
		if err != nil && !errors.Is(err, ErrLost) {
			return none, err
		}
		select {
		case answer, ok := <-answers:
			return received(answer, ok)
		case <-ctx.Done():
		case <-timer.C:
			select { // what is there by now goes before another request
			case answer, ok := <-answers:
				return received(answer, ok)
			default:
			}
		}
		if ctx.Err() == nil {
			timer.Reset(retry)
			continue
		}
		if err != nil {
			return none, fmt.Errorf("ask: no answer to %d requests: %w; last: %w", asked, context.Cause(ctx), err)
		}
		return none, fmt.Errorf("ask: no answer to %d requests: %w", asked, context.Cause(ctx))
	}
}

func received[T any](answer T, ok bool) (T, error) {
	if !ok {
		return answer, fmt.Errorf("ask: answers %w", ErrClosed)
	}
	return answer, nil
}
