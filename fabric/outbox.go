package fabric

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"
)

const (
	// WindowBytesDefault is the default of OutboxConfig.BytesMax: enough to keep a 10 Gbit/s link busy over 3 ms.
	WindowBytesDefault = 4 << 20
	// AckDelayMax is the longest time for which a receiver may delay an ack if nothing is missing.
	AckDelayMax = 30 * time.Millisecond

	resendAfterDefault = time.Second
	resendSlack        = 20 * time.Millisecond
	resendMaxDefault   = 5 * time.Second
	// tickLate is the delay of a Tick, after it had something to do, which shows that this process was suspended.
	tickLate = 20 * time.Millisecond
)

// OutboxConfig configures the sending side of a window.
type OutboxConfig struct {
	// Envelope writes sequence numbers into frames. Required.
	Envelope Envelope
	// Publish sends a frame and may block. Required. After ErrLost the frame stays in the window and is retransmitted.
	// Any other error ends the window.
	Publish func(subject Subject, frame Payload) error
	// Lend is Publish for the first transmission of a frame. The receiver may use the bytes in place until the frame's
	// owner refills it: see Conn.Lend. Retransmissions use Publish, so that no receiver reads a frame that it has
	// finished with. nil: Publish.
	Lend func(subject Subject, frame Payload) error
	// FramesMax bounds the frames in flight, 1 to SpanMax; 0: SpanMax.
	FramesMax int
	// BytesMax bounds the bytes in flight, and is the first credit until the receiver grants more; 0:
	// WindowBytesDefault. A single frame is always allowed, and the first needs no credit.
	BytesMax int
	// resendAfter is the time without any ack after which a frame is retransmitted, until a round trip has been
	// measured; 0: 1 s. Then the time follows from the measurements: see RoundTrips; at least 50 ms. It doubles up to
	// resendMax (0: 5 s).
	resendAfter, resendMax time.Duration
}

// Outbox is the sending side of a window: it numbers frames, keeps them until they are acknowledged, and retransmits
// what was lost. It has no goroutine, and uses the clock only to measure round trips: its owner calls Ack for every
// ack, Tick a few times a second, and ResendAll when the connection is back. All methods are safe for concurrent use.
//
// Memory: it refers to the caller's frames, at most FramesMax of them and, except for one frame, BytesMax bytes. Its
// own size is fixed.
type Outbox struct {
	config OutboxConfig
	epoch  time.Time

	// turn is held by the one sender that waits for room or publishes, so that frames are sent in the order of their
	// numbers. Lock order: turn, then mu. It is a channel, so that waiting for it ends with ctx.
	turn chan struct{}

	mu      sync.Mutex    // never held while publishing
	slots   [SpanMax]slot // frame n is in slot n%SpanMax
	first   uint64        // oldest number still in the window
	next    uint64        // number of the next frame; first <= next <= first+SpanMax
	pending int           // frames in the window that are not released
	bytes   int           // bytes of frames not acknowledged
	total   uint64        // bytes of all frames ever numbered
	credit  uint64        // highest window that the receiver granted
	order   uint64        // counts transmissions
	trips   RoundTrips    // duration of round trips
	due     time.Time     // time of the next retransmission without acks; zero: set by the next Tick
	again   bool          // that time has passed, and the next Tick looks again
	probes  int           // number of timeouts since there was progress
	// Orders up to this one were in flight at the last timeout; 0: known not to be lost, or retransmitted.
	suspect uint64
	full    bool          // the sender with the turn waits for room
	starved bool          // the sender with the turn waits only for credit
	probe   bool          // it may send one frame beyond the credit, to find out whether an ack was lost
	err     error         // the reason why the window ended; set once
	changed chan struct{} // closed when callers of Drained should check again; nil if there are none
	room    chan struct{} // capacity 1: wakes the sender with the turn without an allocation
	stats   OutboxStats
}

