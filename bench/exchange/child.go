package exchange

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/pprof"
	"sync"

	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
)

// role is what a child does.
type role interface {
	// order does what is asked and gives the answer, whose Op is filled in by the caller.
	order(ctx context.Context, o order) (answer, error)
	// bytes is the payload received, or sent, so far. Any goroutine may call it.
	bytes() uint64
	// close ends everything that the role has started and waits for it.
	close()
}

func newRole(ctx context.Context, s *spec) (role, error) {
	switch s.Role {
	case roleSink:
		return newSink()
	case roleSource:
		return newSource(), nil
	case roleReader:
		return newReader(ctx, s)
	case roleWriter:
		return newWriter(s), nil
	case roleShard:
		return newShard(ctx, s)
	case roleFeeder:
		return newFeeder(s)
	case roleAsker:
		return newAsker(s)
	case roleTrainer:
		return newTrainer(s)
	}
	return nil, fmt.Errorf("role %q: no such role", s.Role)
}

// Child is the process that Run starts: it reads what it is and then orders from in, one line each, and writes an answer to
// each to out. It ends with in, or with an error at once.
func Child(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	config.PaceCollector() // as the commands do that this process stands for
	lines := bufio.NewReader(in)
	var s spec
	if err := readLine(lines, &s); err != nil {
		return fmt.Errorf("read what to be: %w", err)
	}
	stop, err := profile(s.Profile)
	if err != nil {
		return err
	}
	defer func() {
		if e := stop(); err == nil {
			err = e
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := newRole(ctx, &s)
	if err != nil {
		return fmt.Errorf("%s %d: %w", s.Role, s.Index, err)
	}
	defer r.close()
	c := &child{role: r, out: json.NewEncoder(out), orders: make(chan order)}
	read := make(chan struct{})
	go func() { // ends with in, which ends with the parent at the latest; not waited for after an error
		defer close(read)
		defer close(c.orders)
		if err := c.read(ctx, lines); err != nil {
			cancel(err)
		}
	}()
	for {
		select {
		case o, more := <-c.orders:
			if !more {
				return context.Cause(ctx)
			}
			a, err := r.order(ctx, o)
			if err != nil {
				return fmt.Errorf("%s %d: %s: %w", s.Role, s.Index, o.Op, err)
			}
			a.Op = o.Op
			if err := c.say(a); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// child answers marks from the goroutine that reads, and everything else from that of Child.
type child struct {
	role   role
	orders chan order

	mu  sync.Mutex // guards out
	out *json.Encoder
}

func (c *child) say(a answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Encode(a)
}

func (c *child) read(ctx context.Context, lines *bufio.Reader) error {
	for {
		var o order
		if err := readLine(lines, &o); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		if o.Op != opMark {
			select {
			case c.orders <- o:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		m, err := usage(c.role.bytes())
		if err == nil {
			err = c.say(answer{Op: opMark, Mark: &m})
		}
		if err != nil {
			return err
		}
	}
}

func readLine(r *bufio.Reader, to any) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, to)
}

// profile writes a CPU profile of the whole process until stop is called. No path, no profile.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := atomicfile.Create(path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		file.Discard()
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Commit()
	}, nil
}
