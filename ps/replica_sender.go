package ps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/state"
)

const (
	// mirrorLook is the interval at which it checks whether a version is copied; a completed copy wakes it.
	mirrorLook = 100 * time.Millisecond
	// mirrorValues is the number of values that are copied at once: with slots and keys, they fit the smallest payload
	// that a ps may accept.
	mirrorValues = 1 << 15
	// mirrorTick is the interval at which it checks its window.
	mirrorTick = 10 * time.Millisecond
)

// replicaSender tells others what the shards of a job here have: all of it first, and then again and again what has
// changed since. All shards copy one version, which the coordinator names, at the same batch, as for a checkpoint.
// Training goes on meanwhile.
type replicaSender struct {
	a      *assignment
	to     []mirrored
	series uint32
	conn   *fabric.Conn
	wake   chan struct{} // of one: a shard has begun to copy
	hurry  chan struct{} // of one: the next version is wanted at once, or another one
	cancel context.CancelFunc
	bytes  atomic.Uint64                     // that were told
	took   atomic.Int64                      // of the last version, nanoseconds
	last   atomic.Uint64                     // the version that was told last; 0: none
	wish   atomic.Pointer[state.CopyRequest] // that it has named last; nil: none
	missed atomic.Uint64                     // the last version that was to be told and was not
}

// mirrored is a receiver of the replica.
type mirrored struct {
	member schema.Member
	outbox *fabric.Outbox
}

var (
	errPreempted = errors.New("a checkpoint was begun meanwhile")
	errMissed    = errors.New("a shard had begun a later batch")
)

