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

// saved is what is on the disk of a job that is registered.
type saved struct {
	epoch  uint64               // of the run that begins; 0: its versions are not written down
	resume *checkpoint.Manifest // that it begins with; nil: none
	not    string               // why its versions are not written down
	back   []schema.RunID       // the runs that were lost, and that its trainers come back from; nil: none
	since  uint64               // the first run of the name whose versions are its own
	here   int                  // trainers that the run had in the end which it goes on from; 0: that is not known

	kept *keptVersion // that it begins with in place of resume, where all its shards are kept; else nil
}

// find looks for the checkpoints of a job that this ps has acquired, on a goroutine of its own, and has it registered.
func (l *controlLoop) find(j *job, c acquisition) {
	s := l.server
	j.move(coordinator.Locating, s.now())
	writing := l.history.writing(j.name) // its version is the newest
	s.releasing.Go(func() {
		if writing != nil {
			<-writing
		}
		f := foundJob{acquisition: c}
		f.saved, f.refused = s.lookForLost(&f.acquisition)
		select {
		case l.found <- f:
		case <-l.done:
		}
	})
}

// foundJob is a job whose checkpoints have been looked for.
type foundJob struct {
	acquisition
	saved   saved
	refused *schema.Refused
}

// lookForSaved finds the number of a run, and the newest durable version where the job is to be resumed. Trainers that
// come back begin with version 0 where there is none, as their run did.
func (s *Server) lookForSaved(job *schema.Job, from *coming) (found saved, refused *schema.Refused) {
	resume := from.resume
	refuse := func(err error) *schema.Refused {
		return &schema.Refused{Reason: "invalid_job", Field: "resume", Want: fmt.Sprint(resume),
			Text: schema.Clip(err.Error())}
	}
	dir := s.config.Checkpoints.Dir
	if dir == "" {
		if resume {
			return found, refuse(fmt.Errorf("job %s cannot be resumed: %w", job.Name, errNoFolder))
		}
		if job.Rewinds() && job.Policy != schema.PolicyFail {
			s.log.Warn("no checkpoint folder: a lost trainer or ps ends the job", "job", job.Name, "want", "--checkpoint-dir")
		}
		return saved{not: errNoFolder.Error()}, nil
	}
	if err := job.CheckVersions(); err != nil {
		if resume {
			return found, refuse(fmt.Errorf("job %s cannot be resumed: %w", job.Name, err))
		}
		s.log.Warn("no version of the job is written down", "job", job.Name, "err", err)
		return saved{not: err.Error()}, nil
	}
	var err error
	if found.epoch, err = checkpoint.NextEpoch(dir, job.Name); err != nil && resume {
		return saved{}, refuse(fmt.Errorf("job %s: look for checkpoints: %w", job.Name, err))
	} else if err != nil { // a broken disk stops no training
		s.log.Error("no version of the job is written down", "job", job.Name, "err", err)
		return saved{not: err.Error()}, nil
	}
	if found.since = found.epoch; !resume {
		return found, nil
	}
	manifest, skipped, err := checkpoint.Newest(s.running, dir, job, from.since)
	for _, damaged := range skipped {
		s.log.Error("checkpoint is damaged, the one before it is taken", "job", job.Name, "err", damaged)
	}
	if s.otherSettings(job, from, err) {
		return found, nil
	}
	if found.back, found.here = from.lost, from.trainers; from.since > 0 {
		found.since = from.since
	}
	if errors.Is(err, checkpoint.ErrNone) && len(skipped) == 0 && len(from.lost) > 0 {
		return found, nil
	}
	if errors.Is(err, checkpoint.ErrNone) && len(skipped) == 0 {
		err = fmt.Errorf("there is no durable version of it in %s: start it without --resume", dir)
	}
	if err != nil {
		return saved{}, refuse(fmt.Errorf("job %s cannot be resumed: %w", job.Name, err))
	}
	if found.resume = manifest; found.here > 0 && manifest.Here > 0 && manifest.ID.Run == from.lost[0] {
		found.here = manifest.Here // of as many places, or fewer
	}
	found.since = min(found.since, manifest.ID.Epoch)
	return found, nil
}

// policy is how often the versions of a job are written down; nil: never.
func (f *saved) policy(c *Config) *coordinator.CheckpointPolicy {
	if f.epoch == 0 {
		return nil
	}
	return &coordinator.CheckpointPolicy{Epoch: f.epoch, Every: c.Checkpoints.Every,
		Batches: schema.Version(c.Checkpoints.Batches)}
}

// from is the version that the job begins with; nil: version 0.
func (f *saved) from() *coordinator.ResumeFrom {
	if k := f.kept; k != nil {
		return &coordinator.ResumeFrom{ID: k.id(), Version: k.version, LR: k.lr}
	}
	if f.resume == nil {
		return nil
	}
	return &coordinator.ResumeFrom{ID: f.resume.ID.String(), Version: f.resume.ID.Version, LR: f.resume.LR,
		Bytes: bytesOf(f.resume), Durable: f.resume.Created}
}

// resumed is what shards, by their numbers, read that begin with a version; nil where they draw version 0.
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

// tellCompleted tells the coordinator, and whoever looks at a job that has ended meanwhile.
func (l *controlLoop) tellCompleted(c *completedJob) {
	now := l.server.now()
	decisions := c.job.coordinator.Completed(now, c.written, c.err)
	if name := c.job.manifest.Name; l.jobs[name] == c.job {
		l.carryOut(c.job, decisions)
	}
	l.noteWritten(c.job)
	for i := range l.shown {
		if l.shown[i].RunID == c.job.run {
			l.shown[i].Durability = c.job.coordinator.Durability(now)
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
	of := state.CopyWish{Since: wish.Since, All: !wish.Increment}
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

// moduleWithin is how long a shard that adds up nothing waits for a version that trainers are to have: for the first
// answer, or a pass of the batch that is computed on it.
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
func (v *saver) begin(id checkpoint.ID, of *state.CopyWish, touched *state.Extent) (*checkpoint.Part, error) {
	job, index := v.worker.config.Job, v.worker.config.Index
	if of.All {
		return checkpoint.NewPart(v.dir, job, id, v.shards, index)
	}
	base := id
	base.Version = of.Since
	return checkpoint.NewIncrement(v.dir, job, id, base, v.shards, index, touched)
}

// wrote notes a part that is on the disk, and removes the one that nobody waits for any more, unless its version has
// become durable.
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

// tellDrained has the last versions of all jobs made durable, where anybody waits for that, and tells them when they
// are.
func (l *controlLoop) tellDrained() {
	if len(l.drained) == 0 {
		return
	}
	open := false
	for _, j := range l.coordinated() {
		if waits, done := l.handsOver(j); waits {
			open = open || !done
			continue
		}
		j.coordinator.Drain()
		open = open || !j.coordinator.Drained()
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
