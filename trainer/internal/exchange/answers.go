package exchange

import (
	"fmt"
	"time"

	"gradbus/schema"
)

// Asker is one who asks, whose requests are answered together: numbered from 0.
type Asker int

// ask is the last request of an asker.
type ask struct {
	first    schema.Sequence // number of requests[0]; the others' follow
	requests []request
	open     int // requests without an answer that is in place; 0 where none is taken
	placing  int // parts of answers that are being put in place
	sent     time.Duration
	measured bool // how long the answers take says how long the next ones may
	repeated bool // something was sent again
	lost     bool // whatever was sent may be: a connection is back
}

// request is one of them.
type request struct {
	owner int
	parts // of the answer
}

// Number gives the first of n numbers that no other request has. An answer repeats the number of its request, so that
// it is never taken for the answer to another, of whatever kind.
func (x *Exchange) Number(n int) (first schema.Sequence) {
	first = x.numbers + 1
	x.numbers += schema.Sequence(n)
	return first
}

// Ask opens requests to owners, numbered from first on, in place of what the asker had asked for before, of which no
// answer is being put in place. They are sent now. Only where they can be answered at once does it tell how long
// answers take.
func (x *Exchange) Ask(who Asker, first schema.Sequence, owners []int, now time.Duration, atOnce bool) {
	a := &x.asks[who]
	if a.placing > 0 {
		panic("exchange: asked again while an answer is put in place")
	}
	a.requests = a.requests[:cap(a.requests)] // with the room of their parts
	for len(a.requests) < len(owners) {
		a.requests = append(a.requests, request{})
	}
	a.requests = a.requests[:len(owners)]
	for i := range a.requests {
		a.requests[i].owner = owners[i]
		a.requests[i].reset()
	}
	a.first, a.open, a.sent, a.measured = first, len(owners), now, atOnce
	a.repeated, a.lost = false, false
}

// ClaimAnswer reports whether the caller must put a part of an answer in place, and of which request: no other caller
// is told so. It fails for a part that a correct owner cannot have sent.
func (x *Exchange) ClaimAnswer(who Asker, owner int, number schema.Sequence, part, of int) (i int, fresh bool,
	err error) {
	a := &x.asks[who]
	if a.open == 0 || number-a.first >= schema.Sequence(len(a.requests)) {
		return 0, false, nil
	}
	i = int(number - a.first)
	if a.requests[i].owner != owner {
		return 0, false, nil
	}
	if fresh, err = a.requests[i].claim(part, of); fresh {
		a.placing++
	}
	return i, fresh, err
}

// PlaceAnswer notes that a claimed part is in place, or, after a wrong one, may come again.
func (x *Exchange) PlaceAnswer(who Asker, i, part int, placed bool) {
	a := &x.asks[who]
	a.placing--
	switch {
	case !placed:
		a.requests[i].release(part)
	case a.requests[i].place() && a.open > 0: // else it was closed
		a.open--
	}
}

// Close takes no further answers.
func (x *Exchange) Close(who Asker) { x.asks[who].open = 0 }

// Placing reports whether answers are being put in place, so that their memory is in use.
func (x *Exchange) Placing(who Asker) bool { return x.asks[who].placing > 0 }

// Open is the number of requests without an answer that is in place.
func (x *Exchange) Open(who Asker) int { return x.asks[who].open }

// Refuse ends a request that is refused, and says whether it was open.
func (x *Exchange) Refuse(who Asker, number schema.Sequence) bool {
	a := &x.asks[who]
	open := a.open > 0 && a.first == number
	if open {
		a.open = 0
	}
	return open
}

// again are the requests to send again.
func (a *ask) again() (requests []int) {
	for i := range a.requests {
		if !a.requests[i].claimed() {
			requests = append(requests, i)
		}
	}
	return requests
}

// parts are the received parts of an answer in several frames.
type parts struct {
	n, left int    // of it, and that are not in place; 0 before the first
	taken   []bool // [part], where there are several
}

func (p *parts) reset() { p.n, p.left = 0, 0 }

// whole reports whether all of it is in place.
func (p *parts) whole() bool { return p.n > 0 && p.left == 0 }

// claimed reports whether nothing of it is to be asked for: it is in place, or about to be.
func (p *parts) claimed() bool { return p.n == 1 || p.whole() }

// claim says whether the caller is to put a part in place.
func (p *parts) claim(part, of int) (fresh bool, err error) {
	switch {
	case p.n == 0:
		p.n, p.left = of, of
		if of == 1 {
			return true, nil
		}
		if cap(p.taken) < of {
			p.taken = make([]bool, of)
		}
		p.taken = p.taken[:of]
		clear(p.taken)
	case p.whole() || p.n == 1 && of == 1:
		return false, nil
	case of != p.n:
		return false, fmt.Errorf("part of %d: others say %d", of, p.n)
	}
	fresh = !p.taken[part]
	p.taken[part] = true
	return fresh, nil
}

// release lets a part come again.
func (p *parts) release(part int) {
	if p.n == 1 {
		p.reset()
		return
	}
	p.taken[part] = false
}

// place notes that a part is in place, and says whether all of it is.
func (p *parts) place() (whole bool) {
	p.left--
	return p.left == 0
}
