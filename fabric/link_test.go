package fabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// simulation is one sender, one receiver and a link that loses, repeats and reorders in both directions, breaks and
// comes back. The seed fixes all that happens: the sender's goroutine is waited for after every step, and what it
// publishes meanwhile is queued apart from what the step does.
type simulation struct {
	t      *testing.T
	rng    *rand.Rand
	frames int // to be sent

	outbox *Outbox
	inbox  *Inbox
	now    time.Time
	broken bool
	data   [][]byte // frames on the way

	mu        sync.Mutex      // guards the next three, between the sender and a step
	first     [][]byte        // published by the sender since the last step
	again     [][]byte        // published by the step
	published map[uint64]bool // numbers that the sender has published

	acks  []Ack // acks on the way
	got   map[uint64]int
	held  []int // bytes of frames accepted and not worked off
	steps int
	seen  simulationSeen
}

// simulationSeen says what a run went through, so that a test that never reached a case fails.
type simulationSeen struct {
	lost, repeated, reordered, refused, broken, blocked int
}

const simulationHeader = 16 // sequence, index; the rest is derived from the index

func simulationFrame(index uint64, size int) []byte {
	frame := make([]byte, simulationHeader+size)
	binary.LittleEndian.PutUint64(frame[8:], index)
	for i := simulationHeader; i < len(frame); i++ {
		frame[i] = byte(index*31 + uint64(i))
	}
	return frame
}

func newSimulation(t *testing.T, rng *rand.Rand) *simulation {
	s := &simulation{t: t, rng: rng, frames: 100 + rng.IntN(300), now: time.Unix(1000, 0), got: map[uint64]int{},
		published: map[uint64]bool{}}
	windowBytes := 2000 + rng.IntN(20000)
	s.inbox = NewInbox(uint64(windowBytes + rng.IntN(5000)))
	s.outbox = NewOutbox(OutboxConfig{
		Envelope:  envelope{},
		Publish:   s.publish,
		FramesMax: 1 + rng.IntN(SpanMax),
		BytesMax:  windowBytes,
	})
	return s
}

func (s *simulation) publish(_ Subject, p Payload) error {
	frame := p.Data()
	if s.broken {
		return fmt.Errorf("publish: %w", ErrLost)
	}
	sequence, _ := envelope{}.Sequence(frame)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published[sequence] {
		s.again = append(s.again, bytes.Clone(frame))
		return nil
	}
	s.published[sequence] = true
	s.first = append(s.first, bytes.Clone(frame))
	return nil
}

// gather waits until the sender is blocked or through, and puts what was published on the way.
func (s *simulation) gather() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(append(s.data, s.again...), s.first...)
	s.again, s.first = nil, nil
}

// send is the sender's goroutine. Now and then it waits for the window to drain, and then spoils the frames, as one who
// refills them would.
func (s *simulation) send(sizes []int, drainEvery int) error {
	var sent [][]byte
	for i, size := range sizes {
		frame := simulationFrame(uint64(i), size)
		if err := s.outbox.Send(s.t.Context(), At("j", "t0", KindDense, "s0"), WithoutRoom(frame)); err != nil {
			return err
		}
		sent = append(sent, frame)
		if (i+1)%drainEvery == 0 {
			if err := s.outbox.Drained(s.t.Context()); err != nil {
				return err
			}
			for _, frame := range sent {
				for i := range frame {
					frame[i] = 0xff
				}
			}
			sent = nil
		}
	}
	return s.outbox.Drained(s.t.Context())
}

func (s *simulation) run() {
	sizes := make([]int, s.frames)
	for i := range sizes {
		sizes[i] = s.rng.IntN(1900)
	}
	drainEvery := 1 + s.rng.IntN(2*s.frames)
	done := make(chan error, 1)
	go func() { done <- s.send(sizes, drainEvery) }()
	for s.steps = 0; ; s.steps++ {
		s.gather()
		select {
		case err := <-done:
			if err != nil {
				s.t.Fatal(err)
			}
			s.finish()
			return
		default:
		}
		if s.steps == 1_000_000 {
			s.outbox.Close(errors.New("stuck"))
			s.t.Fatalf("stuck with %d of %d frames received, %d pending, ack %+v", len(s.got), s.frames, s.outbox.Pending(),
				s.inbox.Ack())
		}
		s.step()
	}
}

