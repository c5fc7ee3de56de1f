package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var someSubject = At("j", "t0", KindDense, "s0")

// envelope keeps the number in the first 8 bytes.
type envelope struct{}

func (envelope) Sequence(frame []byte) (uint64, bool) {
	if len(frame) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(frame), true
}

func (envelope) SetSequence(frame []byte, sequence uint64) {
	binary.LittleEndian.PutUint64(frame, sequence)
}

// recorder is an Outbox whose publications are kept as numbers.
type recorder struct {
	*Outbox
	sent []uint64
	err  error
}

func newRecorder(config OutboxConfig) *recorder {
	r := &recorder{}
	config.Envelope = envelope{}
	config.Publish = func(subject Subject, p Payload) error {
		frame := p.Data()
		if r.err != nil {
			return r.err
		}
		sequence, _ := envelope{}.Sequence(frame)
		r.sent = append(r.sent, sequence)
		return nil
	}
	r.Outbox = NewOutbox(config)
	return r
}

func (r *recorder) send(t *testing.T, frames, bytes int) {
	t.Helper()
	for range frames {
		if err := r.Send(t.Context(), someSubject, WithoutRoom(make([]byte, bytes))); err != nil {
			t.Fatal(err)
		}
	}
}

// want compares what was published since the last call.
func (r *recorder) want(t *testing.T, when string, sequences ...uint64) {
	t.Helper()
	if !slices.Equal(r.sent, sequences) {
		t.Errorf("%s: published %v, want %v", when, r.sent, sequences)
	}
	r.sent = nil
}

func (r *recorder) ack(t *testing.T, cumulative, bitmap uint64) {
	t.Helper()
	if err := r.Ack(Ack{Cumulative: cumulative, Bitmap: [4]uint64{bitmap}}); err != nil {
		t.Error(err)
	}
}

func (r *recorder) pending(t *testing.T, want int) {
	t.Helper()
	if got := r.Pending(); got != want {
		t.Errorf("pending %d, want %d", got, want)
	}
}

// Without room TrySend leaves the window as it was; it waits neither for room nor for another who does.
func TestTrySend(t *testing.T) {
	r := newRecorder(OutboxConfig{BytesMax: 100})
	try := func(when string, bytes int, want bool) {
		t.Helper()
		if sent, err := r.TrySend(someSubject, WithoutRoom(make([]byte, bytes))); sent != want || err != nil {
			t.Errorf("%s: sent %v, %v; want %v", when, sent, err, want)
		}
	}
	try("into an empty window", 60, true)
	try("beyond the window", 60, false)
	try("of what is left", 40, true)
	r.want(t, "two frames", 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() { waiting <- r.Send(ctx, someSubject, WithoutRoom(make([]byte, 60))) }()
	eventually(t, "somebody waits for room", func() bool { return r.State().full })
	try("while another waits", 0, false)
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("who waited got %v", err)
	}
	if err := r.Ack(Ack{Cumulative: 2, Window: 1000}); err != nil {
		t.Fatal(err)
	}
	try("into a window that was emptied", 60, true)
	r.want(t, "after the ack", 3)
	r.err = ErrPayload
	if sent, err := r.TrySend(someSubject, WithoutRoom(make([]byte, 10))); !errors.Is(err, ErrPayload) || !sent {
		t.Errorf("refused by the server: sent %v, %v", sent, err)
	}
	r.err = nil
	r.Close(nil)
	if _, err := r.TrySend(someSubject, WithoutRoom(make([]byte, 10))); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
func TestOutboxNumbersFromOne(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 3, 8)
	r.want(t, "sent", 1, 2, 3)
	r.pending(t, 3)
	r.ack(t, 2, 0)
	r.pending(t, 1)
	r.ack(t, 1, 0) // older: nothing
	r.pending(t, 1)
	r.ack(t, 3, 0)
	r.pending(t, 0)
	r.want(t, "acked")
	if err := r.Drained(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOutboxGapIsSentAgainOncePerEvidence(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 5, 8)
	r.want(t, "sent", 1, 2, 3, 4, 5)
	r.ack(t, 0, 0b100) // 3 is there, 1 and 2 are not
	r.want(t, "gap", 1, 2)
	r.ack(t, 0, 0b100)
	r.want(t, "same ack again")
	r.ack(t, 0, 0b1100) // 4, sent before the repetitions, proves nothing about them
	r.want(t, "later ack of an earlier transmission")
	r.ack(t, 1, 0b0110) // 1 is there; whether its repetition is, and 5 therefore lost, is not known: it may have been late
	r.want(t, "first or repetition")
	r.send(t, 1, 8)
	r.want(t, "sent", 6)
	r.ack(t, 1, 0b10110) // 6, sent after the repetition of 2, is there; 5 too is missing
	r.want(t, "repetition lost", 2, 5)
	if got := r.Stats(); got != (OutboxStats{Frames: 6, Gaps: 4}) {
		t.Errorf("stats %+v", got)
	}
}

// One frame that is late is sent again once, and nothing else is: what arrives then is not taken for its repetition.
func TestOutboxLateFrameCondemnsNobody(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 6, 8)
	r.sent = nil
	r.ack(t, 0, 0b10) // 2 is there, 1 is not
	r.want(t, "gap", 1)
	r.ack(t, 2, 0) // 1 was only late; 3 to 6 are on their way
	r.ack(t, 3, 0)
	r.want(t, "late frame")
}