// newReplicaSender begins to tell others of the versions of a job that name names. Its goroutines end with stop.
func newReplicaSender(a *assignment, to []schema.Member, series uint32) *replicaSender {
	m := &replicaSender{a: a, series: series, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
	for _, member := range to {
		m.to = append(m.to, mirrored{member, fabric.NewOutbox(fabric.OutboxConfig{Envelope: schema.Envelope{},
			Publish: func(at fabric.Subject, frame fabric.Payload) error { return m.conn.SendInPlace(at, frame) }})})
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(a.ctx)
	a.asides.Go(func() {
		if err := m.run(ctx); err != nil && ctx.Err() == nil {
			a.server.log.Error("replica not sent", "job", a.manifest.Name, "err", err)
		}
	})
	return m
}

// stop ends it, and does not wait.
func (m *replicaSender) stop() {
	for _, i := range m.a.own {
		m.a.workers[i].mirror.CompareAndSwap(m, nil)
	}
	m.cancel()
}

// run connects, and tells until ctx ends.
func (m *replicaSender) run(ctx context.Context) (err error) {
	s, name := m.a.server, string(m.a.manifest.Name)
	m.conn, err = fabric.Dial(ctx, fabric.Config{Server: s.nats, Direct: true, Name: "ps", Log: s.log})
	if err != nil {
		return err
	}
	defer m.conn.Close()
	for i := range m.to {
		acks := fabric.Pattern(name, string(m.to[i].member), fabric.KindAck, string(s.member), false)
		if err := m.conn.Subscribe(acks, func(f fabric.Message) { m.acknowledged(m.to[i].outbox, f) }); err != nil {
			return err
		}
	}
	var ticking sync.WaitGroup
	defer ticking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticking.Go(func() { m.tick(ctx) })
	for _, i := range m.a.own {
		m.a.workers[i].mirror.Store(m)
	}
	m.tell(ctx)
	return nil
}

// tick looks at the window, until ctx ends.
func (m *replicaSender) tick(ctx context.Context) {
	ticker := time.NewTicker(mirrorTick)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			for i := range m.to {
				if err := m.to[i].outbox.Tick(now); err != nil {
					m.a.server.log.Error("send what shards have", "job", m.a.manifest.Name, "err", err)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// acknowledged takes an ack.
func (m *replicaSender) acknowledged(outbox *fabric.Outbox, message fabric.Message) {
	v, err := schema.Verify(message.Data, schema.Limits{})
	if err == nil && v.Head().Job == m.a.run && v.Head().Generation == schema.Generation(m.series) {
		if ack, ok := v.Ack(); ok {
			err = outbox.Ack(fabric.Ack(ack))
		}
	}
	if err != nil {
		m.a.server.log.Warn("ack of what shards have", "job", m.a.manifest.Name, "err", err)
	}
	message.Release()
}

// tell tells of the versions that are named, until ctx ends.
func (m *replicaSender) tell(ctx context.Context) {
	for ctx.Err() == nil {
		wish := m.wish.Load()
		if wish != nil && uint64(wish.At) != m.last.Load() && uint64(wish.At) != m.missed.Load() {
			took, err := time.Duration(0), m.copyAt(ctx, wish)
			if err == nil {
				took, err = m.sendAll(ctx, wish.At, wish.Since)
			}
			switch {
			case err == nil: // the next one may be named by now: its receivers say sooner than their acks that all has come
				if wish.Since > 0 { // by which the next ones are paced; sending everything takes longer than that
					m.took.Store(int64(took))
				}
				m.last.Store(uint64(wish.At))
			case ctx.Err() != nil || m.wish.Load() != wish: // it is not wanted any more
				continue
			default:
				m.a.server.log.Debug("version not told", "job", m.a.manifest.Name, "version", uint64(wish.At), "err", err)
				m.missed.Store(uint64(wish.At))
			}
			m.a.server.replicas.tellOf(m.a.run)
		}
		select {
		case <-m.hurry:
		case <-ctx.Done():
		}
	}
}

// name says which version is told next, in place of one that is not told yet.
func (m *replicaSender) name(at, since schema.Version) {
	if w := m.wish.Load(); at > 0 && (w == nil || w.At != at || w.Since != since) {
		m.wish.Store(&state.CopyRequest{At: at, Since: since, All: since == 0, BytesMax: state.CopyBytesMax})
		nudge(m.hurry)
		nudge(m.wake)
	}
}

// begun returns the latest batch that a shard here has begun.
func (m *replicaSender) begun() (b schema.Batch) {
	for _, i := range m.a.own {
		b = max(b, schema.Batch(m.a.workers[i].begun.Load()))
	}
	return b
}

// copyAt has all shards copy a version, and returns when all do, or when another version is named.
func (m *replicaSender) copyAt(ctx context.Context, wish *state.CopyRequest) error {
	for _, i := range m.a.own {
		ready := false
		if !m.a.workers[i].shard(func(e *shard.Shard) { ready = e.Idle() || e.ReplicateAt(*wish) }) {
			return context.Canceled
		}
		if !ready {
			return errMissed
		}
	}
	for {
		copied, missed := true, false
		for _, i := range m.a.own {
			m.a.workers[i].shard(func(e *shard.Shard) {
				at, copies := e.Replicating()
				copies = copies && at == wish.At || e.Idle()
				copied, missed = copied && copies, missed || !copies && e.Began(wish.At)
			})
		}
		switch {
		case copied:
			return nil
		case missed || m.wish.Load() != wish:
			return errMissed
		}
		select {
		case <-m.wake:
		case <-time.After(mirrorLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shard calls do with the worker's shard, where that is there, between two steps.
func (w *worker) shard(do func(*shard.Shard)) bool {
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	if w.end == nil {
		return false
	}
	do(w.end.Shard)
	return true
}

// copies is told, after a step, whether a copy for a ps with replicas is being taken.
func (m *replicaSender) copies(e *shard.Shard, told *schema.Version) {
	if v, ok := e.Replicating(); ok && v != *told {
		*told = v
		nudge(m.wake)
	}
}

// sendAll tells of a version, and returns when all of it has come.
func (m *replicaSender) sendAll(ctx context.Context, v, since schema.Version) (took time.Duration, err error) {
	from := time.Now()
	err = m.send(ctx, v, since)
	for i := range m.to {
		if err == nil {
			err = m.to[i].outbox.Drained(ctx)
		}
	}
	return time.Since(from), err
}

// send tells of a version, all shards at once.
func (m *replicaSender) send(ctx context.Context, v, since schema.Version) error {
	var all sync.WaitGroup
	errs := make([]error, len(m.a.own))
	for n, i := range m.a.own {
		all.Go(func() { errs[n] = m.sendShard(ctx, i, v, since) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// sendShard tells what a shard has.
func (m *replicaSender) sendShard(ctx context.Context, i int, v, since schema.Version) (err error) {
	w := m.a.workers[i]
	defer w.recovered(&err)
	head := schema.Head{Job: m.a.run, Generation: schema.Generation(m.series), Batch: schema.Batch(v),
		Lanes: uint16(m.a.manifest.Lanes)}
	if since > 0 {
		head.Flags = schema.FlagMore
	}
	series := shard.Series{Head: head, Send: func(f *schema.Frame) error {
		f.Seal()
		return m.sendFrame(ctx, f, v, i)
	}}
	pieces := shard.NewPieces(m.a.manifest)
	for more := true; more; {
		var piece state.CopyPiece
		err = context.Canceled
		w.shard(func(e *shard.Shard) {
			switch at, ok := e.Replicating(); {
			case e.Idle():
				more, err = false, nil
			case ok && at == v:
				piece, more, err = e.NextPiece(mirrorValues)
			default:
				err = errPreempted
			}
		})
		if err == nil {
			err = pieces.Write(&series, &piece)
		}
		if err != nil {
			break
		}
	}
	w.shard(func(e *shard.Shard) {
		if at, ok := e.Replicating(); ok && at == v {
			e.EndCopy()
		}
	})
	if err != nil {
		return fmt.Errorf("version %d of %s: %w", v, w.member, err)
	}
	return series.End(since)
}

// sendFrame sends a frame to all who are told. Each numbers it in memory of its own.
func (m *replicaSender) sendFrame(ctx context.Context, f *schema.Frame, v schema.Version, shard int) error {
	for n := range m.to {
		memory, lo, hi := f.Room()
		if n < len(m.to)-1 {
			memory = slices.Clone(memory)
		}
		m.bytes.Add(uint64(f.Bytes()))
		at := fabric.At(string(m.a.manifest.Name), string(m.a.server.member), fabric.KindState, string(m.to[n].member)).
			WithBucket(uint64(v), uint32(shard))
		if err := m.to[n].outbox.Send(ctx, at, fabric.NewPayload(memory, lo, hi)); err != nil {
			return err
		}
	}
	return nil
}

// unmirror ends sending what the shards here have.
func (a *assignment) unmirror() {
	if a.mirroring != nil {
		a.mirroring.stop()
		a.mirroring = nil
	}
}
