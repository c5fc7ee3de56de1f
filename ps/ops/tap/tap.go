// Package tap shows the frames that pass a NATS server, one line each, for people and programs.
//
// It knows subjects, frames and the connection that it listens on. It must not know the senders or the effect of
// frames, and it publishes nothing: a job that is watched runs like one that is not. A newcomer may add to the contents
// of a line.
package tap

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// Config says what to show. The zero value of every field but Server and Out works.
type Config struct {
	Server fabric.Config // of the ps, or of the NATS server where several ps find each other: these are listened at too
	Out    io.Writer

	Job, From, Kind, To string  // a token of the subject; empty for any
	Batch               *uint64 // nil for any
	Bucket              *uint32
	Count               int  // of frames, after which it is over; 0: until ctx ends
	JSON                bool // one object a line
}

const (
	// linesMax bounds the frames that wait to be written. One more is missed, and counted.
	linesMax = 4096
	// pendingBytes bounds what waits to be looked at on one connection. One message more is missed, and counted.
	pendingBytes = 32 << 20
	// messagesMissedEvery is the interval at which dropped messages of a connection are counted.
	messagesMissedEvery = time.Second
)

// Result counts what was shown.
type Result struct {
	Shown  int
	Missed uint64 // of frames that came faster than they could be looked at or written
}

// Check lists what is wrong with a Config, each with the field, its value and what would be right.
func (c *Config) Check() error {
	var wrong []error
	for _, of := range [...]struct{ name, token string }{{"job", c.Job}, {"from", c.From}, {"kind", c.Kind},
		{"to", c.To}} {
		if of.token == "" {
			continue
		}
		if err := schema.CheckName(of.name, of.token); err != nil {
			wrong = append(wrong, err)
		}
	}
	if c.Count < 0 {
		wrong = append(wrong, fmt.Errorf("count %d: want 0 for no end, or more", c.Count))
	}
	return errors.Join(wrong...)
}

// patterns are the subjects to listen at, each message matching one of them.
func (c *Config) patterns() []string {
	token := func(s string) string {
		if s == "" {
			return fabric.Any
		}
		return s
	}
	at := fabric.Subject{Job: token(c.Job), From: token(c.From), Kind: token(c.Kind), To: token(c.To)}.String()
	if c.To == "" {
		return []string{strings.TrimSuffix(at, fabric.Any) + ">"}
	}
	return []string{at, at + ".>"}
}

// may tells whether a message may be of the batch and bucket that were asked for, as far as its subject says.
func (c *Config) may(s *fabric.Subject) bool {
	return (c.Batch == nil || !s.HasBatch || s.Batch == *c.Batch) &&
		(c.Bucket == nil || !s.HasBucket || s.Bucket == *c.Bucket)
}

// wanted tells whether a frame is of the batch and bucket that were asked for.
func (c *Config) wanted(f *Frame) bool {
	return (c.Batch == nil || f.Batch != nil && *f.Batch == *c.Batch) &&
		(c.Bucket == nil || f.Bucket != nil && *f.Bucket == *c.Bucket)
}

// listener hands what passes to the writer, and never waits for it.
type listener struct {
	config *Config
	lines  chan Frame
	missed atomic.Uint64 // for want of room in lines
}

func (l *listener) take(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil || subject.Kind == fabric.KindFill || !l.config.may(&subject) {
		return
	}
	if len(l.lines) == cap(l.lines) { // its bytes need not be looked at
		l.missed.Add(1)
		return
	}
	f := Read(time.Now(), subject, m.Data)
	if !l.config.wanted(&f) {
		return
	}
	select {
	case l.lines <- f:
	default:
		l.missed.Add(1)
	}
}

// Run shows frames until ctx ends or Count of them were shown. It subscribes as an anonymous client, publishes nothing,
// and drops frames that arrive faster than it can write them. Errors: those of fabric.DialControl, and of Out.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.Check(); err != nil {
		return Result{}, err
	}
	l := &listener{config: &c, lines: make(chan Frame, linesMax)}
	c.Server.PendingBytesMax = pendingBytes
	conns, err := l.dialAll(ctx)
	defer func() {
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(conn.Close)
		}
		all.Wait()
	}()
	if err != nil {
		return Result{}, err
	}
	missed := func() uint64 {
		n := l.missed.Load()
		for _, conn := range conns {
			n += conn.Stats().Dropped
		}
		return n
	}
	return c.write(ctx, l.lines, missed)
}

// dialAll listens at the server that was named, and at the data servers of the ps that are announced there.
func (l *listener) dialAll(ctx context.Context) (conns []*fabric.Control, err error) {
	dial := func(config fabric.Config) error {
		conn, err := fabric.DialControl(ctx, config)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		for _, pattern := range l.config.patterns() {
			if err := conn.Subscribe(pattern, l.take); err != nil {
				return err
			}
		}
		return nil
	}
	if err := dial(l.config.Server); err != nil {
		return conns, err
	}
	bucket, err := conns[0].LookBucket(ctx, schema.ServersBucket)
	if err != nil {
		return conns, nil // no ps yet, or a server without JetStream: what passes it is shown
	}
	all, err := bucket.All(ctx)
	if err != nil {
		return conns, err
	}
	for _, e := range all {
		var ps struct{ URL string }
		if json.Unmarshal(e.Value, &ps) != nil || ps.URL == "" {
			continue // its data goes by this very server
		}
		of := l.config.Server
		of.URL, of.CredsFile = ps.URL, ""
		if !strings.HasPrefix(ps.URL, "tls:") {
			of.TLS = nil
		}
		if err := dial(of); err != nil {
			return conns, fmt.Errorf("ps %s: %w", e.Key, err)
		}
	}
	return conns, nil
}

