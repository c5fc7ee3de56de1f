package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// reportWithin is how long the end of a process may take to be known after an order could not be written to it.
const reportWithin = 2 * graceAtEnd

// Handle is one member, as the driver sees it.
type Handle struct {
	Name string

	harness *Harness

	mu       sync.Mutex        // guards what follows
	order    func(order) error // says it to the member
	told     map[string]json.RawMessage
	parts    []byte
	answer   json.RawMessage // not read yet
	waits    int             // how often it has reached a Wait
	released int             // how often it was released
	result   json.RawMessage
	ended    bool
	count    int // progress
	total    int
	changed  chan struct{} // closed and replaced at each change
}

// line takes a line of a process. A line that is no message was printed by the program, and is dropped.
func (h *Handle) line(text []byte) {
	var m message
	if json.Unmarshal(text, &m) == nil {
		h.take(m)
	}
}

// take does what a member's message says. It is called from one goroutine at a time.
func (h *Handle) take(m message) {
	if m.Op == opResult {
		h.harness.order(func(l *lines) { l.end(h) }) // before anybody learns that it has ended, and says so in a line
	}
	h.mu.Lock()
	if m.Op == opPart {
		if len(h.parts)+len(m.Part) <= valueBytesMax {
			h.parts = append(h.parts, m.Part...)
		}
		h.mu.Unlock()
		return
	}
	if h.parts != nil {
		m.Value, h.parts = h.parts, nil
	}
	switch m.Op {
	case opTell:
		h.told[m.Key] = m.Value
	case opAnswer:
		h.answer = m.Value
	case opWait:
		h.waits++
	case opProgress:
		h.count, h.total = m.Count, m.Total
	case opResult:
		h.result, h.ended = m.Value, true
	}
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	switch m.Op {
	case opSay:
		var line string
		if json.Unmarshal(m.Value, &line) == nil {
			h.harness.Say(line)
		}
	case opEvent:
		var line string
		if json.Unmarshal(m.Value, &line) == nil {
			h.harness.order(func(l *lines) { l.feed(h, m.Key, m.At, line) })
		}
	case opProgress:
		h.harness.draw()
	}
}

func (h *Handle) hasEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// until waits for what the member is to have done. ok is called with the lock held.
func (h *Handle) until(ctx context.Context, what string, ok func() bool) error {
	for {
		h.mu.Lock()
		is, ended, changed := ok(), h.ended, h.changed
		h.mu.Unlock()
		switch {
		case is:
			return nil
		case ended:
			return fmt.Errorf("%s: has ended and not %s", h.Name, what)
		}
		select {
		case <-changed:
		case <-h.harness.ctx.Done():
			return context.Cause(h.harness.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Told waits for the value that the member tells under this name. Errors: that of the member that failed first, ctx's
// cause, or that the member has ended without it.
func (h *Handle) Told(ctx context.Context, key string, into any) error {
	var value json.RawMessage
	if err := h.until(ctx, "told "+key, func() (ok bool) { value, ok = h.told[key]; return ok }); err != nil {
		return err
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: read %s: %w", h.Name, key, err)
	}
	return nil
}

// Ask gives a member that serves (Member.Serve) a question, which encoding/json can write. Its answer is to be read
// before the next.
func (h *Handle) Ask(ctx context.Context, question any) error {
	data, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("%s: question: %w", h.Name, err)
	}
	return h.say(ctx, order{Op: opAsk, Settings: data}, func() {})
}

// Answer waits for the answer to what the member was asked. Errors: that of the member that failed first, or ctx's
// cause.
func (h *Handle) Answer(ctx context.Context, into any) error {
	var value json.RawMessage
	if err := h.until(ctx, "answered", func() bool { value, h.answer = h.answer, nil; return value != nil }); err != nil {
		return err
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: read answer: %w", h.Name, err)
	}
	return nil
}

// stop asks a member that serves to end; Result then gives what it found. One that has ended already is left alone.
func (h *Handle) stop(ctx context.Context) error {
	if h.hasEnded() {
		return nil
	}
	return h.say(ctx, order{Op: opStop}, func() {})
}

// say gives an order. A process that cannot be told has ended, or is about to: its own report says more.
func (h *Handle) say(ctx context.Context, o order, then func()) error {
	h.mu.Lock()
	err := h.order(o)
	if err == nil {
		then()
	}
	ended := h.ended
	h.mu.Unlock()
	if err == nil || ended {
		return nil
	}
	select {
	case <-h.harness.ctx.Done():
		return context.Cause(h.harness.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(reportWithin):
		return fmt.Errorf("%s: order %s: %w", h.Name, o.Op, err)
	}
}

// Result waits for the end of the member and gives its result; into may be nil. Errors: that of the member that failed
// first, or ctx's cause.
func (h *Handle) Result(ctx context.Context, into any) error {
	if err := h.until(ctx, "given a result", func() bool { return h.ended }); err != nil {
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(h.result, into); err != nil {
		return fmt.Errorf("%s: read result: %w", h.Name, err)
	}
	return nil
}

// Say prints a line of a member, or of the driver, who speak in turn.
func (c *Harness) Say(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print(line)
}

// order changes the lines of events, and prints those that are in order then.
func (c *Harness) order(change func(*lines)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.lines)
	for _, line := range c.lines.ready() {
		c.print(line)
	}
}

// print prints a line. c.mu is held.
func (c *Harness) print(line string) {
	if c.Out == nil {
		return
	}
	c.bar.clear()
	_, _ = io.WriteString(c.Out, line+"\n") // the result tells, whether anybody reads lines or not
}

// draw shows the progress of all members together.
func (c *Harness) draw() {
	if c.Bar == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	count, total := 0, 0
	for _, h := range c.handles {
		h.mu.Lock()
		count, total = count+h.count, total+h.total
		h.mu.Unlock()
	}
	c.bar.show(c.Bar, c.Title, count, total)
}
