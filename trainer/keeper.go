package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/schema"
	"gradbus/shard/state"
)

// One of the trainers that have all of a job writes versions of it down, in its folder: the first of them that has one.
// It needs nobody for that. A version is copied when it has just become whole: parameters at once, while nothing can
// change them, since the next batch lacks what this trainer sends. Rows are copied while later batches change others,
// and the old ones are kept of those that these change first.

// keeper writes versions down. All methods may be called on nil: then nothing is written.
type keeper struct {
	session *membership
	policy  checkpoint.Policy
	id      checkpoint.ID        // of the run; Version is not set
	resumed *checkpoint.Manifest // that the session has begun with; nil: none
	work    chan *keptVersion
	busy    atomic.Bool // a version is being written

	// of the goroutine that completes batches
	since   time.Time      // when the last was begun, or the session
	last    schema.Version // that was begun
	copying *keptVersion   // nil where none is

	mu      sync.Mutex // guards what follows; a leaf
	durable schema.DurabilityReport
	growth  checkpoint.Growth // of the newest version
	late    time.Time         // since when one is due; zero: none is
}

// keptVersion is a version that is copied and written.
type keptVersion struct {
	version schema.Version
	began   time.Time
	chunks  [][]state.Tensor   // of all parameters, with what the optimizer keeps
	rows    *state.VersionCopy // of all tables
	touched state.Extent
	lr      []schema.LRChange
}

// keep begins to write versions down, where the coordinator has said that this trainer does.
func (s *membership) keep() {
	if !s.joined.Keeps || s.config.Checkpoints.Dir == "" {
		return
	}
	k := &keeper{session: s, policy: s.config.Checkpoints, work: make(chan *keptVersion, 1), since: time.Now(),
		last: s.newest()}
	k.durable.EveryMS, k.durable.EveryBatches = k.policy.Every.Milliseconds(), schema.Batch(k.policy.Batches)
	if err := k.begin(); err != nil { // a broken disk stops no training
		s.config.Log.Error("no version of the job is written down", "job", s.job.Name, "err", err)
		k.durable.Off = schema.ClipFailure(err.Error())
		k.policy.Every, k.policy.Batches = 0, 0
	}
	s.keeper.Store(k)
	s.clock.Go(k.run)
}

// begin finds the number of the run, and notes that it is under way.
func (k *keeper) begin() error {
	s, dir, name := k.session, k.policy.Dir, k.session.job.Name
	epoch, err := checkpoint.NextEpoch(dir, name)
	if err != nil {
		return err
	}
	k.id = checkpoint.ID{Epoch: epoch, Run: s.joined.RunID}
	since, others := epoch, []schema.RunID(nil)
	if s.joined.Version > 0 { // it goes on from what was there
		lost, err := checkpoint.Running(dir, name)
		if err != nil && !errors.Is(err, checkpoint.ErrDamaged) {
			return err
		}
		if others = lost.Runs; len(others) > 0 {
			since = min(since, lost.Since)
		}
		if m := s.config.saved.manifest; m != nil && slices.Contains(s.joined.From, s.joined.Member) {
			since, k.resumed = min(since, m.ID.Epoch), m
		}
	}
	return checkpoint.Begin(dir, name, k.id.Run, since, s.job.Trainers, others...)
}

// step is called when a version has become whole, and begins to copy it where it is time.
func (k *keeper) step(v schema.Version) {
	if k == nil {
		return
	}
	if c := k.copying; c != nil {
		if k.busy.Load() {
			k.locked(c.rows.Limit)
			return
		}
		k.copying = nil
	}
	now, p := time.Now(), &k.policy
	if v <= k.session.job.StartVersion() || (p.Every == 0 || now.Sub(k.since) < p.Every) &&
		(p.Batches == 0 || v < k.last+schema.Version(p.Batches)) {
		return
	}
	k.since, k.last = now, v
	k.copying = k.copy(v)
	k.busy.Store(true)
	k.work <- k.copying
}

// copy begins to copy a version that is whole, and that nothing changes until it returns.
func (k *keeper) copy(v schema.Version) *keptVersion {
	s, c := k.session, &keptVersion{version: v, began: time.Now()}
	for i := range s.flat.rounds {
		c.chunks = append(c.chunks, state.Cloned(s.compute.params.state.Pieces(i, v)))
	}
	s.lr.mu.Lock()
	c.lr = s.lr.decided
	s.lr.mu.Unlock()
	k.mu.Lock()
	wish := state.CopyWish{At: v, Since: k.durable.Version, All: !k.growth.GoesOn(), BytesMax: state.CopyBytesMax}
	if k.late.IsZero() {
		k.late = c.began
	}
	k.mu.Unlock()
	tables := make([]state.Table, len(s.replicas.tables))
	for i, t := range s.replicas.tables {
		if t != nil {
			tables[i] = t
		}
	}
	k.locked(func() { c.rows = state.NewVersionCopy(wish, nil, s.replicas.specs, tables) })
	c.touched = c.rows.Touched()
	for _, chunk := range c.chunks {
		for i := range chunk {
			t := &chunk[i]
			c.touched.Tensors = append(c.touched.Tensors, state.Stretch{Name: t.Name, From: t.From, Elements: len(t.Values)})
			c.touched.Bytes += int64(4 * len(t.Values) * (1 + len(t.Slots)))
		}
	}
	return c
}

