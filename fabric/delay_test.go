package fabric

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// far is a sender and a receiver at a distance, in time that only the test moves. Frames and acks keep their order, as
// on a connection, take half a round trip and some jitter, and may be lost. The receiver acknowledges as shards do: at
// once what is missing or came again, and 256 KiB or 32 frames, else after 10 ms. One goroutine moves everything; the
// sender's runs only while it waits. What happens to a transmission follows from the seed, the frame and how often it
// was sent, so a run is the same every time.
type far struct {
	t       *testing.T
	seed    uint64
	trip    time.Duration
	jitter  time.Duration // at most, each way
	loss    float64       // share of frames, and of acks
	outbox  *Outbox
	inbox   *Inbox
	started time.Time

	mu    sync.Mutex // guards the next two, between the sender and the mover
	first []uint64   // sent by the sender since the mover looked
	again []uint64   // sent by the mover

	frames, acks []farMessage // on the way, in the order of arrival
	acksSent     uint64
	owed         int       // frames that no ack tells of
	owedSince    time.Time // zero where none

	sent     map[uint64][]time.Time // transmissions of each frame
	received int
	lost     int           // frames and acks
	longest  time.Duration // that a batch took to be acknowledged
}

type farMessage struct {
	at       time.Time
	sequence uint64
	ack      Ack
}

const (
	farFrameBytes = 64 << 10
	farAckAfter   = 10 * time.Millisecond
	farTick       = 10 * time.Millisecond
)

func newFar(t *testing.T, seed uint64, trip, jitter time.Duration, loss float64) *far {
	f := &far{t: t, seed: seed, trip: trip, jitter: jitter, loss: loss, inbox: NewInbox(8 << 20),
		sent: map[uint64][]time.Time{}, started: time.Now()}
	f.outbox = NewOutbox(OutboxConfig{Envelope: envelope{}, Publish: f.publish})
	return f
}

func (f *far) publish(_ Subject, p Payload) error {
	sequence, _ := envelope{}.Sequence(p.Data())
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sent[sequence]) == 0 {
		f.first = append(f.first, sequence)
	} else {
		f.again = append(f.again, sequence)
	}
	f.sent[sequence] = append(f.sent[sequence], time.Now())
	return nil
}

// leave puts a message on the way, behind those that are, unless it is lost.
func (f *far) leave(queue *[]farMessage, m farMessage, stream, number uint64) {
	dice := rand.New(rand.NewPCG(f.seed^stream<<32, number))
	if lost := dice.Float64() < f.loss; lost {
		f.lost++
		return
	}
	m.at = time.Now().Add(f.trip / 2)
	if f.jitter > 0 {
		m.at = m.at.Add(time.Duration(dice.Int64N(int64(f.jitter))))
	}
	if n := len(*queue); n > 0 && m.at.Before((*queue)[n-1].at) {
		m.at = (*queue)[n-1].at
	}
	*queue = append(*queue, m)
}

// gather lets the sender go on until it waits, and takes what was sent.
func (f *far) gather() {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range append(f.again, f.first...) {
		f.leave(&f.frames, farMessage{sequence: n}, uint64(len(f.sent[n])), n)
	}
	f.again, f.first = f.again[:0], f.first[:0]
}

// move carries messages and time on until the sender is through.
func (f *far) move(done <-chan error) error {
	for tick := time.Now(); ; {
		f.gather()
		select {
		case err := <-done:
			return err
		default:
		}
		next, what := tick, f.tick
		if !f.owedSince.IsZero() && f.owedSince.Add(farAckAfter).Before(next) {
			next, what = f.owedSince.Add(farAckAfter), f.acknowledge
		}
		if len(f.frames) > 0 && f.frames[0].at.Before(next) {
			next, what = f.frames[0].at, f.receive
		}
		if len(f.acks) > 0 && f.acks[0].at.Before(next) {
			next, what = f.acks[0].at, f.heed
		}
		if next.Sub(f.started) > time.Hour {
			f.outbox.Close(fmt.Errorf("stuck with %d frames received, and %d pending", f.received, f.outbox.Pending()))
			continue
		}
		time.Sleep(time.Until(next))
		if what(); !next.Before(tick) {
			tick = next.Add(farTick)
		}
	}
}

func (f *far) tick() { f.check(f.outbox.Tick(time.Now())) }

func (f *far) heed() {
	a := f.acks[0].ack
	f.acks = f.acks[1:]
	f.check(f.outbox.Ack(a))
}

func (f *far) check(err error) {
	if err != nil {
		f.t.Error(err)
	}
}