// slot is one frame in flight.
type slot struct {
	subject  Subject
	frame    Payload
	order    uint64        // of its latest transmission
	earliest uint64        // order of its first transmission
	at       time.Duration // of its first transmission, since Outbox.epoch
	end      uint64        // bytes of all frames up to and including this one
	busy     int           // transmissions in progress, which read frame
	acked    bool
	used     bool
}

// OutboxStats counts what a window did.
type OutboxStats struct {
	Frames  uint64 // first transmissions
	Gaps    uint64 // retransmitted because later frames had arrived
	Timeout uint64 // retransmitted after a timeout
	Back    uint64 // retransmitted after the connection was lost
}

// NewOutbox makes an empty window. It panics if Envelope or Publish is missing or a bound is out of range.
func NewOutbox(config OutboxConfig) *Outbox {
	if config.FramesMax == 0 {
		config.FramesMax = SpanMax
	}
	if config.BytesMax == 0 {
		config.BytesMax = WindowBytesDefault
	}
	if config.resendAfter == 0 {
		config.resendAfter = resendAfterDefault
	}
	if config.resendMax == 0 {
		config.resendMax = max(resendMaxDefault, config.resendAfter)
	}
	if config.Lend == nil {
		config.Lend = config.Publish
	}
	if config.Envelope == nil || config.Publish == nil || config.FramesMax < 0 || config.FramesMax > SpanMax ||
		config.BytesMax < 0 || config.resendAfter < 0 || config.resendMax < config.resendAfter {
		panic(fmt.Sprintf("fabric: outbox configuration %+v", config))
	}
	return &Outbox{
		config: config,
		epoch:  time.Now(),
		turn:   make(chan struct{}, 1),
		room:   make(chan struct{}, 1),
		first:  1,
		next:   1,
		credit: uint64(config.BytesMax),
		trips:  RoundTrips{First: config.resendAfter, Slack: resendSlack, delay: AckDelayMax, Max: config.resendMax},
	}
}

// Send numbers a frame and publishes it. It blocks while the window is full, until ctx ends. The frame, with its room,
// belongs to the window and must not be changed until it was acknowledged and released: see Drained.
//
// An error means that the frame was not sent and took no number. A lost server is no error here: the frame is in the
// window and will be retransmitted.
func (o *Outbox) Send(ctx context.Context, subject Subject, frame Payload) error {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("send %s: %w", subject, context.Cause(ctx))
	}
	defer func() { <-o.turn }()
	if err := o.waitForRoom(ctx, frame.Len()); err != nil {
		return fmt.Errorf("send %s: %w", subject, err)
	}
	return o.send(subject, frame)
}

// TrySend is Send without waiting for room: sent is false if there is none, or if another goroutine is sending.
// Publishing may still block.
func (o *Outbox) TrySend(subject Subject, frame Payload) (sent bool, err error) {
	select {
	case o.turn <- struct{}{}:
	default:
		return false, nil
	}
	defer func() { <-o.turn }()
	o.mu.Lock()
	fits, granted := o.roomFor(frame.Len())
	err = o.err
	o.mu.Unlock()
	if err != nil {
		return false, fmt.Errorf("send %s: %w", subject, err)
	}
	if !fits || !granted {
		return false, nil
	}
	return true, o.send(subject, frame)
}

// send numbers and publishes a frame that fits. The caller has the turn.
func (o *Outbox) send(subject Subject, frame Payload) error {
	sequence := o.admit(subject, frame)
	err := o.config.Lend(subject, frame)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && !errors.Is(err, ErrLost) {
		o.withdraw(sequence)
		return fmt.Errorf("send %s: %w", subject, err)
	}
	o.stats.Frames++
	o.published(sequence)
	return nil
}

// waitForRoom returns when a frame of a size fits. Only the holder of the turn calls it, so the room stays.
func (o *Outbox) waitForRoom(ctx context.Context, bytes int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.starved, o.probe, o.full = false, false, false }()
	for {
		if o.err != nil {
			return o.err
		}
		fits, granted := o.roomFor(bytes)
		if fits && (granted || o.probe) {
			return nil
		}
		o.starved, o.full = fits && !granted, true
		o.mu.Unlock()
		select {
		case <-o.room:
		case <-ctx.Done():
			o.mu.Lock()
			return context.Cause(ctx)
		}
		o.mu.Lock()
	}
}

