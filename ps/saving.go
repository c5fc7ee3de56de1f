package ps

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/ps/coordinator"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/state"
)

// errNoFolder says that versions of jobs are not written down here.
var errNoFolder = errors.New("this ps keeps no checkpoints: start it with --checkpoint-dir")

// policy returns how often the versions of a job are written; nil: never.
func (f *located) policy(c *Config) *coordinator.CheckpointPolicy {
	if f.epoch == 0 {
		return nil
	}
	return &coordinator.CheckpointPolicy{Epoch: f.epoch, Every: c.Checkpoints.Every,
		Batches: schema.Version(c.Checkpoints.Batches)}
}

// resumeFrom returns the version that the job begins with; nil: version 0.
func (f *located) resumeFrom() *coordinator.ResumeFrom {
	c := f.from
	if c == nil {
		return nil
	}
	from := &coordinator.ResumeFrom{ID: c.resumeID(), Version: c.version, LR: c.lr}
	if c.saved != nil {
		from.Bytes, from.Durable = bytesOf(c.saved), c.saved.Created
	}
	return from
}

// resumed returns, by shard, the version that shards read; nil if they draw version 0.
func (l *controlLoop) resumed(job *schema.Job, id string) (func(int) *shard.Resumed, error) {
	s := l.server
	if id == "" {
		return func(int) *shard.Resumed { return nil }, nil
	}
	at, err := checkpoint.ParseID(id)
	if err != nil {
		return nil, err
	}
	dir := s.config.Checkpoints.Dir
	if dir == "" {
		return nil, fmt.Errorf("job %s cannot be resumed from checkpoint %s: %w", job.Name, id, errNoFolder)
	}
	read := func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		m, err := checkpoint.Open(dir, job.Name, at)
		if err != nil {
			return err
		}
		return m.Read(dir, tensor, rows)
	}
	return func(int) *shard.Resumed { return &shard.Resumed{Version: at.Version, Read: read} }, nil
}

// completedJob is a version of a job that is durable, or is not.
type completedJob struct {
	job     *job
	written *coordinator.Written
	err     error // nil: it is durable
}

// complete completes a checkpoint whose parts all shards have written, on a goroutine, and removes older ones.
func (l *controlLoop) complete(j *job, w *coordinator.Written) {
	s := l.server
	m := &checkpoint.Manifest{Format: checkpoint.Format, Job: j.manifest, Shards: len(w.Parts),
		ID: checkpoint.ID{Epoch: w.Epoch, Run: j.run, Version: w.Version}, LR: w.LR, Here: w.Trainers, Created: s.now()}
	for _, p := range w.Parts {
		m.Parts = append(m.Parts, checkpoint.PartInfo{Shard: p.Shard, Bytes: p.Bytes, Checksum: p.Checksum})
	}
	if w.Base > 0 {
		base := m.ID
		base.Version = w.Base
		m.Base = &checkpoint.Base{ID: base}
	}
	c := completedJob{job: j, written: w}
	done := make(chan struct{})
	j.writing = done
	s.releasing.Go(func() {
		c.err = s.complete(m)
		close(done)
		select {
		case l.completed <- c:
		case <-l.done:
		}
	})
}

// tellCompleted notifies the coordinator, and clients that wait for a job that has ended meanwhile.
func (l *controlLoop) tellCompleted(c *completedJob) {
	now := l.server.now()
	decisions := c.job.coordinator.Completed(now, c.written, c.err)
	if name := c.job.manifest.Name; l.jobs[name] == c.job {
		l.carryOut(c.job, decisions)
	}
	l.noteWritten(c.job)
	for i := range l.shown {
		if l.shown[i].RunID == c.job.run {
			l.shown[i].Durability = c.job.coordinator.Telemetry(now).Durability
		}
	}
}

func bytesOf(m *checkpoint.Manifest) (n int64) {
	for _, p := range m.Parts {
		n += p.Bytes
	}
	return n
}

