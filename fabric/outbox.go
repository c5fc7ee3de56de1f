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
