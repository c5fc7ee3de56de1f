package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Role is the work of one member. It returns when the work is done or ctx ends; its result is what encoding/json can
// write. After an error no member continues, so a role need not tell the others.
type Role func(ctx context.Context, m *Member) (result any, err error)

// ErrStopped: the driver wanted the member to end while it was waiting to begin.
var ErrStopped = errors.New("stopped while waiting to begin")

// progressEvery is how often a member tells its progress at most.
const progressEvery = 100 * time.Millisecond

// Member is what a role knows of itself and of its driver. Its methods may be called from any goroutine.
type Member struct {
	// Name is what the driver calls this member, for example t0.
	Name string

	alone    bool // it has a process of its own
	settings json.RawMessage
	done     chan struct{}
	stop     sync.Once
	released chan struct{}        // one for each release; room for goesMax
	asks     chan json.RawMessage // room for one: the driver waits for the answer

	mu     sync.Mutex // held while a value is sent, so that its parts stay together
	send   func(message) error
	shown  time.Time
	counts [2]int // of the last progress that was sent
	clock  clockOf
}

// goesMax bounds the releases ahead of their waits: the driver sends one only after it saw the wait, so there is never
// more than one.
const goesMax = 4

func newMember(name string, settings json.RawMessage, send func(message) error) *Member {
	return &Member{Name: name, alone: true, settings: settings, done: make(chan struct{}),
		released: make(chan struct{}, goesMax), asks: make(chan json.RawMessage, 1), send: send}
}

// Settings decodes this member's settings, whose JSON may have no field that into lacks.
func (m *Member) Settings(into any) error {
	if err := decode(m.settings, into); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	return nil
}

// Tell gives the driver a named value, for Handle.Told. A later value of the same name takes the place of the first.
func (m *Member) Tell(key string, value any) error { return m.say(opTell, key, value) }

// Say gives the driver a line to print. Lines of all members come out in the order in which they arrive.
func (m *Member) Say(line string) error { return m.say(opSay, "", line) }

// Feed tells the driver that SayAt will be called for streams: "" is the member's own. It comes before a Wait, so that
// the driver knows of all streams before the first line.
func (m *Member) Feed(streams ...string) error {
	for _, stream := range streams {
		if err := m.event(stream, 0, ""); err != nil {
			return err
		}
	}
	return nil
}

// SayAt gives the driver a line about an event at a time. Lines of all streams come out in the order of their times. In
// a stream times rise. Several members may feed one with the same lines, of which each comes out once; the own stream,
// "", belongs to this member alone.
func (m *Member) SayAt(stream string, at time.Time, line string) error {
	ns := at.UnixNano()
	if stream == "" {
		m.mu.Lock()
		ns = m.clock.next(at)
		m.mu.Unlock()
	}
	return m.event(stream, ns, line)
}

func (m *Member) event(stream string, at int64, line string) error {
	if stream == "" {
		stream = "member " + m.Name
	}
	return m.tell(message{Op: opEvent, Key: stream, At: at}, line)
}

func (m *Member) say(op, key string, value any) error {
	return m.tell(message{Op: op, Key: key}, value)
}

// tell sends a message with a value.
func (m *Member) tell(whole message, value any) error {
	op, key := whole.Op, whole.Key
	data, err := json.Marshal(value)
	if err == nil {
		whole.Value = data
		err = m.sendAll(whole)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return nil
}

func (m *Member) sendAll(whole message) error {
	all, err := split(whole)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, part := range all {
		if err := m.send(part); err != nil {
			return err
		}
	}
	return nil
}

// Wait blocks until the driver releases the members of its choice, which it does when all of them wait. Errors: ctx's
// cause, ErrStopped.
func (m *Member) Wait(ctx context.Context) error {
	if err := m.sendAll(message{Op: opWait}); err != nil {
		return fmt.Errorf("wait for the other trainers: %w", err)
	}
	select {
	case <-m.released:
		return nil
	case <-m.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Serve answers what the driver asks (Handle.Ask), one question after the other, until the driver wants the member to
// end. Errors: that of answer, ctx's cause.
func (m *Member) Serve(ctx context.Context, answer func(context.Context, json.RawMessage) (any, error)) error {
	for {
		select {
		case question := <-m.asks:
			value, err := answer(ctx, question)
			if err == nil {
				err = m.say(opAnswer, "", value)
			}
			if err != nil {
				return err
			}
		case <-m.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Progress tells the driver how much is done, often or not: what comes soon after the last is not sent, unless done is
// total.
func (m *Member) Progress(done, total int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if counts := [2]int{done, total}; counts == m.counts || (done < total && now.Sub(m.shown) < progressEvery) {
		return
	}
	m.shown, m.counts = now, [2]int{done, total}
	_ = m.send(message{Op: opProgress, Count: done, Total: total}) // a driver that is gone ends this member anyway
}

// LimitProcs gives Go's scheduler n processors in this member's process; 0 leaves it as it is, and so does a member
// that shares its process with others. Where processes outnumber cores, 1 saves the waking of threads that find no
// core: a sixth of the processor time of small rounds.
func (m *Member) LimitProcs(n int) {
	if m.alone && n > 0 {
		runtime.GOMAXPROCS(n)
	}
}

// Done is closed when the driver wants a member that serves to end. Its role then returns its result.
func (m *Member) Done() <-chan struct{} { return m.done }

// order does what the driver says.
func (m *Member) order(o order) error {
	switch o.Op {
	case opGo:
		select {
		case m.released <- struct{}{}:
			return nil
		default:
			return errors.New("order go: no member waits")
		}
	case opAsk:
		select {
		case m.asks <- o.Settings:
			return nil
		default:
			return errors.New("order ask: the last one is not answered")
		}
	case opStop:
		m.stop.Do(func() { close(m.done) })
		return nil
	}
	return fmt.Errorf("order %q: no such order", o.Op)
}