// roomFor reports whether a frame of a size fits into the window, and whether the receiver has granted it. The caller
// holds mu.
func (o *Outbox) roomFor(bytes int) (fits, granted bool) {
	fits = o.next-o.first < uint64(o.config.FramesMax) && (o.bytes == 0 || o.bytes+bytes <= o.config.BytesMax)
	return fits, o.total == 0 || o.total+uint64(bytes) <= o.credit // every receiver has room for at least one frame
}

// admit gives a frame its number and puts it into the window before it is published: its ack may arrive before the
// publish returns.
func (o *Outbox) admit(subject Subject, frame Payload) uint64 {
	o.mu.Lock()
	sequence := o.next
	o.mu.Unlock()
	o.config.Envelope.SetSequence(frame.Data(), sequence) // not yet in the window, so no other goroutine reads it
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == o.next {
		o.due = time.Time{} // the frame that it was set for is not in flight
	}
	o.order++
	o.next++
	o.pending++
	o.bytes += frame.Len()
	o.total += uint64(frame.Len())
	o.slots[sequence%SpanMax] = slot{subject: subject, frame: frame, order: o.order, earliest: o.order,
		at: time.Since(o.epoch), end: o.total, busy: 1, used: true}
	return sequence
}

// withdraw removes the newest frame, which was refused before anything was sent.
func (o *Outbox) withdraw(sequence uint64) {
	s := &o.slots[sequence%SpanMax]
	if s.acked { // by a peer that cannot have it; the number is used up
		o.published(sequence)
		return
	}
	o.pending--
	o.bytes -= s.frame.Len()
	o.total -= uint64(s.frame.Len())
	o.next--
	*s = slot{}
	o.wake()
}

// published ends one transmission of a frame.
func (o *Outbox) published(sequence uint64) {
	s := &o.slots[sequence%SpanMax]
	s.busy--
	if s.acked && s.busy == 0 {
		o.release(s)
	}
}

// release returns a frame to its owner: it is acknowledged and not being read.
func (o *Outbox) release(s *slot) {
	*s = slot{}
	o.pending--
	for o.first < o.next && !o.slots[o.first%SpanMax].used {
		o.first++
	}
	o.wake()
}