// complete makes a version durable, and removes older ones.
func (s *Server) complete(m *checkpoint.Manifest) error {
	s.completing.Lock()
	defer s.completing.Unlock()
	log, dir := s.log.With("job", m.Job.Name, "version", uint64(m.ID.Version)), s.config.Checkpoints.Dir
	if err := checkpoint.Complete(dir, m); err != nil {
		log.Error("version is not durable", "err", err)
		return err
	}
	log.Info("version is durable", "bytes", bytesOf(m), "checkpoint", m.ID.String(), "increments", len(m.Chain())-1)
	if _, err := checkpoint.Prune(dir, m.Job.Name, s.config.Checkpoints.Keep); err != nil {
		log.Warn("older checkpoints are not removed", "err", err)
	}
	return nil
}

// saver writes the part of its shard of every version that is copied.
type saver struct {
	worker *worker
	dir    string
	shards int
	parts  []checkpoint.ID // that were written last
	wake   chan struct{}   // has room for one: a version is being copied, or there is nothing to copy

	failed atomic.Pointer[schema.CheckpointPart] // what could not be written, where nothing has been since
}

func newSaver(w *worker, dir string, shards int) *saver {
	return &saver{worker: w, dir: dir, shards: shards, wake: make(chan struct{}, 1)}
}

// run writes until ctx ends.
func (v *saver) run(ctx context.Context) {
	for {
		select {
		case <-v.wake:
			version, err := v.save(ctx)
			if err != nil && ctx.Err() == nil {
				v.worker.log.Error("version is not written", "version", uint64(version), "err", err)
				v.failed.Store(&schema.CheckpointPart{Version: version, Shard: v.worker.config.Index,
					Failure: schema.ClipFailure(err.Error())})
			}
		case <-ctx.Done():
			return
		}
	}
}

// save writes the part of the version that is copied. A shard that has nothing writes an empty part of the version
// that is asked for.
func (v *saver) save(ctx context.Context) (version schema.Version, err error) {
	defer v.worker.recovered(&err)
	w, began := v.worker, time.Now()
	wish, touched := w.checkpoints.Load(), state.Extent{}
	of := state.CopyRequest{Since: wish.Since, All: !wish.Increment}
	w.stepLock.Lock()
	at, copying := w.end.Copying()
	if copying {
		of, touched = w.end.Touched() // there may be a newer wish
	}
	idle := w.end.Idle()
	w.stepLock.Unlock()
	if version = at; !copying {
		if last := w.part.Load(); !idle || wish.At == 0 || last != nil && last.Version >= wish.At {
			return 0, nil
		}
		version = wish.At
		w.shard(func(e *shard.Shard) { touched = e.OfTrainers() })
	}
	defer v.end()
	w.saving.Store(true)
	defer w.saving.Store(false)
	modules, err := v.capture(ctx, version, copying)
	if err != nil {
		return version, err
	}
	defer modules.Release()
	modules.Extent(&touched)
	id := checkpoint.ID{Epoch: wish.Epoch, Run: w.config.RunID, Version: version}
	part, err := v.begin(id, &of, &touched)
	if err != nil {
		return version, err
	}
	defer part.Discard()
	for more := copying; more; {
		if ctx.Err() != nil {
			return version, ctx.Err()
		}
		if more, err = v.piece(part); err != nil {
			return version, err
		}
	}
	within := gatherWithin
	if !copying { // trainers will have the version
		within = moduleWithin
	}
	if err := w.gather(ctx, version, within, part); err != nil {
		return version, err
	}
	if err := modules.Tensors(part.Tensor); err != nil {
		return version, err
	}
	info, err := part.Commit()
	if err != nil {
		return version, err
	}
	v.wrote(id)
	v.failed.Store(nil)
	w.part.Store(&schema.CheckpointPart{Version: version, Shard: info.Shard, Bytes: info.Bytes, Checksum: info.Checksum,
		Touched: touched.Bytes})
	w.log.Debug("part written", "version", uint64(version), "bytes", info.Bytes, "seconds", time.Since(began).Seconds())
	return version, nil
}

