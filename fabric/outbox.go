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
	// AckDelayMax is the longest that who receives may put an ack off, where nothing is missing.
	AckDelayMax = 30 * time.Millisecond

	resendAfterDefault = time.Second
	resendSlack        = 20 * time.Millisecond
	resendMaxDefault   = 5 * time.Second
	// tickLate: a Tick so long after it had something to do says that this process was kept from running.
	tickLate = 20 * time.Millisecond
)

// OutboxConfig describes the sending side of one window.
type OutboxConfig struct {
	// Envelope writes sequence numbers into frames. Required.
	Envelope Envelope
	// Publish sends a frame and may block for a while. Required. ErrLost from it is not the end: the frame stays in the
	// window and is sent again. Any other error is.
	Publish func(subject Subject, frame Payload) error
	// Lend is Publish for a frame that is sent for the first time, of which the receiver may use the bytes where they
	// lie, until the frame's owner refills it: see Conn.Lend. What is sent again goes by Publish, so that no receiver
	// looks at a frame that it has been through with. nil is Publish.
	Lend func(subject Subject, frame Payload) error
	// FramesMax is how many frames may be on the way, 1 to SpanMax; 0 is SpanMax.
	FramesMax int
	// BytesMax is how many bytes may be on the way, and the first credit, until the receiver grants more; 0 is
	// WindowBytesDefault. One frame alone is always allowed on the way, and the first needs no credit.
	BytesMax int
	// resendAfter is the time without any acknowledgement after which a frame is sent again, while no round trip has
	// been measured; 0 is 1 s. Then it follows from what was measured: see RoundTrips; at least 50 ms. It doubles up to
	// resendMax (0 is 5 s).
	resendAfter, resendMax time.Duration
}

// Outbox is the sending side of one window: it numbers frames, holds them until they are acknowledged, and sends
// again what was lost. It has no goroutine, and no clock but to measure round trips: its owner calls Ack for every
// ack that arrives, Tick a few times a second, and ResendAll when the connection is back. All methods are safe for
// concurrent use.
//
// Memory: it holds the caller's frames, at most FramesMax and, but for one, BytesMax bytes of them; itself it is of
// fixed size.
type Outbox struct {
	config OutboxConfig
	epoch  time.Time

	// turn is held by the one sender that waits for room or publishes, so that frames leave in the order of their
	// numbers. Lock order: turn, then mu. A channel, so that waiting for it ends with ctx.
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
	trips   RoundTrips    // how long acks take
	due     time.Time     // when one is sent again for want of acks; zero: to be set by the next Tick
	again   bool          // that time is over, and the next Tick is to look again
	probes  int           // how often it was, since there was progress
	// orders up to this one were on the way when it was over last; 0 where these are known not to be lost, or sent again
	suspect uint64
	full    bool          // the sender whose turn it is waits for room
	starved bool          // the sender whose turn it is waits for credit alone
	probe   bool          // it may send one frame beyond the credit, to learn whether an ack was lost
	err     error         // what ended the window; set once
	changed chan struct{} // closed when callers of Drained should check again; nil without one
	room    chan struct{} // of one: told when the sender whose turn it is should check again; allocates nothing
	stats   OutboxStats
}

// slot holds one frame on its way.
type slot struct {
	subject  Subject
	frame    Payload
	order    uint64        // of its latest transmission
	earliest uint64        // order of its first transmission
	at       time.Duration // of its first transmission, since Outbox.epoch
	end      uint64        // bytes of all frames up to and with this one
	busy     int           // transmissions in progress, which read frame
	acked    bool
	used     bool
}

// OutboxStats counts what a window did.
type OutboxStats struct {
	Frames  uint64 // sent for the first time
	Gaps    uint64 // sent again because later ones had arrived
	Timeout uint64 // sent again because nothing was heard
	Back    uint64 // sent again because the connection was lost in between
}

// NewOutbox makes an empty window. It panics where Envelope or Publish is missing or a bound is out of range, which is
// a fault of the program.
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

