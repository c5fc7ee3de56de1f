package exchange

import (
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

const (
	// probeAfter is the least time without a message after which an owner is asked for its oldest missing result. Its
	// answer proves that results were lost; without one the round is still open, and there was nothing to lose.
	probeAfter = 25 * time.Millisecond
	// answerSlack is the delay beyond the usual within which an answer is not late: scheduling on a busy machine takes
	// as long.
	answerSlack = 50 * time.Millisecond
)

// Results is waited for as if it were an Asker.
const Results Asker = -1

// wait is a pending request, with the time of its repetition.
type wait struct {
	on     bool
	who    Asker
	number schema.Sequence // of the asker's first request
	above  schema.Version  // of results: until a newer version is whole
	first  time.Duration   // to wait for
	after  time.Duration   // to wait for now
	due    time.Duration   // when it is over
}

// Actions are the actions to take now.
type Actions struct {
	Done     bool          // what was waited for is there
	Next     time.Duration // else when to look again, if nothing happens before
	Pulls    []Pull        // to send
	Asker    Asker         // whose requests are to be sent again
	Requests []int         // of the asker's
}

// Await begins to wait for the answers to what an asker has asked for. Where a wait for the same was interrupted, it
// continues: what is late is asked for when it is due, however often that happens.
func (x *Exchange) Await(who Asker, now time.Duration) {
	if w := &x.wait; !w.on || w.who != who || w.number != x.asks[who].first {
		x.begin(wait{who: who, number: x.asks[who].first, first: x.patience(who)}, now)
	}
}

// AwaitResults begins or continues to wait until a version above is whole. usual is how long the farthest owner takes
// to say anything.
func (x *Exchange) AwaitResults(above schema.Version, usual, now time.Duration) {
	if x.wait.on && x.wait.who == Results {
		x.wait.above = above
		return
	}
	x.begin(wait{who: Results, above: above, first: min(max(probeAfter, usual), 8*x.config.RetryAfter)}, now)
}

func (x *Exchange) begin(w wait, now time.Duration) {
	w.on, w.after, w.due = true, w.first, now+w.first
	x.wait = w
}

// Stop ends the wait: the next one for the same starts over.
func (x *Exchange) Stop() { x.wait.on = false }

// patience returns the first timeout of an answer: the estimate, but at least four times the mean, up to RetryAfter. An
// answer is large and seldom lost, and a busy shard delays it.
func (x *Exchange) patience(who Asker) time.Duration {
	trips := x.trips(who)
	return max(trips.Timeout(), min(4*trips.Mean(), x.config.RetryAfter))
}

// trips returns the durations of answers: those of modules separately, because they include the work of the shard.
func (x *Exchange) trips(who Asker) *fabric.RoundTrips {
	return &x.roundTrips[max(0, int(who)-x.config.Askers+1)]
}

// Expect takes in how long something else took that goes the same way as rows.
func (x *Exchange) Expect(trip time.Duration) { x.roundTrips[0].Expect(trip) }

// Back says that a connection is back: whatever was sent to it since is lost. What is waited for now, and what is
// waited for later, is asked for at once.
func (x *Exchange) Back() {
	x.lost = true
	for i := range x.asks {
		x.asks[i].lost = true
	}
}

// mayBeLost returns the flag that says whether an awaited message may be lost.
func (x *Exchange) mayBeLost() *bool {
	if x.wait.who == Results {
		return &x.lost
	}
	return &x.asks[x.wait.who].lost
}

// Done reports whether what is waited for is there, or lost for certain: the waiting goroutine is to be woken.
func (x *Exchange) Done() bool { return x.wait.on && (*x.mayBeLost() || x.there()) }

func (x *Exchange) there() bool {
	if x.wait.who == Results {
		return x.Completed() > x.wait.above
	}
	return x.asks[x.wait.who].open == 0
}

// Tick says what is to be done at a time, for what is waited for.
func (x *Exchange) Tick(now time.Duration) Actions {
	w := &x.wait
	if x.there() {
		w.on = false
		x.measure(now)
		return Actions{Done: true}
	}
	mayBe := x.mayBeLost()
	lost := *mayBe
	if !lost && now < w.due {
		return Actions{Next: w.due}
	}
	*mayBe = false
	a, moved := x.sendAgain(lost)
	if w.after = min(2*w.after, 8*x.config.RetryAfter); lost || moved {
		w.after = w.first
	}
	w.due = now + w.after
	a.Next = w.due
	return a
}

// sendAgain returns the requests to repeat. moved says that results have arrived since the last request: then there is
// nothing to ask for yet.
func (x *Exchange) sendAgain(lost bool) (_ Actions, moved bool) {
	w := &x.wait
	if w.who == Results {
		moved = x.counts.Taken != x.seen
		if x.seen = x.counts.Taken; moved && !lost {
			return Actions{}, moved
		}
		return Actions{Pulls: x.probe(lost)}, moved
	}
	a := &x.asks[w.who]
	if a.repeated = true; !lost && a.measured {
		x.trips(w.who).Late()
	}
	return Actions{Asker: w.who, Requests: a.again()}, false
}

// measure takes in how long answers took, where they were asked for once, so that it is known which request they
// answer, and at a time that is known. Of others nothing is learned, not even that they are late.
func (x *Exchange) measure(now time.Duration) {
	if x.wait.who == Results {
		return
	}
	if a := &x.asks[x.wait.who]; a.measured && !a.repeated && len(a.requests) > 0 {
		x.trips(x.wait.who).Took(now - a.sent)
	}
}

// Lacking is the first owner who has not answered what is waited for, or of whom a result of the oldest open batch is
// missing, and the number of requests or owners; -1 where nothing is waited for.
func (x *Exchange) Lacking() (first, n int) {
	first = -1
	lacks := func(owner int) {
		if n++; n == 1 {
			first = owner
		}
	}
	switch who := x.wait.who; {
	case !x.wait.on:
	case who != Results:
		for _, i := range x.asks[who].again() {
			lacks(x.asks[who].requests[i].owner)
		}
	case x.complete < x.begun:
		for owner := range x.of(x.complete).owners {
			if m := &x.of(x.complete).owners[owner]; m.low < len(m.results) {
				lacks(owner)
			}
		}
	}
	return first, n
}