// moduleWithin bounds the time for which a shard that aggregates nothing waits for a version of trainers: for the first
// answer, or for a pass of the batch that is computed on it.
const moduleWithin = 10 * gatherWithin

// capture takes what modules here are, now that a version is there: it is where the shard has begun to copy it. One
// that adds up nothing waits for a pass of the batch that is computed on it, as does any where trainers run ahead.
func (v *saver) capture(ctx context.Context, at schema.Version, there bool) (*module.Captured, error) {
	w := v.worker
	if w.modules == nil {
		return &module.Captured{}, nil
	}
	within, plan := moduleWithin, w.config.Placement.Plan
	if there && plan.Ahead == 0 || plan.Moments() {
		within = 0
	}
	return w.modules.Capture(ctx, at, within)
}

// begin begins the part of a version.
func (v *saver) begin(id checkpoint.ID, of *state.CopyRequest, touched *state.Extent) (*checkpoint.Part, error) {
	job, index := v.worker.config.Job, v.worker.config.Index
	if of.All {
		return checkpoint.NewPart(v.dir, job, id, v.shards, index)
	}
	base := id
	base.Version = of.Since
	return checkpoint.NewIncrement(v.dir, job, id, base, v.shards, index, touched)
}

// wrote records a part that is on the disk, and removes the one before it unless its version has become durable.
func (v *saver) wrote(id checkpoint.ID) {
	if v.parts = append(v.parts, id); len(v.parts) <= coordinator.AskedMax {
		return
	}
	old, w := v.parts[0], v.worker
	v.parts = v.parts[1:]
	if err := checkpoint.DropPart(v.dir, w.config.Job.Name, old, w.config.Index); err != nil {
		w.log.Warn("part of a version that is not durable stays", "version", uint64(old.Version), "err", err)
	}
}

// next takes the next piece of the copy.
func (v *saver) next() (state.CopyPiece, bool, error) {
	v.worker.stepLock.Lock()
	defer v.worker.stepLock.Unlock()
	return v.worker.end.NextPiece(state.CopyValues)
}

// piece writes the next piece. It reports whether there was one.
func (v *saver) piece(part *checkpoint.Part) (more bool, err error) {
	p, more, err := v.next()
	for i := range p.Tensors {
		if err == nil {
			err = part.Tensor(p.Tensors[i])
		}
	}
	if err == nil && p.Rows != nil {
		err = part.Rows(*p.Rows)
	}
	return more, err
}

// end ends the copy, so that another may begin.
func (v *saver) end() {
	w := v.worker
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.end.EndCopy()
	w.copying = false
}

// tell wakes the saver up.
func (v *saver) tell() {
	nudge(v.wake)
}

// wish tells the shard which version to copy, at its next step. One that nothing comes to has nothing to copy.
func (w *worker) wish(c *schema.Checkpoints) {
	if w.saver == nil || c == nil {
		return
	}
	last := w.checkpoints.Swap(c)
	if w.modules != nil && !w.config.Placement.Plan.Moments() && (last == nil || last.At < c.At) {
		w.modules.CaptureAt(c.At, w.config.Placement.Plan.Ahead)
	}
	w.saver.tell()
}

// tellDrained makes the last versions of all jobs durable if a client waits for that, and notifies it.
func (l *controlLoop) tellDrained() {
	if len(l.drained) == 0 {
		return
	}
	open := false
	for _, j := range l.coordinated() {
		drained := j.coordinator.Drain() // also where it is handed over, which may fail
		if waits, done := l.handsOver(j); waits {
			open = open || !done
			continue
		}
		open = open || !drained
	}
	if open {
		return
	}
	l.tellDrainers(false)
	for _, done := range l.drained {
		close(done)
	}
	l.drained = nil
}
