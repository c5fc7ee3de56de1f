package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"gradbus/internal/spawn"
)

// Launch says how a child is started: a program, which calls Child, and its arguments.
type Launch struct {
	Path string
	Args []string
}

const (
	// graceAtEnd is what children get between being asked to end and being killed.
	graceAtEnd = 5 * time.Second
	// startWithin is how long a child may take for its first answers.
	startWithin = 30 * time.Second
)

// tree is the processes of one measure. When one of them fails the others are ended.
type tree struct {
	children []*kid
	ended    chan struct{} // closed when all are gone
	err      error         // after ended
	cancel   context.CancelFunc
}

// kid is one child, as its parent sees it.
type kid struct {
	name    string
	in      *os.File
	to      *json.Encoder
	close   sync.Once
	marks   chan answer // has room for one: an answer is waited for before the next order
	answers chan answer
}

// startTree starts children and tells each what it is.
func startTree(ctx context.Context, l Launch, specs []spec) (*tree, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &tree{ended: make(chan struct{}), cancel: cancel}
	var processes []spawn.Process
	var ends []*os.File // the children's
	for _, s := range specs {
		r, w, err := os.Pipe()
		if err != nil {
			t.closeInputs()
			cancel()
			return nil, fmt.Errorf("start %s: %w", s.Role, err)
		}
		k := &kid{name: fmt.Sprintf("%s %d", s.Role, s.Index), in: w, to: json.NewEncoder(w),
			marks: make(chan answer, 1), answers: make(chan answer, 1)}
		t.children, ends = append(t.children, k), append(ends, r)
		processes = append(processes, spawn.Process{Name: k.name, Path: l.Path, Args: l.Args, Stdin: r, OnLine: k.line})
	}
	go func() {
		defer close(t.ended)
		t.err = spawn.Group{Grace: graceAtEnd}.Run(ctx, processes)
		for _, r := range ends {
			r.Close()
		}
	}()
	for i, k := range t.children {
		if err := k.to.Encode(specs[i]); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w", k.name, err), t.end())
		}
	}
	return t, nil
}

// line takes a line of the child's. One that is no answer is somebody's print and dropped.
func (k *kid) line(text []byte) {
	var a answer
	if json.Unmarshal(text, &a) != nil {
		return
	}
	to := k.answers
	if a.Op == opMark {
		to = k.marks
	}
	select {
	case to <- a:
	default: // nobody asked
	}
}

// say gives an order without waiting for the answer.
func (t *tree) say(i int, o order) error {
	if err := t.children[i].to.Encode(o); err != nil {
		return t.failure(fmt.Errorf("order %s to %s: %w", o.Op, t.children[i].name, err))
	}
	return nil
}

// answer waits for the answer to the last order but marks.
func (t *tree) answer(ctx context.Context, i int) (answer, error) {
	return t.wait(ctx, t.children[i].answers)
}

func (t *tree) wait(ctx context.Context, from <-chan answer) (answer, error) {
	select {
	case a := <-from:
		return a, nil
	case <-t.ended:
		return answer{}, t.failure(errors.New("children ended before they were told to"))
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
}

// failure is why the children ended, or what the caller has found where they did not. A failed child is a moment ahead of
// the report of it.
func (t *tree) failure(found error) error {
	select {
	case <-t.ended:
		if t.err != nil {
			return t.err
		}
	case <-time.After(2 * graceAtEnd):
	}
	return found
}

// ask gives an order and waits for the answer.
func (t *tree) ask(ctx context.Context, i int, o order) (answer, error) {
	if err := t.say(i, o); err != nil {
		return answer{}, err
	}
	return t.answer(ctx, i)
}

// all gives the same order to children [from, to) and waits for all answers.
func (t *tree) all(ctx context.Context, from, to int, o order) ([]answer, error) {
	for i := from; i < to; i++ {
		if err := t.say(i, o); err != nil {
			return nil, err
		}
	}
	var got []answer
	for i := from; i < to; i++ {
		a, err := t.answer(ctx, i)
		if err != nil {
			return nil, err
		}
		got = append(got, a)
	}
	return got, nil
}

// marks asks every child what it has used.
func (t *tree) marks(ctx context.Context) ([]mark, error) {
	for i := range t.children {
		if err := t.say(i, order{Op: opMark}); err != nil {
			return nil, err
		}
	}
	all := make([]mark, len(t.children))
	for i, k := range t.children {
		a, err := t.wait(ctx, k.marks)
		if err != nil {
			return nil, err
		}
		all[i] = *a.Mark
	}
	return all, nil
}

// connect asks child 0 for its address and has the others connect to it.
func (t *tree) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("children not ready within %v", startWithin))
	defer cancel()
	at, err := t.ask(ctx, 0, order{Op: opListen})
	if err != nil {
		return err
	}
	_, err = t.all(ctx, 1, len(t.children), order{Op: opConnect, URL: at.URL})
	return err
}

func (t *tree) closeInputs() {
	for _, k := range t.children {
		k.close.Do(func() { k.in.Close() })
	}
}

// end tells the children to end, kills those that do not, and returns when all are gone. The error is that of the first
// which failed.
func (t *tree) end() error {
	defer t.cancel()
	t.closeInputs()
	late := time.AfterFunc(2*graceAtEnd, t.cancel)
	defer late.Stop()
	<-t.ended
	return t.err
}

// cpu is the processor seconds that all children together used between two marks.
func cpu(from, to []mark) float64 {
	var s float64
	for i := range from {
		s += to[i].CPU - from[i].CPU
	}
	return s
}