func (s *simulation) step() {
	switch dice := s.rng.IntN(1000); {
	case dice < 5:
		s.breakOrRepair()
	case dice < 50:
		s.tick()
	case dice < 150 && len(s.held) > 0:
		s.free()
	case dice < 600 && len(s.data) > 0:
		s.deliverFrame()
	case len(s.acks) > 0:
		s.deliverAck()
	case len(s.data) > 0:
		s.deliverFrame()
	default:
		s.seen.blocked++
		s.tick()
	}
}

// breakOrRepair cuts the link, with all that is on the way, or brings it back.
func (s *simulation) breakOrRepair() {
	s.broken = !s.broken
	if s.broken {
		s.seen.broken++
		s.data, s.acks = nil, nil
		return
	}
	s.check(s.outbox.ResendAll())
}

func (s *simulation) tick() {
	s.now = s.now.Add(time.Duration(s.rng.IntN(200)) * time.Millisecond)
	if s.broken && s.rng.IntN(4) == 0 {
		s.breakOrRepair()
		return // one call of the outbox a step: it may set the sender going
	}
	s.check(s.outbox.Tick(s.now))
}

// free works the oldest staged frame off. The ack that tells of it may be lost like any other.
func (s *simulation) free() {
	s.inbox.Free(s.held[0])
	s.held = s.held[1:]
	s.sendAck()
}

func (s *simulation) deliverFrame() {
	frame, keep := take(s, &s.data)
	if keep {
		s.data = append(s.data, bytes.Clone(frame))
	}
	if frame == nil {
		return
	}
	sequence, _ := envelope{}.Sequence(frame)
	fresh, ok := s.inbox.AcceptBytes(sequence, len(frame))
	if !ok {
		s.seen.refused++
	}
	if fresh {
		index := binary.LittleEndian.Uint64(frame[8:])
		if sequence != index+1 || !bytes.Equal(frame[8:], simulationFrame(index, len(frame)-simulationHeader)[8:]) {
			s.t.Fatalf("frame %d arrived spoilt, as %d", sequence, index)
		}
		s.got[index]++
		s.held = append(s.held, len(frame))
	}
	s.sendAck()
}

func (s *simulation) sendAck() {
	if !s.broken {
		s.acks = append(s.acks, s.inbox.Ack())
	}
}

func (s *simulation) deliverAck() {
	ack, keep := take(s, &s.acks)
	if keep {
		s.acks = append(s.acks, ack)
	}
	s.check(s.outbox.Ack(ack))
}

// take picks a message from the front, or a little behind it, and loses or repeats it at times. A lost one is the zero
// value, which is a harmless ack.
func take[T any](s *simulation, queue *[]T) (message T, keep bool) {
	i := 0
	if s.rng.IntN(5) == 0 {
		i = s.rng.IntN(min(len(*queue), 20))
	}
	if i > 0 {
		s.seen.reordered++
	}
	message = (*queue)[i]
	*queue = append((*queue)[:i:i], (*queue)[i+1:]...)
	switch s.rng.IntN(10) {
	case 0:
		s.seen.lost++
		var none T
		return none, false
	case 1:
		s.seen.repeated++
		return message, true
	}
	return message, false
}

func (s *simulation) check(err error) {
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *simulation) finish() {
	for i := range uint64(s.frames) {
		if s.got[i] != 1 {
			s.t.Fatalf("frame %d arrived %d times", i, s.got[i])
		}
	}
	if len(s.got) != s.frames || s.outbox.Pending() != 0 {
		s.t.Fatalf("%d frames arrived of %d, %d pending", len(s.got), s.frames, s.outbox.Pending())
	}
}

func TestEverythingArrivesExactlyOnce(t *testing.T) {
	rng := newRand(t)
	runs := 60
	if testing.Short() {
		runs = 10
	}
	var seen simulationSeen
	steps := 0
	for range runs {
		a, b := rng.Uint64(), rng.Uint64()
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, rand.New(rand.NewPCG(a, b)))
			s.run()
			steps += s.steps
			seen.lost += s.seen.lost
			seen.repeated += s.seen.repeated
			seen.reordered += s.seen.reordered
			seen.refused += s.seen.refused
			seen.broken += s.seen.broken
			seen.blocked += s.seen.blocked
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d steps: %+v", steps, seen)
	if seen.lost == 0 || seen.repeated == 0 || seen.reordered == 0 || seen.refused == 0 || seen.broken == 0 ||
		seen.blocked == 0 {
		t.Errorf("the runs missed a case: %+v", seen)
	}
}