func (f *far) receive() {
	n := f.frames[0].sequence
	f.frames = f.frames[1:]
	fresh, _ := f.inbox.AcceptBytes(n, farFrameBytes)
	if fresh {
		f.received++
		f.inbox.Free(farFrameBytes)
	}
	if f.owedSince.IsZero() {
		f.owedSince = time.Now()
	}
	if f.owed++; !fresh || f.inbox.Ack().Cumulative < n || f.owed >= (256<<10)/farFrameBytes {
		f.acknowledge()
	}
}

func (f *far) acknowledge() {
	f.owed, f.owedSince = 0, time.Time{}
	f.acksSent++
	f.leave(&f.acks, farMessage{ack: f.inbox.Ack()}, 1<<20, f.acksSent)
}

// run sends batches of frames, each when the one before was acknowledged.
func (f *far) run(batches, frames int) {
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for range batches {
				began := time.Now()
				for range frames {
					if err := f.outbox.Send(context.Background(), someSubject, WithoutRoom(make([]byte, farFrameBytes))); err != nil {
						return err
					}
				}
				if err := f.outbox.Drained(context.Background()); err != nil {
					return err
				}
				f.longest = max(f.longest, time.Since(began))
			}
			return nil
		}()
	}()
	f.check(f.move(done))
}

// resends counts frames that were sent again, and says how soon after the time before a frame was at the soonest.
func (f *far) resends() (n int, soonest time.Duration) {
	soonest = time.Hour
	for _, at := range f.sent {
		for i := 1; i < len(at); i++ {
			n++
			soonest = min(soonest, at[i].Sub(at[i-1]))
		}
	}
	return n, soonest
}

// farCase is a way of so many milliseconds, with a share of them as jitter each way.
func farCase(t *testing.T, seed uint64, ms int, jitter, loss float64) *far {
	trip := time.Duration(ms) * time.Millisecond
	return newFar(t, seed, trip, time.Duration(jitter*float64(trip)), loss)
}

// wantAll compares what happened with what may: everything has arrived, no frame was sent again before a round trip was
// over, nor many without need, and no batch took much longer than some waits for losses.
func (f *far) wantAll(frames, resendsMax int) {
	again, soonest := f.resends()
	if f.received != frames || f.outbox.Pending() != 0 {
		f.t.Errorf("%d of %d frames arrived, %d pending", f.received, frames, f.outbox.Pending())
	}
	if soonest < f.trip {
		f.t.Errorf("a frame was sent again after %v, in less than a round trip", soonest)
	}
	if again > resendsMax {
		f.t.Errorf("%d of %d frames were sent again where at most %d need be: %+v", again, frames, resendsMax,
			f.outbox.Stats())
	}
	wait := f.trip + 2*f.jitter + 50*time.Millisecond
	if most := 40 * wait; f.longest > most {
		f.t.Errorf("a batch took %v, and a wait some %v", f.longest, wait)
	}
}

// Over any distance next to nothing is sent twice where nothing is lost, and what is lost arrives in bounded time.
func TestFarWindow(t *testing.T) {
	for _, ms := range []int{1, 50, 240, 800} {
		for _, c := range []struct{ jitter, loss float64 }{{0, 0}, {0.2, 0}, {1, 0}, {0.2, 0.01}, {0, 0.1}} {
			for _, shape := range []struct{ batches, frames int }{{40, 1}, {20, 12}, {1, 300}} {
				t.Run(fmt.Sprintf("%dms jitter %v loss %v %dx%d", ms, c.jitter, c.loss, shape.batches, shape.frames),
					func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							f := farCase(t, 7, ms, c.jitter, c.loss)
							f.outbox.Expect(f.trip)
							f.run(shape.batches, shape.frames)
							most := 0
							if c.jitter == 1 {
								most = 2 // as long as little is known of it
							}
							f.wantAll(shape.batches*shape.frames, most+f.lost)
						})
					})
			}
		}
	}
}

// A way that is much longer than was expected, or becomes so, is learnt, however few frames are under way at a time:
// what is sent again is no measure, so the wait has to stay doubled until something is sent once.
func TestFarWindowLearns(t *testing.T) {
	for _, frames := range []int{1, 2, 12, 70} {
		synctest.Test(t, func(t *testing.T) {
			f := farCase(t, 7, 600, 0, 0)
			f.outbox.Expect(time.Millisecond)
			f.run(15, frames)
			if again, _ := f.resends(); again > 8 {
				t.Errorf("batches of %d over 600 ms in place of 1: %d sent again", frames, again)
			}
			f.trip = time.Millisecond
			f.run(15, frames)
			f.trip = 600 * time.Millisecond
			was, _ := f.resends()
			f.run(15, frames)
			if again, _ := f.resends(); again > was+8 {
				t.Errorf("batches of %d, after the way was shorter for a while: %d sent again", frames, again-was)
			}
		})
	}
}