// write writes lines as they come, and how many were missed between them.
func (c *Config) write(ctx context.Context, lines <-chan Frame, missed func() uint64) (r Result, err error) {
	out := bufio.NewWriter(c.Out)
	tick := time.NewTicker(messagesMissedEvery)
	defer tick.Stop()
	gap := func() {
		if n := missed(); n > r.Missed {
			if c.JSON {
				fmt.Fprintf(out, "{\"missed\":%d}\n", n-r.Missed)
			} else {
				fmt.Fprintf(out, "... %d frames missed: they came faster than they could be written\n", n-r.Missed)
			}
			r.Missed = n
		}
	}
	defer func() {
		gap()
		err = errors.Join(err, out.Flush())
	}()
	for c.Count == 0 || r.Shown < c.Count {
		select {
		case f := <-lines:
			if c.JSON {
				line, broken := json.Marshal(&f)
				if broken != nil {
					return r, fmt.Errorf("frame of %s: %w", f.From, broken)
				}
				out.Write(line)
			} else {
				out.WriteString(f.String())
			}
			r.Shown++
			if err := out.WriteByte('\n'); err != nil {
				return r, err
			}
		case <-tick.C:
			gap()
		case <-ctx.Done():
			return r, nil
		}
		if len(lines) == 0 {
			if err := out.Flush(); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// Frame is the contents of a line about one message.
type Frame struct {
	Time   time.Time `json:"time"` // of its arrival here
	Job    string    `json:"job"`
	From   string    `json:"from"`
	Kind   string    `json:"kind"` // of the subject
	To     string    `json:"to"`
	Module string    `json:"module,omitempty"`
	// of the subject, or of the frame where the subject has none and its kind has one
	Batch  *uint64 `json:"batch,omitempty"`
	Bucket *uint32 `json:"bucket,omitempty"`
	Bytes  int     `json:"bytes"`
	OK     bool    `json:"ok"`            // size, offsets, version and checksum are as they should be
	Why    string  `json:"why,omitempty"` // where they are not: the reason, and what was found

	// What follows is of frames that are OK.
	Is     string `json:"is,omitempty"` // the frame's own kind
	Chunk  uint32 `json:"chunk,omitempty"`
	Chunks uint32 `json:"chunks,omitempty"`
	DType  string `json:"dtype,omitempty"`
	Keys   int    `json:"keys,omitempty"`
	Count  int    `json:"count,omitempty"` // values
}

// Read looks at a message.
func Read(at time.Time, subject fabric.Subject, data []byte) Frame {
	f := Frame{Time: at, Job: subject.Job, From: subject.From, Kind: subject.Kind, To: subject.To, Module: subject.Name,
		Bytes: len(data)}
	if subject.HasBatch {
		f.Batch = &subject.Batch
	}
	if subject.HasBucket {
		f.Bucket = &subject.Bucket
	}
	v, err := schema.Verify(data, schema.Limits{})
	if err != nil {
		refused := schema.Refusing(err)
		f.Why = refused.Reason.String() + ": " + refused.Detail
		return f
	}
	h := v.Head()
	f.OK, f.Is, f.Keys = true, h.Kind.String(), len(v.Keys())
	if h.Chunks > 0 {
		f.Chunk, f.Chunks = uint32(h.Chunk), uint32(h.Chunks)
	}
	if f.Batch == nil && (h.Kind == schema.KindPull || h.Kind == schema.KindRefusal || h.Kind == schema.KindHeartbeat) {
		batch := uint64(h.Batch)
		f.Batch = &batch
	}
	if h.DType != schema.DTypeNone {
		f.DType, f.Count = h.DType.String(), len(v.Values())/h.DType.Bytes()
	}
	return f
}

// String is the line for people: time, job, from, to, kind, place, size and whether the frame is whole.
//
//	07:45:42.123456 packages t0 > s1 dense batch 12 bucket 3 chunk 1/2 float32 65536 262272 B ok
func (f *Frame) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s > %s %s", f.Time.Format("15:04:05.000000"), f.Job, f.From, f.To, f.Kind)
	if f.Is != "" && f.Is != f.Kind && f.Kind != fabric.KindCtl {
		b.WriteString(" (" + f.Is + ")")
	}
	if f.Module != "" {
		b.WriteString(" " + f.Module)
	}
	if f.Batch != nil {
		b.WriteString(" batch " + strconv.FormatUint(*f.Batch, 10))
	}
	if f.Bucket != nil {
		b.WriteString(" bucket " + strconv.FormatUint(uint64(*f.Bucket), 10))
	}
	if f.Chunks > 1 {
		fmt.Fprintf(&b, " chunk %d/%d", f.Chunk+1, f.Chunks)
	}
	if f.Keys > 0 {
		fmt.Fprintf(&b, " %d keys", f.Keys)
	}
	if f.DType != "" {
		fmt.Fprintf(&b, " %d %s", f.Count, f.DType)
	}
	fmt.Fprintf(&b, " %d B", f.Bytes)
	if !f.OK {
		b.WriteString(" BAD " + f.Why)
		return b.String()
	}
	return b.String() + " ok"
}