func TestOutboxResendAllAfterReconnect(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 3, 8)
	r.err = fmt.Errorf("publish: %w", ErrLost)
	r.send(t, 1, 8) // lost is no error: the frame is in the window
	if err := r.ResendAll(); err != nil {
		t.Errorf("ResendAll while lost: %v", err)
	}
	r.err = nil
	r.ack(t, 0, 0b10)
	r.sent = nil
	if err := r.ResendAll(); err != nil {
		t.Error(err)
	}
	r.want(t, "back", 1, 3, 4)
}

// A first frame that is larger than the window leaves at once, and alone; then the receiver's credit counts.
func TestOutboxFirstFrameNeedsNoCredit(t *testing.T) {
	r := newRecorder(OutboxConfig{BytesMax: 16})
	for _, step := range []struct {
		bytes int
		sent  bool
		ack   Ack
	}{
		{100, true, Ack{}},
		{8, false, Ack{Cumulative: 1, Window: 107}},
		{8, false, Ack{Cumulative: 1, Window: 108}},
		{8, true, Ack{}},
	} {
		sent, err := r.TrySend(someSubject, WithoutRoom(make([]byte, step.bytes)))
		if sent != step.sent || err != nil {
			t.Errorf("%d bytes: sent %v, %v; want %v", step.bytes, sent, err, step.sent)
		}
		if err := r.Ack(step.ack); err != nil {
			t.Error(err)
		}
	}
	r.want(t, "all", 1, 2)
}

func TestOutboxRefusedFrameTakesNoNumberAndNoCredit(t *testing.T) {
	r := newRecorder(OutboxConfig{BytesMax: 16})
	r.send(t, 1, 8)
	r.err = fmt.Errorf("publish: %w", ErrPayload)
	if err := r.Send(t.Context(), someSubject, WithoutRoom(make([]byte, 8))); !errors.Is(err, ErrPayload) {
		t.Errorf("Send: %v; want ErrPayload", err)
	}
	r.err = nil
	r.send(t, 1, 8)
	r.want(t, "sent", 1, 2)
	r.pending(t, 2)
	r.ack(t, 2, 0)
	r.pending(t, 0)
}

func TestOutboxRefusesAcksOfTheUnsent(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 2, 8)
	for _, a := range []Ack{
		{Cumulative: 3},
		{Cumulative: 1<<64 - 1},
		{Cumulative: 1<<64 - 1, Bitmap: [4]uint64{1}},
		{Cumulative: 0, Bitmap: [4]uint64{0b100}},
		{Cumulative: 1, Bitmap: [4]uint64{0, 0, 0, 1 << 63}},
	} {
		if err := r.Ack(a); !errors.Is(err, ErrAck) {
			t.Errorf("Ack(%+v): %v; want ErrAck", a, err)
		}
	}
	r.pending(t, 2)
}