// Send numbers a frame and publishes it. It blocks while the window is full, until ctx ends. The frame, with its
// room, belongs to the window and may not be changed before it was acknowledged and released: see Drained.
//
// An error says that the frame was not sent and took no number. That the server is lost is no error here: the frame is
// in the window and will be sent again.
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
// Publishing may still block for a while.
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

// send numbers and publishes a frame that there is room for. The caller has the turn.
func (o *Outbox) send(subject Subject, frame Payload) error {
	sequence := o.admit(subject, frame)
	err := o.config.Lend(subject, frame)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && !errors.Is(err, ErrLost) {
		o.retract(sequence)
		return fmt.Errorf("send %s: %w", subject, err)
	}
	o.stats.Frames++
	o.published(sequence)
	return nil
}

// waitForRoom returns when a frame of the given size fits. Only the holder of the turn calls it, so room stays.
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

// roomFor says whether a frame of the given size fits into the window, and whether the receiver has granted it.
// Called with mu held.
func (o *Outbox) roomFor(bytes int) (fits, granted bool) {
	fits = o.next-o.first < uint64(o.config.FramesMax) && (o.bytes == 0 || o.bytes+bytes <= o.config.BytesMax)
	return fits, o.total == 0 || o.total+uint64(bytes) <= o.credit // no receiver has room for less than a frame
}

// admit gives a frame its number and puts it into the window, before it is published: its ack may be faster than the
// publisher's return.
func (o *Outbox) admit(subject Subject, frame Payload) uint64 {
	o.mu.Lock()
	sequence := o.next
	o.mu.Unlock()
	o.config.Envelope.SetSequence(frame.Data(), sequence) // not yet in the window, so not read by another goroutine
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == o.next {
		o.due = time.Time{} // what it was for is not on the way
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

// retract takes back the newest frame, which was refused before anything was sent.
func (o *Outbox) retract(sequence uint64) {
	s := &o.slots[sequence%SpanMax]
	if s.acked { // by a peer that cannot have it; the number is spent
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

// release gives a frame back to its owner: it is acknowledged and has no reader.
func (o *Outbox) release(s *slot) {
	*s = slot{}
	o.pending--
	for o.first < o.next && !o.slots[o.first%SpanMax].used {
		o.first++
	}
	o.wake()
}

// wake wakes the waiting goroutines; change is what they wait for. Both are called with mu held.
func (o *Outbox) wake() {
	select {
	case o.room <- struct{}{}:
	default: // told already
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

// Ack takes an acknowledgement in. A frame that is missing though one sent after it has arrived is sent again at once,
// and not again before one sent after the repetition has arrived. An ack of frames that were never sent changes nothing
// and gives ErrAck; old and repeated acks are fine.
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
		refused := before < s.end && s.end <= o.credit // went beyond the credit of then, and would be taken now
		if refused {
			o.trips.fresh() // room was waited for, not an ack
			o.due = time.Time{}
		}
		return s.order < told.evidence || refused
	})
	overdue := o.recover(&told)
	o.mu.Unlock()
	return errors.Join(o.repeat(lost, &o.stats.Gaps), o.repeat(overdue, &o.stats.Timeout))
}

// news is what an ack told that was not known.
type news struct {
	progress bool   // frames have arrived
	frames   int    // so many
	original bool   // of these one was sent once, and is among the suspects
	latest   uint64 // order of the latest transmission of any of them
	// that was its frame's only one: its arrival may have brought the ack about, and no repetition has
	once bool
	at   time.Duration // when its frame was sent first, since Outbox.epoch
	// evidence is the order of the latest transmission known to have arrived. Of a frame that was sent several times
	// it is not known which one did, so it proves no more than its first: else a late original would condemn all that
	// left before its repetition.
	evidence uint64
}

// arrived marks what an ack says has arrived, and releases it. Called with mu held.
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

// mark picks frames to send again, oldest first, and holds them until repeat is through with them.
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

// repeat publishes marked frames, except those that have been acknowledged since, and counts them. It stops at the
// first error: ErrLost is left to the next Tick or ResendAll, any other ends the window.
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

// ResendAll sends everything again that was not acknowledged. Call it when the connection is back.
func (o *Outbox) ResendAll() error {
	o.mu.Lock()
	o.trips.fresh()
	o.due, o.probes, o.suspect = time.Time{}, 0, 0
	all := o.mark(SpanMax, every)
	o.mu.Unlock()
	return o.repeat(all, &o.stats.Back)
}

// Pending is the number of frames that are not released: not acknowledged, or just being sent again.
func (o *Outbox) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending
}

// Drained waits until every frame sent before was released, so that all of them may be refilled.
func (o *Outbox) Drained(ctx context.Context) error { return o.DrainedTo(ctx, math.MaxUint64) }

// DrainedTo waits until every frame up to a number was released, whatever is on the way beyond it.
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

// Stats counts what the window did.
func (o *Outbox) Stats() OutboxStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stats
}

// Close ends the window with an error (nil is ErrClosed), which everyone who waits is given. It may be called again.
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

// OutboxState is how a window is at one moment.
type OutboxState struct {
	OutboxStats
	PendingBytes int // of frames that were sent and not acknowledged
	// that may be on the way: OutboxConfig.BytesMax, or less where the receiver's credit ends before
	WindowBytes int
	full        bool          // a sender waits for room
	RoundTrip   time.Duration // from a frame's only sending until it is known to have come, lately; 0 before the first
}

// State is how the window is now.
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

// Expect says how long a round trip to the receiver's server takes: the first guess, until an ack was measured.
func (o *Outbox) Expect(trip time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trips.Expect(trip)
}

// Usual is the time within which an answer from the receiver comes that is not put off: see RoundTrips.
func (o *Outbox) Usual() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.trips.usual()
}

