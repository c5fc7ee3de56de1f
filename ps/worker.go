package ps

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/round"
	"gradbus/schema"
)

// worker runs one shard of one job: the goroutine that owns the pure state machine, and what surrounds it: a queue,
// windows, subjects, the clock.
type worker struct {
	server *Server
	config ShardConfig
	name   string // of the job, as in subjects
	member schema.Member
	log    *slog.Logger
	queue  *queue
	ask    chan struct{} // has room for one: somebody wants a fresh waiting
	done   chan struct{}

	shard  *Shard
	peers  []peer // by host
	limit  limiter
	send   func(to schema.Member, subject fabric.Subject, frame []byte)
	result func(error) // told once that the shard is ready (nil), and once that it failed

	mu      sync.Mutex
	waiting Waiting
}

// peer is the receiving side of one trainer's window.
type peer struct {
	inbox   *fabric.Inbox
	ack     *schema.Frame
	subject fabric.Subject
	due     bool // something came that has to be acknowledged
	unsaid  int  // bytes given back that no ack has carried yet
}

// acknowledgeEvery bounds the frames that are worked before their senders hear of them, and of gaps between them: a
// whole queue may take as long as the timeout after which they would send again.
const acknowledgeEvery = 32

func newWorker(s *Server, c ShardConfig, log *slog.Logger, send func(schema.Member, fabric.Subject, []byte), result func(error)) (*worker, error) {
	w := &worker{
		server: s, config: c, name: string(c.Job.Name), member: schema.ShardMember(c.Index), log: log,
		queue: newQueue(), ask: make(chan struct{}, 1), done: make(chan struct{}),
		limit: limiter{perSecond: refusalsPerSecond}, send: send, result: result,
	}
	share := uint64(c.StagedBytesMax) / uint64(len(c.Hosts))
	for _, h := range c.Hosts {
		ack, err := schema.NewFrame(schema.Layout{Kind: schema.KindAck})
		if err != nil {
			return nil, fmt.Errorf("build ack: %w", err)
		}
		w.peers = append(w.peers, peer{
			inbox: fabric.NewInbox(share), ack: ack,
			subject: fabric.At(w.name, string(w.member), fabric.KindAck, string(h.Member)),
		})
	}
	return w, nil
}

// run is the worker's goroutine. It ends with ctx, having freed the shard's memory.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.queue.close()
	if err := w.serve(ctx); err != nil && ctx.Err() == nil {
		w.result(err)
	}
	if w.shard != nil {
		w.shard.Close()
	}
}