// wake wakes the waiting goroutines, and change returns the channel that they wait for. The caller holds mu.
func (o *Outbox) wake() {
	select {
	case o.room <- struct{}{}:
	default: // already woken
	}
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

func (o *Outbox) change() <-chan struct{} {
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

// Ack processes an acknowledgement. A missing frame is retransmitted at once if one that was sent after it has arrived,
// and not again before one that was sent after the retransmission has arrived. An ack for frames that were never sent
// changes nothing and returns ErrAck; old and repeated acks are fine.
func (o *Outbox) Ack(a Ack) error {
	o.mu.Lock()
	if err := o.check(&a); err != nil {
		o.mu.Unlock()
		return err
	}
	before := o.credit
	if a.Window > before {
		o.credit = a.Window
		o.wake()
	}
	told := o.arrived(&a)
	if told.progress {
		if told.once {
			o.trips.Took(time.Since(o.epoch) - told.at)
		}
		o.due, o.probes = time.Time{}, 0
		o.wake()
	}
	lost := o.mark(SpanMax, func(s *slot) bool {
		refused := before < s.end && s.end <= o.credit // it exceeded the credit of then, and would be accepted now
		if refused {
			o.trips.fresh() // the wait was for room, not for an ack
			o.due = time.Time{}
		}
		return s.order < told.evidence || refused
	})
	overdue := o.recover(&told)
	o.mu.Unlock()
	return errors.Join(o.repeat(lost, &o.stats.Gaps), o.repeat(overdue, &o.stats.Timeout))
}

// news is the new information in an ack.
type news struct {
	progress bool   // frames have arrived
	frames   int    // number of them
	original bool   // one of them was sent once, and is among the suspects
	latest   uint64 // order of the latest transmission of any of them
	// That transmission was its frame's only one: its arrival may have caused the ack.
	once bool
	at   time.Duration // first transmission of its frame, since Outbox.epoch
	// evidence is the order of the latest transmission that is known to have arrived. For a frame that was sent several
	// times it is not known which one did, so it proves no more than the first: otherwise a late original would condemn
	// everything sent before its retransmission.
	evidence uint64
}

// arrived marks and releases the frames that an ack covers. The caller holds mu.
func (o *Outbox) arrived(a *Ack) (told news) {
	for n := o.first; n < o.next; n++ {
		s := &o.slots[n%SpanMax]
		if !s.used || s.acked || !a.has(n) {
			continue
		}
		s.acked, told.progress = true, true
		told.frames++
		told.original = told.original || s.order == s.earliest && s.order <= o.suspect
		if s.order > told.latest {
			told.latest, told.once, told.at = s.order, s.order == s.earliest, s.at
		}
		told.evidence = max(told.evidence, s.earliest)
		o.bytes -= s.frame.Len()
	}
	for n, end := o.first, o.next; n < end; n++ {
		if s := &o.slots[n%SpanMax]; s.acked && s.busy == 0 {
			o.release(s)
		}
	}
	return told
}

// check refuses an ack that no honest receiver can have sent.
func (o *Outbox) check(a *Ack) error {
	highest := a.Cumulative
	for i := len(a.Bitmap) - 1; i >= 0; i-- {
		if a.Bitmap[i] != 0 {
			highest += uint64(i*64 + bits.Len64(a.Bitmap[i]))
			break
		}
	}
	if highest >= o.next || highest < a.Cumulative {
		return fmt.Errorf("%w: of frame %d, but only frames up to %d were sent", ErrAck, highest, o.next-1)
	}
	return nil
}

// mark selects frames to retransmit, oldest first, and keeps them until repeat has sent them.
func (o *Outbox) mark(framesMax int, missing func(*slot) bool) []uint64 {
	var picked []uint64
	for n := o.first; n < o.next && len(picked) < framesMax; n++ {
		s := &o.slots[n%SpanMax]
		if !s.used || s.acked || s.busy > 0 || !missing(s) {
			continue
		}
		o.order++
		s.order, s.busy = o.order, 1
		picked = append(picked, n)
	}
	return picked
}

func every(*slot) bool { return true }

// repeat publishes marked frames, except those acknowledged since, and counts them. It stops at the first error: after
// ErrLost the next Tick or ResendAll continues, any other error ends the window.
func (o *Outbox) repeat(marked []uint64, count *uint64) error {
	var failed error
	for _, n := range marked {
		o.mu.Lock()
		s := o.slots[n%SpanMax]
		o.mu.Unlock()
		again := failed == nil && !s.acked
		if again {
			failed = o.config.Publish(s.subject, s.frame)
		}
		o.mu.Lock()
		if again && failed == nil {
			*count++
		}
		o.published(n)
		o.mu.Unlock()
	}
	if failed == nil || errors.Is(failed, ErrLost) {
		return nil
	}
	failed = fmt.Errorf("resend: %w", failed)
	o.Close(failed)
	return failed
}

// ResendAll retransmits everything that was not acknowledged. Call it when the connection is back.
func (o *Outbox) ResendAll() error {
	o.mu.Lock()
	o.trips.fresh()
	o.due, o.probes, o.suspect = time.Time{}, 0, 0
	all := o.mark(SpanMax, every)
	o.mu.Unlock()
	return o.repeat(all, &o.stats.Back)
}

// Pending returns the number of frames that are not released: not acknowledged, or being retransmitted.
func (o *Outbox) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending
}

// Drained waits until every frame sent before was released, so that all of them may be refilled.
func (o *Outbox) Drained(ctx context.Context) error { return o.DrainedTo(ctx, math.MaxUint64) }

// DrainedTo waits until every frame up to a number was released, whatever is in flight beyond it.
func (o *Outbox) DrainedTo(ctx context.Context, sequence uint64) error {
	for {
		o.mu.Lock()
		pending, first, err, changed := o.pending, o.first, o.err, o.change()
		o.mu.Unlock()
		if pending == 0 || first > sequence {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%d frames not acknowledged: %w", pending, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d frames not acknowledged: %w", pending, context.Cause(ctx))
		}
	}
}

