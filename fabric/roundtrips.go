package fabric

import "time"

// RoundTrips estimates from the times that answers took how long one may still take, as RFC 6298 does for TCP: the mean
// with a weight of 1/8 for the newest, four mean deviations (weight 1/4) on top, and twice the time after each time
// that was too short. It is pure: it reads no clock, and what it says follows from the calls alone. It is not safe for
// concurrent use.
//
// An answer to something that was said twice is no measure, since it is not known which one was answered (Karn's rule):
// do not call Took for it. So that a wait which is always too short is corrected all the same, a doubling stays until
// the next measure.
type RoundTrips struct {
	First time.Duration // to wait for while nothing was measured
	Slack time.Duration // least to wait beyond the mean: what a busy machine keeps an answer back
	delay time.Duration // by which the other side may put an answer off of its own will, and did not always
	Max   time.Duration // most to wait

	mean, spread time.Duration // of what was measured; mean is 0 before the first
	guess        bool          // mean is what was expected
	doublings    int
}

// Took takes in a measure. What was measured proves that it is not too short any more: doublings end.
func (r *RoundTrips) Took(trip time.Duration) {
	trip = max(1, trip)
	r.doublings = 0
	if r.mean == 0 || r.guess {
		r.mean, r.spread, r.guess = trip, trip/2, false
		return
	}
	r.spread += ((r.mean - trip).Abs() - r.spread) / 4
	r.mean = max(1, r.mean+(trip-r.mean)/8)
}

// Expect takes in how long something else took that goes the same way: a guess, until there is a measure.
func (r *RoundTrips) Expect(trip time.Duration) {
	if r.mean == 0 {
		r.Took(trip)
		r.guess = true
	}
}

// Late says that the wait was over and no answer there: the next is twice as long.
func (r *RoundTrips) Late() {
	if r.Timeout() < r.Max {
		r.doublings++
	}
}

// fresh ends doublings: what made them necessary is known to be over.
func (r *RoundTrips) fresh() { r.doublings = 0 }

// Mean is how long answers take; 0 before the first measure.
func (r *RoundTrips) Mean() time.Duration { return r.mean }

// usual is the time within which an answer comes that is not put off: First, or the mean and four deviations, at least
// Slack.
func (r *RoundTrips) usual() time.Duration {
	if r.mean == 0 {
		return r.First
	}
	return r.mean + max(4*r.spread, r.Slack)
}

// Timeout is how long to wait for the next answer.
func (r *RoundTrips) Timeout() time.Duration {
	wait := r.usual()
	if r.mean != 0 {
		wait += r.delay
	}
	for range r.doublings {
		if wait >= r.Max {
			break
		}
		wait *= 2
	}
	return min(wait, r.Max)
}