// serve makes the shard and steps it until ctx ends or the shard fails. A broken invariant ends the job, not the server.
func (w *worker) serve(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			w.log.Error("shard panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("shard %s failed: internal error: %v", w.member, r)
		}
	}()
	if w.shard, err = NewShard(ctx, w.config); err != nil {
		return err
	}
	w.result(nil)
	var items []item
	next := 0 // of items: those from here on have not been stepped
	defer func() {
		for ; next < len(items); next++ {
			round.Release(items[next].payload)
		}
	}()
	for {
		select {
		case <-w.queue.wake:
			items = w.queue.swap(items)
			for next = 0; next < len(items); {
				next++
				if err := w.step(&items[next-1]); err != nil {
					return err
				}
				if next%acknowledgeEvery == 0 {
					w.acknowledge()
				}
			}
			w.acknowledge()
		case <-w.ask:
			waiting := w.shard.Waiting()
			w.mu.Lock()
			w.waiting = waiting
			w.mu.Unlock()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step takes one frame: its window first, then the shard, which releases its payload.
func (w *worker) step(it *item) error {
	h := it.view.Head()
	if h.Kind == schema.KindDense || h.Kind == schema.KindSparse {
		if !w.accept(it.from, &h, len(it.view.Bytes())) {
			round.Release(it.payload)
			return nil
		}
	}
	outputs, reason, err := w.shard.Step(it.from, &it.view, it.payload)
	if err != nil {
		return err
	}
	w.server.counters.count(reason)
	for i := range outputs {
		w.publish(&outputs[i])
	}
	return nil
}

// accept passes a sequenced frame through its sender's window. A sender or run that is not known is left to the shard,
// which refuses it.
func (w *worker) accept(from schema.Member, h *schema.Head, bytes int) bool {
	host := w.hostOf(from)
	if host < 0 || h.Job != w.config.RunID || h.Generation != w.config.Generation {
		return true
	}
	if h.Sequence == 0 {
		subject := fabric.At(w.name, string(from), "", "")
		w.server.refuse(w, w.config.Index, &subject, *h, refuse(schema.ReasonMalformed, "%v frame without a sequence number", h.Kind))
		return false
	}
	p := &w.peers[host]
	p.due = true
	fresh, ok := p.inbox.AcceptBytes(uint64(h.Sequence), bytes)
	switch {
	case fresh:
		return true
	case ok:
		w.server.counters.count(schema.ReasonDuplicate)
	default:
		w.outside(host, h, bytes)
	}
	return false
}

// outside takes what its sender's window has no room for. It is dropped and will come again; but what will not fit then
// either is refused, so that the sender does not wait for ever.
func (w *worker) outside(host int, h *schema.Head, bytes int) {
	refused := w.shard.checkShare(host, h, int64(bytes))
	if refused == nil {
		w.server.counters.dropped.Add(1)
		return
	}
	subject := fabric.At(w.name, string(w.config.Hosts[host].Member), "", "")
	w.server.refuse(w, w.config.Index, &subject, *h, refused)
}

func (w *worker) hostOf(from schema.Member) int {
	for i := range w.config.Hosts {
		if w.config.Hosts[i].Member == from {
			return i
		}
	}
	return -1
}

// acknowledge tells every trainer what has come in, and what of it is no longer held. Whom nothing came from is told
// only once the bytes given back are worth a message.
func (w *worker) acknowledge() {
	for i := range w.peers {
		p := &w.peers[i]
		if back := int(p.inbox.HeldBytes()) - int(w.shard.HeldBytes(i)); back > 0 {
			p.inbox.Free(back)
			p.unsaid += back
		}
		if !p.due && p.unsaid < fabric.WindowBytesDefault/4 {
			continue
		}
		p.due, p.unsaid = false, 0
		p.ack.SetHead(schema.Head{
			Job: w.config.RunID, Generation: w.config.Generation, Batch: w.shard.Batch(), Lanes: uint16(w.config.Job.Lanes),
		})
		p.ack.SetAck(schema.Ack(p.inbox.Ack()))
		w.send(w.config.Hosts[i].Member, p.subject, p.ack.Seal())
	}
}

// Send implements outlet, for refusals to a trainer.
func (w *worker) Send(subject fabric.Subject, frame []byte) error {
	w.send(schema.Member(subject.To), subject, frame)
	return nil
}

// publish sends what the shard has put out.
func (w *worker) publish(o *Output) {
	at := fabric.At(w.name, string(w.member), "", string(o.To))
	switch o.Kind {
	case schema.KindMean:
		at.Kind = fabric.KindMean
		at = at.WithBucket(uint64(o.Batch), uint32(o.Bucket))
	case schema.KindRows:
		at.Kind = fabric.KindRows
		at = at.WithBatch(uint64(o.Batch))
	case schema.KindRefusal:
		at.Kind = fabric.KindCtl
		if o.Reason != schema.ReasonStaleBatch {
			w.server.logRefusal(w.name, string(o.To), o.Reason, o.Text)
		}
		if !w.limit.allow(time.Now()) {
			return
		}
	}
	w.send(o.To, at, o.Frame)
}

// refresh asks for a new answer from lately.
func (w *worker) refresh() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// lately is what the shard waited for when it last answered refresh.
func (w *worker) lately() Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}
