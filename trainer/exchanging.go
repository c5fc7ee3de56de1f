package trainer

import (
	"context"
	"errors"
	"sync"
	"time"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// Askers for rows, and for parameters that other trainers own. Modules have the numbers after these.
const (
	rowsOfBatch exchange.Asker = iota
	rowsAsked                  // Lookup and LookupInto
	rowsScanned                // Table
	rowAskers
	resumeAsked = rowAskers
	askers      = resumeAsked + 1
)

// exchanging is a session's exchange, shared by its goroutines.
type exchanging struct {
	conn  *connection
	stats *statistics

	wake chan struct{} // capacity 1: what the session waits for has arrived

	mu     sync.Mutex // guards the fields below; not held while values are stored. A leaf except for a trace's
	x      *exchange.Exchange
	askers []asker   // last asker of each number
	placed sync.Cond // an answer was stored
}

// asker stores answers to its requests, and sends a request, for the first time or again. take reports whether it keeps
// the message's memory.
type asker interface {
	take(i int, v *schema.View) (retained bool, err error)
	send(c *connection, i int) error
}

func newExchanging(c exchange.Config) *exchanging {
	e := &exchanging{x: exchange.New(c), askers: make([]asker, c.Askers+c.Modules), wake: make(chan struct{}, 1)}
	e.placed.L = &e.mu
	return e
}

// ask opens requests of asker a to owners, numbered from first on.
func (e *exchanging) ask(who exchange.Asker, a asker, first schema.Sequence, owners []int, now time.Duration,
	atOnce bool) {
	e.do(func(x *exchange.Exchange) {
		e.askers[who] = a
		x.Ask(who, first, owners, now, atOnce)
	})
}

// close takes no further answers, and returns when none is being stored, so their memory is no longer written.
func (e *exchanging) close(who exchange.Asker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.x.Close(who); e.x.Placing(who); {
		e.placed.Wait()
	}
}

// do applies an event to the exchange.
func (e *exchanging) do(event func(*exchange.Exchange)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event(e.x)
	e.wakeWaiter()
}

// get returns a value of the exchange.
func get[T any](e *exchanging, what func(*exchange.Exchange) T) T {
	e.mu.Lock()
	defer e.mu.Unlock()
	return what(e.x)
}

// number returns the first of n new request numbers.
func (e *exchanging) number(n int) schema.Sequence {
	return get(e, func(x *exchange.Exchange) schema.Sequence { return x.Number(n) })
}

// take passes a part of an answer to an asker that waits for it, and ignores all others.
func (e *exchanging) take(who exchange.Asker, owner int, v *schema.View, part, of int) (retained bool, err error) {
	e.mu.Lock()
	i, fresh, err := e.x.ClaimAnswer(who, owner, v.Head().Sequence, part, of)
	a := e.askers[who]
	e.mu.Unlock()
	if !fresh {
		return false, err
	}
	placed := false
	defer func() { // also after a panic, since others wait for it
		e.do(func(x *exchange.Exchange) { x.PlaceAnswer(who, i, part, placed) })
		e.placed.Broadcast()
	}()
	retained, err = a.take(i, v)
	placed = err == nil
	return retained, err
}

// wakeWaiter wakes the waiting goroutine if there is a reason. The caller holds mu.
func (e *exchanging) wakeWaiter() {
	if !e.x.Done() {
		return
	}
	select {
	case e.wake <- struct{}{}:
	default: // already signaled
	}
}

// awaitAnswers returns when an asker's requests are answered.
func (e *exchanging) awaitAnswers(ctx context.Context, who exchange.Asker) error {
	e.do(func(x *exchange.Exchange) { x.Await(who, e.conn.since()) })
	return e.await(ctx)
}

// awaitResults returns when a version greater than above is complete.
func (e *exchanging) awaitResults(ctx context.Context, above schema.Version) error {
	usual := time.Duration(0)
	for _, l := range e.conn.links {
		if l.outbox != nil {
			usual = max(usual, l.outbox.Usual())
		}
	}
	e.do(func(x *exchange.Exchange) { x.AwaitResults(above, usual, e.conn.since()) })
	return e.await(ctx)
}

// await performs the exchange's actions until what it waits for has arrived. If ctx ends by ErrAgain, the next wait for
// the same continues.
func (e *exchanging) await(ctx context.Context) error {
	defer e.conn.retry.Stop()
	for {
		if err := context.Cause(ctx); err != nil && !errors.Is(err, ErrAgain) { // even if the answer has arrived by now
			e.do((*exchange.Exchange).Stop)
			return err
		}
		now := e.conn.since()
		a := get(e, func(x *exchange.Exchange) exchange.Actions { return x.Tick(now) })
		if a.Done {
			return nil
		}
		if err := e.sendAgain(&a); err != nil {
			return err
		}
		e.conn.retry.Reset(a.Next - now)
		select {
		case <-e.wake:
		case <-e.conn.retry.C:
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, ErrAgain) {
				return err
			}
		}
	}
}

func (e *exchanging) sendAgain(a *exchange.Actions) error {
	if len(a.Requests) > 0 && a.Asker < rowAskers {
		e.stats.count(func(t *counters) { t.lookupsRepeated++ })
	}
	for _, i := range a.Requests {
		if err := e.askers[a.Asker].send(e.conn, i); err != nil {
			return err
		}
	}
	return e.sendPulls(a.Pulls)
}

// sendPulls requests results. It skips this trainer's own sums: they are missing because a contribution is.
func (e *exchanging) sendPulls(pulls []exchange.Pull) error {
	for _, p := range pulls {
		if e.conn.links[p.Owner].outbox == nil {
			continue
		}
		e.stats.count(func(t *counters) { t.pulls++ })
		if err := e.conn.sendPull(p); err != nil {
			return err
		}
	}
	return nil
}