// Stats returns the counts.
func (o *Outbox) Stats() OutboxStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stats
}

// Close ends the window with an error (nil: ErrClosed), which all waiting callers receive. It may be called again.
func (o *Outbox) Close(err error) {
	if err == nil {
		err = fmt.Errorf("window %w", ErrClosed)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		o.wake()
	}
}

// OutboxState is the state of a window.
type OutboxState struct {
	OutboxStats
	PendingBytes int // bytes that were sent and not acknowledged
	// Bytes that may be in flight: OutboxConfig.BytesMax, or less if the receiver's credit ends before.
	WindowBytes int
	full        bool          // a sender waits for room
	RoundTrip   time.Duration // of frames that were sent once, lately; 0 before the first measurement
}

// State returns the current state.
func (o *Outbox) State() OutboxState {
	o.mu.Lock()
	defer o.mu.Unlock()
	granted := o.bytes
	if o.credit > o.total {
		granted += int(min(o.credit-o.total, uint64(o.config.BytesMax)))
	}
	return OutboxState{OutboxStats: o.stats, PendingBytes: o.bytes, WindowBytes: min(o.config.BytesMax, granted),
		full: o.full, RoundTrip: o.trips.Mean()}
}

// Received is Ack for an owner that knows without an ack that every frame up to a number has been received.
func (o *Outbox) Received(sequence uint64) error { return o.Ack(Ack{Cumulative: sequence}) }

// Expect sets the first guess of a round trip to the receiver's server, until an ack was measured.
func (o *Outbox) Expect(trip time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trips.Expect(trip)
}

// Usual returns the time within which an undelayed answer from the receiver arrives: see RoundTrips.
func (o *Outbox) Usual() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.trips.usual()
}

// overdue selects the frame to retransmit after a timeout: the newest one that there is credit for, because its ack
// condemns everything that was sent before it and did not arrive; every other time the oldest, in case the receiver can
// accept no other. The caller holds mu.
func (o *Outbox) overdue() []uint64 {
	o.probes++
	if o.probes%2 == 1 {
		for n := o.next - 1; n >= o.first; n-- {
			if s := &o.slots[n%SpanMax]; s.used && !s.acked && s.busy == 0 && s.end <= o.credit {
				return o.mark(1, func(other *slot) bool { return other == s })
			}
		}
	}
	return o.mark(1, every)
}

// Tick passes the time to the window; call it at least ten times a second. If nothing was acknowledged for the timeout,
// one frame is retransmitted, whose ack shows what else is missing. If a sender waits for credit and nothing is in
// flight, the ack that granted it may be lost, and one frame may exceed it: its ack tells. A call that comes much later
// than it would have had something to do leaves that to the next one, since acks may be waiting as well.
func (o *Outbox) Tick(now time.Time) error {
	o.mu.Lock()
	if o.next == o.first && !o.starved || o.err != nil {
		o.due = time.Time{}
		o.mu.Unlock()
		return nil
	}
	if o.due.IsZero() {
		o.due, o.again = now.Add(o.trips.Timeout()), false
	}
	late := now.Sub(o.due)
	if late < 0 || late > tickLate && !o.again {
		o.again = late >= 0 // acks may still be unread, as this call was late
		o.mu.Unlock()
		return nil
	}
	o.trips.Late()
	o.due, o.again = now.Add(o.trips.Timeout()), false
	var overdue []uint64
	if o.next > o.first {
		o.suspect = o.order
		overdue = o.overdue()
	} else {
		o.probe = true
		o.wake()
	}
	o.mu.Unlock()
	return o.repeat(overdue, &o.stats.Timeout)
}