// locked calls use while nobody else uses a table.
func (k *keeper) locked(use func()) {
	r := k.session.replicas
	for i := range r.locks {
		r.locks[i].Lock()
		defer r.locks[i].Unlock()
	}
	use()
}

// run writes what is copied until the session ends.
func (k *keeper) run() {
	for {
		select {
		case c := <-k.work:
			k.write(k.session.ctx, c)
			k.busy.Store(false)
		case <-k.session.ctx.Done():
			return
		}
	}
}

// write writes a version, and says what became of it.
func (k *keeper) write(ctx context.Context, c *keptVersion) {
	defer k.locked(c.rows.Close)
	s := k.session
	log := s.config.Log.With("job", s.job.Name, "member", s.joined.Member, "version", uint64(c.version))
	m, err := k.make(ctx, c)
	if ctx.Err() != nil && err != nil {
		return // the session has ended
	}
	k.mu.Lock()
	d := &k.durable
	if err != nil {
		d.Failures++
		d.Failure, k.growth = schema.ClipFailure(fmt.Sprintf("version %d: %v", c.version, err)), checkpoint.Growth{}
		k.mu.Unlock()
		log.Error("version is not durable", "err", err)
		return
	}
	d.Version, d.DurableMS, d.Bytes, d.Failure = c.version, time.Now().UnixMilli(), m.Bytes(), ""
	d.TookSeconds = schema.Real(time.Since(c.began).Seconds())
	touched := c.touched.Bytes
	if c.rows.Of().Since == 0 {
		touched = 0 // since when is not known, so it is all
	}
	k.growth, k.late = k.growth.With(m.Base != nil, m.Bytes(), touched), time.Time{}
	k.mu.Unlock()
	s.noteDurable(c.version)
	log.Info("version is durable", "bytes", m.Bytes(), "checkpoint", m.ID.String())
	if _, err := checkpoint.Prune(k.policy.Dir, s.job.Name, k.policy.Keep); err != nil {
		log.Warn("older checkpoints are not removed", "err", err)
	}
}

// make makes a version durable.
func (k *keeper) make(ctx context.Context, c *keptVersion) (*checkpoint.Manifest, error) {
	dir, job, wish := k.policy.Dir, k.session.job, c.rows.Of()
	m := &checkpoint.Manifest{ID: k.id, Job: job, Shards: 1, LR: c.lr, Created: time.Now()}
	m.ID.Version = c.version
	var part *checkpoint.Part
	var err error
	if wish.All {
		part, err = checkpoint.NewPart(dir, job, m.ID, 1, 0)
	} else {
		m.Base = &checkpoint.Base{ID: k.id}
		m.Base.ID.Version = wish.Since
		part, err = checkpoint.NewIncrement(dir, job, m.ID, m.Base.ID, 1, 0, &c.touched)
	}
	if err != nil {
		return nil, err
	}
	defer part.Discard()
	for _, chunk := range c.chunks {
		for i := range chunk {
			if err := part.Tensor(chunk[i]); err != nil {
				return nil, err
			}
		}
	}
	c.chunks = nil
	for more := true; more && err == nil; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var p state.CopyPiece
		k.locked(func() { p, more, err = c.rows.Next(state.CopyValues) })
		if err == nil && p.Rows != nil {
			err = part.Rows(*p.Rows)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := part.Commit()
	if err != nil {
		return nil, err
	}
	m.Parts = []checkpoint.PartInfo{info}
	return m, checkpoint.Complete(dir, m)
}

// end is the end of the session, whose goroutines have ended: what was trained since the last version is written down
// where it stays with nobody, as when the last trainer is interrupted. ended says that the job is over for this
// trainer, and nobody is to go on with it unasked.
func (k *keeper) end(stays, ended bool) {
	if k == nil || k.durable.Off != "" {
		return
	}
	select {
	case c := <-k.work: // that was not begun
		c.rows.Close()
	default:
	}
	s := k.session
	lost, err := checkpoint.Running(k.policy.Dir, s.job.Name)
	if err != nil || len(lost.Runs) == 0 || lost.Runs[0] != k.id.Run {
		return // another trainer writes there, of a run that goes on from this one
	}
	if v := s.newest(); !stays && v > max(k.durable.Version, s.job.StartVersion()) && s.compute.params.state.Keeps(v) {
		k.write(context.Background(), k.copy(v))
	}
	if !ended {
		return
	}
	if err := checkpoint.End(k.policy.Dir, s.job.Name, k.id.Run); err != nil {
		s.config.Log.Warn("the end of the job is not noted", "job", s.job.Name, "err", err)
	}
}

// report is what is told of the versions that are written; nil where none are.
func (k *keeper) report() *schema.DurabilityReport {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.durable
	if m := k.resumed; m != nil && d.Version == 0 {
		d.Version, d.Bytes, d.DurableMS = m.ID.Version, m.Bytes(), max(0, m.Created.UnixMilli())
	}
	if !k.late.IsZero() {
		d.LateMS = max(0, time.Since(k.late).Milliseconds())
	}
	return &d
}