// overdue picks the frame to send again where nothing was heard: the newest that there is credit for, since its ack
// condemns all that left before it and did not arrive; every other time the oldest, in case the receiver can take no
// other. Called with mu held.
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

// Tick tells the window what time it is; call it some ten times a second or more. Where nothing was acknowledged for
// the timeout, one frame is sent again, whose ack shows what else is missing. Where a sender waits for credit and
// nothing is on the way, the ack that granted it may be lost, and one frame may go beyond it: its ack tells. A call
// that comes much later than it would have had something to do leaves that to the next one, since acks may have waited
// as it has.
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
		o.again = late >= 0 // acks may wait to be read, as this call did
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

// recover picks what else to send again when a frame was answered that was sent again since nothing was heard: of all
// that was on the way then twice as many as have arrived, the oldest first, as a TCP does that starts slowly. A window
// that was lost whole, with what was sent again of it, is through after eight round trips. Where one arrives that was
// sent once, the frames were late and not lost, and none is sent twice. Called with mu held.
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

// SpanMax is how far a sender may run ahead of the oldest frame that was not acknowledged: what an Ack's bitmap covers.
const SpanMax = 256

// Envelope reads and writes the sequence number inside a frame. It is all that this package is told of frames.
type Envelope interface {
	// Sequence is the number within a frame, false where the bytes are no frame.
	Sequence(frame []byte) (uint64, bool)
	// SetSequence writes the number into a frame that the caller built.
	SetSequence(frame []byte, sequence uint64)
}

// Ack tells a sender what has arrived and how much more may come. Acks may be lost, repeated and reordered; each stands
// alone, and an older one changes nothing.
type Ack struct {
	// Cumulative: every sequence number up to and including this one has arrived.
	Cumulative uint64
	// Bitmap: bit i%64 of word i/64 says that Cumulative+1+i has arrived. Bit 0 of word 0 is never set.
	Bitmap [SpanMax / 64]uint64
	// Window is the credit: how many bytes of frames, counted from the sender's first frame and each frame once, the
	// sender may have sent. It never falls. What was received but not yet worked off still counts against it.
	Window uint64
}

// has reports whether the sequence number is among the received.
func (a *Ack) has(sequence uint64) bool {
	if sequence <= a.Cumulative {
		return true
	}
	i := sequence - a.Cumulative - 1
	return i < SpanMax && a.Bitmap[i/64]>>(i%64)&1 == 1
}