// recover selects further frames to retransmit when a frame that was retransmitted after a timeout is acknowledged: of
// everything in flight then, twice as many as have arrived, the oldest first, like TCP slow start. A window that was
// lost completely, with its retransmissions, recovers in eight round trips. If a frame arrives that was sent once, the
// frames were late and not lost, and none is sent twice. The caller holds mu.
func (o *Outbox) recover(told *news) []uint64 {
	if o.suspect == 0 || !told.progress {
		return nil
	}
	var picked []uint64
	if !told.original {
		picked = o.mark(2*told.frames, func(s *slot) bool { return s.order <= o.suspect && s.end <= o.credit })
	}
	if len(picked) == 0 {
		o.suspect = 0
	}
	return picked
}

// RoundTrips estimates, from the times that answers took, how long one may still take, as RFC 6298 does for TCP: the
// mean with a weight of 1/8 for the newest, plus four mean deviations (weight 1/4), doubled after each time that was
// too short. It is pure: it reads no clock, and its results depend on the calls only. It is not safe for concurrent
// use.
//
// An answer to something that was sent twice is not measured, since it is not known which one was answered (Karn's
// rule): do not call Took for it. So that a timeout that is always too short is still corrected, a doubling stays until
// the next measurement.
type RoundTrips struct {
	First time.Duration // timeout before the first measurement
	Slack time.Duration // least time above the mean: a busy machine delays answers
	delay time.Duration // the time for which the other side may delay an answer
	Max   time.Duration // longest timeout

	mean, spread time.Duration // measurements; mean is 0 before the first
	guess        bool          // mean is only expected
	doublings    int
}

// Took adds a measurement. It proves that the timeout is long enough, so it ends doublings.
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

// Expect sets a guess, from something else on the same route, until there is a measurement.
func (r *RoundTrips) Expect(trip time.Duration) {
	if r.mean == 0 {
		r.Took(trip)
		r.guess = true
	}
}

// Late records a timeout without an answer: the next timeout is twice as long.
func (r *RoundTrips) Late() {
	if r.Timeout() < r.Max {
		r.doublings++
	}
}

// fresh ends doublings, because their cause is known to be over.
func (r *RoundTrips) fresh() { r.doublings = 0 }

// Mean returns the mean duration of answers; 0 before the first measurement.
func (r *RoundTrips) Mean() time.Duration { return r.mean }

// usual returns the time within which an undelayed answer arrives: First, or the mean and four deviations, at least
// Slack.
func (r *RoundTrips) usual() time.Duration {
	if r.mean == 0 {
		return r.First
	}
	return r.mean + max(4*r.spread, r.Slack)
}

// Timeout returns how long to wait for the next answer.
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

// SpanMax bounds how far a sender may be ahead of the oldest unacknowledged frame: the length of an Ack's bitmap.
const SpanMax = 256

// Envelope reads and writes the sequence number inside a frame. This package knows nothing else of frames.
type Envelope interface {
	// Sequence returns the number within a frame; false if the bytes are no frame.
	Sequence(frame []byte) (uint64, bool)
	// SetSequence writes the number into a frame that the caller built.
	SetSequence(frame []byte, sequence uint64)
}

// Ack tells a sender what has arrived and how much more may come. Acks may be lost, repeated and reordered; each is
// complete, and an older one changes nothing.
type Ack struct {
	// Cumulative is the number up to which every frame has arrived, inclusive.
	Cumulative uint64
	// Bitmap has bit i%64 of word i/64 set if Cumulative+1+i has arrived. Bit 0 of word 0 is never set.
	Bitmap [SpanMax / 64]uint64
	// Window is the credit: how many bytes of frames the sender may have sent, counted from its first frame and each
	// frame once. It never falls. Received frames that are not processed yet still count against it.
	Window uint64
}

// has reports whether a sequence number has arrived.
func (a *Ack) has(sequence uint64) bool {
	if sequence <= a.Cumulative {
		return true
	}
	i := sequence - a.Cumulative - 1
	return i < SpanMax && a.Bitmap[i/64]>>(i%64)&1 == 1
}
