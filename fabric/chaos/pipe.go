package chaos

import (
	"bufio"
	"bytes"
	"net"
	"sync"
	"time"
)

const (
	heldMessagesMax = 1024
	heldBytesMax    = 16 << 20
	writeBytes      = 64 << 10
)

// link is one connection of a member: two sockets, and a pipe for each direction.
type link struct {
	proxy  *Proxy
	member net.Conn
	server net.Conn

	mu   sync.Mutex
	name string // of the member's connection, once it has sent it; guarded by mu
}

func (l *link) setName(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name = name
}

func (l *link) getName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name
}

func (l *link) close() {
	l.member.Close()
	l.server.Close()
}

// pipe is one direction of a link. One goroutine reads and writes; timers of held messages write, too.
type pipe struct {
	link      *link
	direction Direction
	from, to  net.Conn
	timers    sync.WaitGroup

	mu    sync.Mutex // guards what follows
	out   *bufio.Writer
	held  []*held
	bytes int // of held
}

// held is a message that is held back.
type held struct {
	raw   []byte
	after int // messages that have to pass before it; 0: only time counts
	timer *time.Timer
}

func newPipe(l *link, d Direction) *pipe {
	p := &pipe{link: l, direction: d, from: l.member, to: l.server}
	if d == FromServer {
		p.from, p.to = l.server, l.member
	}
	p.out = bufio.NewWriterSize(p.to, writeBytes)
	return p
}

// run passes frames on until either side ends. It ends the link.
func (p *pipe) run() error {
	defer p.end()
	in := newReader(p.from)
	for {
		f, err := in.next()
		if err != nil {
			return err
		}
		kind := ""
		if f.subject != nil {
			kind = kinds[kindOf(f.subject)]
		}
		p.link.proxy.waitWhileStalled(p.direction, p.link.getName(), kind, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			_ = p.out.Flush() // earlier messages are not stalled; an error shows at the next write
		})
		if f.name != "" {
			p.link.setName(f.name)
		}
		if err := p.handle(&f, in.idle()); err != nil {
			return err
		}
	}
}

func (p *pipe) handle(f *frame, idle bool) error {
	var what fate
	var bits uint64
	var rule *Rule
	var count *counters
	if f.subject != nil {
		kind := kindOf(f.subject)
		count = &p.link.proxy.counts[p.direction][kind]
		count.messages.Add(1)
		count.bytes.Add(uint64(len(f.payload)))
		what, bits, rule = p.link.proxy.decide(p.direction, p.link.getName(), kinds[kind], f.subject)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what {
	case drop:
		count.dropped.Add(1)
		return p.flush(idle)
	case repeat:
		count.repeated.Add(1)
		if err := p.write(f.raw); err != nil {
			return err
		}
	case flip:
		if len(f.payload) > 0 {
			count.flipped.Add(1)
			bit := bits % uint64(8*len(f.payload))
			f.payload[bit/8] ^= 1 << (bit % 8)
		}
	case delay, reorder:
		if len(p.held) >= heldMessagesMax || p.bytes+len(f.raw) > heldBytesMax {
			count.spared.Add(1)
			break
		}
		p.hold(f, what, bits, rule)
		if what == delay {
			count.delayed.Add(1)
		} else {
			count.reordered.Add(1)
		}
		return p.flush(idle)
	}
	if err := p.write(f.raw); err != nil {
		return err
	}
	return p.flush(idle)
}

// write passes a frame on, then the messages that waited for it. The caller holds mu.
func (p *pipe) write(raw []byte) error {
	if _, err := p.out.Write(raw); err != nil {
		return err
	}
	for i := 0; i < len(p.held); {
		h := p.held[i]
		if h.after == 0 {
			i++
			continue
		}
		if h.after--; h.after > 0 {
			i++
			continue
		}
		p.take(i)
		if _, err := p.out.Write(h.raw); err != nil {
			return err
		}
	}
	return nil
}

// flush sends what was written once the reader has nothing more at hand.
func (p *pipe) flush(idle bool) error {
	if !idle {
		return nil
	}
	return p.out.Flush()
}

// hold holds a message back. The caller holds mu.
func (p *pipe) hold(f *frame, what fate, bits uint64, rule *Rule) {
	h := &held{raw: bytes.Clone(f.raw)}
	most := rule.DelayMax
	if most == 0 {
		most = delayMaxDefault
	}
	wait := most
	if what == delay {
		wait = time.Duration(bits % uint64(most))
	} else {
		h.after = 1 + int(bits%reorderMax)
	}
	p.held = append(p.held, h)
	p.bytes += len(h.raw)
	p.timers.Add(1)
	h.timer = time.AfterFunc(wait, func() {
		defer p.timers.Done()
		p.release(h)
	})
}

// release passes on a message whose time has come.
func (p *pipe) release(h *held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.held {
		if p.held[i] == h {
			p.remove(i)
			if _, err := p.out.Write(h.raw); err == nil {
				_ = p.out.Flush() // a socket that has ended ends the reader, too
			}
			return
		}
	}
}

// take removes a held message whose timer need not run any more.
func (p *pipe) take(i int) {
	if p.held[i].timer.Stop() {
		p.timers.Done()
	}
	p.remove(i)
}

func (p *pipe) remove(i int) {
	p.bytes -= len(p.held[i].raw)
	p.held = append(p.held[:i], p.held[i+1:]...)
}

// holds returns the number of messages that are held back.
func (p *pipe) holds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// end closes the link and drops held messages.
func (p *pipe) end() {
	p.link.close()
	p.mu.Lock()
	for len(p.held) > 0 {
		p.take(0)
	}
	p.mu.Unlock()
	p.timers.Wait()
}