// blocked runs Send in a bubble and reports whether it is still waiting.
type blockedSend struct {
	done chan error
}

func sendInBackground(ctx context.Context, r *recorder, bytes int) *blockedSend {
	b := &blockedSend{make(chan error, 1)}
	go func() { b.done <- r.Send(ctx, someSubject, WithoutRoom(make([]byte, bytes))) }()
	return b
}

func (b *blockedSend) waits(t *testing.T, when string, want bool) {
	t.Helper()
	synctest.Wait()
	if got := len(b.done) == 0; got != want {
		t.Errorf("%s: waits %v, want %v", when, got, want)
	}
}

func TestOutboxBlocksOnFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{FramesMax: 2})
		r.send(t, 2, 8)
		s := sendInBackground(t.Context(), r, 8)
		s.waits(t, "full", true)
		r.ack(t, 0, 0b10) // the oldest is missing: the span stays
		s.waits(t, "second acked", true)
		r.ack(t, 2, 0)
		s.waits(t, "first acked", false)
	})
}

func TestOutboxBlocksOnBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{BytesMax: 100})
		r.Ack(Ack{Window: 1 << 20})
		r.send(t, 1, 60)
		s := sendInBackground(t.Context(), r, 41)
		s.waits(t, "60 of 100 on the way", true)
		r.ack(t, 1, 0)
		s.waits(t, "acked", false)
		r.ack(t, 2, 0)
		r.send(t, 1, 1000) // one is always allowed
		r.want(t, "sent", 1, 2, 3)
	})
}

func TestOutboxBlocksOnCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{BytesMax: 100})
		r.send(t, 1, 60)
		r.Ack(Ack{Cumulative: 1, Window: 100})
		s := sendInBackground(t.Context(), r, 60)
		s.waits(t, "20 bytes short", true)
		r.Ack(Ack{Cumulative: 1, Window: 119})
		s.waits(t, "1 byte short", true)
		r.Ack(Ack{Cumulative: 1, Window: 120})
		s.waits(t, "granted", false)
		r.Ack(Ack{Cumulative: 1, Window: 100}) // an old ack takes nothing away
		r.want(t, "sent", 1, 2)
	})
}

// The ack that granted credit is lost, nothing is on the way: one frame goes out as a probe, is refused, and goes out
// again as soon as there is credit for it.
func TestOutboxProbesForLostCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{BytesMax: 100, resendAfter: 100 * time.Millisecond})
		r.send(t, 1, 100)
		r.Ack(Ack{Cumulative: 1, Window: 100})
		s := sendInBackground(t.Context(), r, 100)
		s.waits(t, "no credit", true)
		now := time.Unix(1000, 0)
		r.Tick(now)
		r.Tick(now.Add(99 * time.Millisecond))
		s.waits(t, "too early", true)
		r.Tick(now.Add(100 * time.Millisecond))
		s.waits(t, "probe", false)
		r.want(t, "probe", 1, 2)
		more := sendInBackground(t.Context(), r, 8)
		more.waits(t, "behind the probe", true)
		r.Ack(Ack{Cumulative: 1, Window: 100}) // refused
		r.want(t, "refused")
		r.Ack(Ack{Cumulative: 1, Window: 200})
		more.waits(t, "credit for the probe only", true)
		r.want(t, "granted", 2)
		r.Ack(Ack{Cumulative: 2, Window: 208})
		more.waits(t, "granted", false)
		r.want(t, "granted", 3)
	})
}

func TestOutboxSendEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{FramesMax: 1})
		r.send(t, 1, 8)
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting, behind := sendInBackground(ctx, r, 8), sendInBackground(ctx, r, 8)
		waiting.waits(t, "full", true)
		cancel(stop)
		for _, s := range []*blockedSend{waiting, behind} {
			if err := <-s.done; !errors.Is(err, stop) {
				t.Errorf("Send: %v; want %v", err, stop)
			}
		}
		if err := r.Drained(ctx); !errors.Is(err, stop) {
			t.Errorf("Drained: %v; want %v", err, stop)
		}
		r.ack(t, 1, 0)
		r.send(t, 1, 8) // the window is as it was
		r.want(t, "sent", 1, 2)
	})
}

func TestOutboxCloseReleasesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(OutboxConfig{FramesMax: 1})
		r.send(t, 1, 8)
		s := sendInBackground(t.Context(), r, 8)
		s.waits(t, "full", true)
		drained := make(chan error, 1)
		go func() { drained <- r.Drained(t.Context()) }()
		r.Close(nil)
		if err := <-s.done; !errors.Is(err, ErrClosed) {
			t.Errorf("Send: %v", err)
		}
		if err := <-drained; !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "1 frames") {
			t.Errorf("Drained: %v", err)
		}
	})
}

func TestOutboxFatalErrorWhileResending(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 2, 8)
	r.err = fmt.Errorf("publish: %w", ErrRefused)
	if err := r.ResendAll(); !errors.Is(err, ErrRefused) {
		t.Errorf("ResendAll: %v", err)
	}
	r.err = nil
	if err := r.Send(t.Context(), someSubject, WithoutRoom(make([]byte, 8))); !errors.Is(err, ErrRefused) {
		t.Errorf("Send: %v", err)
	}
}

// A frame that is being sent again when its ack arrives stays the window's until the publisher is through with it.
func TestOutboxHoldsFrameWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		through := make(chan struct{})
		held := false
		o := NewOutbox(OutboxConfig{Envelope: envelope{}, Publish: func(Subject, Payload) error {
			if held {
				<-through
			}
			return nil
		}})
		if err := o.Send(t.Context(), someSubject, WithoutRoom(make([]byte, 8))); err != nil {
			t.Fatal(err)
		}
		held = true
		go o.ResendAll()
		synctest.Wait()
		if err := o.Ack(Ack{Cumulative: 1}); err != nil {
			t.Fatal(err)
		}
		if got := o.Pending(); got != 1 {
			t.Errorf("pending %d while the frame is read, want 1", got)
		}
		close(through)
		synctest.Wait()
		if got := o.Pending(); got != 0 {
			t.Errorf("pending %d, want 0", got)
		}
	})
}

// What was acknowledged while others were sent again is not sent again.
func TestOutboxSkipsWhatWasAcknowledgedMeanwhile(t *testing.T) {
	r := newRecorder(OutboxConfig{})
	r.send(t, 3, 8)
	r.want(t, "sent", 1, 2, 3)
	publish := r.config.Publish
	r.config.Publish = func(subject Subject, frame Payload) error {
		if len(r.sent) == 0 { // in the middle of the first repetition
			if err := r.Ack(Ack{Cumulative: 2}); err != nil {
				t.Error(err)
			}
		}
		return publish(subject, frame)
	}
	if err := r.ResendAll(); err != nil {
		t.Fatal(err)
	}
	r.want(t, "sent again", 1, 3)
	r.pending(t, 1)
}

// A window that is always full makes its sender wait for every frame, and allocates nothing.
func TestOutboxAllocations(t *testing.T) {
	sent := make(chan uint64, SpanMax)
	o := NewOutbox(OutboxConfig{Envelope: envelope{}, FramesMax: 2, Publish: func(_ Subject, p Payload) error {
		sequence, _ := envelope{}.Sequence(p.Data())
		sent <- sequence
		return nil
	}})
	var wg sync.WaitGroup
	wg.Go(func() {
		for sequence := range sent {
			if err := o.Ack(Ack{Cumulative: sequence}); err != nil {
				t.Error(err)
			}
		}
	})
	frames := [][]byte{make([]byte, 64), make([]byte, 64), make([]byte, 64), make([]byte, 64)}
	ctx, i := guarded(t), 0
	if n := testing.AllocsPerRun(2000, func() {
		if err := o.Send(ctx, someSubject, WithoutRoom(frames[i%len(frames)])); err != nil {
			t.Error(err)
		}
		i++
	}); n != 0 {
		t.Errorf("a frame takes %v allocations", n)
	}
	close(sent)
	wg.Wait()
}
