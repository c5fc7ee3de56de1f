package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// ErrRewound: what is under way counts for nothing, since the job resumed at another version, or another trainer
// computes these lanes. The session continues: NextAssigned gives the batch to compute.
var ErrRewound = errors.New("batch void: the job resumed at another version, or its lanes were reassigned")

// Session is a trainer's part in a job, from Join to Close. It survives restarts: where the run ends because a ps or a
// trainer was lost and the job continues in another run, the session joins that one, at the version with which it begins.
// Run computes the missing batches again. NextAssigned gives the batch to compute, whose number is lower then. A
// program that calls Next computes its own lanes alone, in order, and its session ends with the run.
//
// The methods may be called from one goroutine at a time, but for Stats, Member, Job, RunID, Lanes, Shards,
// Version, LRScale and Distinct, which any goroutine may call.
//
// A session that has failed stays failed: every call gives the first error, and only Close and Abort are of use. But
// where a job within this process (package local) ends its training because a value is not finite, its last complete
// version stays readable, if it has no hosted modules: see Err.
type Session struct {
	*membership            // in the run under way; mu guards its change
	mu          sync.Mutex // a leaf

	form    form
	failed  error        // that no restart follows; nil while the session is usable
	next    restart      // how the job's next run is joined
	joining *rejoining   // of the next run; nil while there is none
	opened  cuda.Backend // by Join; nil where the Config had one
	handles []*Module    // that Module has given

	// of the last Run that went well, whose workload computes what a later restart takes back
	workload Workload
	until    schema.Version
	inRun    bool // it is under way

	// of a program that calls NextAssigned
	given    *Batch      // last
	readAt   *membership // that was read from last, since then
	reading  *membership // whose read ErrAgain interrupted
	rewind   bool        // the run is another one, and the program does not know it
	restarts bool        // the program knows that the run has ended
}

// form is the way in which a program gets its batches, on which its part in a restart depends.
type form int

const (
	formNone     form = iota // no batch has begun
	formRun                  // by Run, which computes any batch again
	formAssigned             // by NextAssigned, which says which
	formOwn                  // by Next: its own lanes, in order
)

// newSession is the session of a trainer that was admitted.
func newSession(m *membership, next restart) *Session {
	s := &Session{membership: m, next: next}
	s.next.joined(m)
	return s
}

// current is the membership in the run under way, for any goroutine.
func (s *Session) current() *membership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.membership
}

// Member is the trainer's id within the run.
func (s *Session) Member() schema.Member { return s.current().Member() }

// Job is the manifest, with chunks as the server has room for them. It is not to be changed.
func (s *Session) Job() *schema.Job { return s.current().Job() }

// RunID tells this run of the job from others of its name.
func (s *Session) RunID() schema.RunID { return s.current().RunID() }

// Lanes is the range of lanes that this trainer hosts.
func (s *Session) Lanes() (first lane.Lane, count int) { return s.current().Lanes() }

// Shards is the number of shards that hold the job.
func (s *Session) Shards() int { return s.current().Shards() }

// Version is the number of batches applied: the next batch's number. Where the job begins with the values of a model,
// it counts from them.
func (s *Session) Version() schema.Version { return s.current().Version() }

// LRScale is the factor of the manifest's learning rates that the next batch has.
func (s *Session) LRScale() float32 { return s.current().lr.LRScale() }

// Stats are counters and times since the session joined the run under way, and what it does at the moment, as its
// reports have them.
func (s *Session) Stats() (t schema.TrainerReport) {
	s.current().heartbeats.fillReport(&t)
	return t
}

// Distinct finds the distinct ones of keys of a table: ascending at the beginning of unique, n of them, and in ids
// where each key is among them, unique[ids[i]] being keys[i]. Both are as long as keys.
//
//	keys 9 4 9  ->  unique 4 9, ids 1 0 1
func (s *Session) Distinct(table schema.Table, keys, unique []uint64, ids []int64) (n int, err error) {
	return s.current().reader.Distinct(table, keys, unique, ids)
}

// Err is nil while the session can train, and then why it cannot. Where the reason is a value that was not finite, in a
// job within this process that has no hosted modules, nothing of that batch was applied, and Param, Lookup, Table, Digest
// and Save continue to give the last complete version.
func (s *Session) Err() error { return s.unlessRestarted(s.membership.trainingErr()) }

// unlessRestarted is the error of the run under way, or nil where the next call joins another one.
func (s *Session) unlessRestarted(err error) error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.joining != nil || s.survives(err):
		return nil
	}
	return err
}

// survives reports whether the session joins another run where err has ended the one under way.
func (s *Session) survives(err error) bool {
	return err != nil && s.failed == nil && s.form != formOwn && s.next.follows(s.membership, err)
}

// acrossRestarts makes a call of the run under way. If the run has ended and the job continues in another one, it joins
// that and makes the call of it.
func (s *Session) acrossRestarts(ctx context.Context, call func(m *membership) error) error {
	for {
		if s.failed != nil {
			return s.failed
		}
		if s.joining == nil {
			err := call(s.membership)
			s.next.release(s.membership)
			ended := ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrAgain)
			if ended || !s.survives(err) {
				return err
			}
			if s.failed = s.next.bound(s.membership, err); s.failed != nil {
				return s.failed
			}
			s.joining = s.next.join(ctx, s.membership, err)
		}
		if err := s.awaitJoin(ctx); err != nil {
			return err
		}
	}
}

// awaitJoin waits until the next run is joined, or ctx ends; then it may be called again.
func (s *Session) awaitJoin(ctx context.Context) error {
	j := s.joining
	select {
	case <-j.done:
	case <-ctx.Done():
		return context.Cause(ctx) // the next call waits on
	}
	s.joining = nil
	if j.err != nil {
		s.failed = j.err
		return j.err
	}
	s.mu.Lock()
	s.membership = j.membership
	s.mu.Unlock()
	for _, h := range s.handles {
		h.hostedModule = s.modules.all[h.index]
	}
	s.next.joined(s.membership)
	s.given, s.readAt, s.reading = nil, nil, nil
	s.rewind, s.restarts = !s.restarts, false
	return nil
}

// endJoin ends the joining of the next run, and the session with it.
func (s *Session) endJoin(why error) {
	j := s.joining
	if j == nil {
		return
	}
	j.cancel()
	<-j.done
	s.joining, s.failed = nil, why
	if j.membership != nil {
		_ = j.membership.Abort(why) // the session's error says more
	}
}

// Run trains for a number of batches, from the current version on: it holds one batch after the other (Next) and lets a
// workload fill it. report is called after each completed batch, from the goroutine that calls Run; nil for nothing.
// All trainers of a job must run the same number of batches. A batch may be without samples, all batches of a Run may
// not (ErrWorkload).
//
// Where the job goes back to an earlier version, Run computes the batches since then again, and reports them again.
// What is read after Run is at least of the version that Run had reached: a restart in between is made up for by the
// same workload, without a report.
//
// Where an error ends a trainer after its last Run, the others continue: see Abort.
//
// Where ctx is canceled, and the others of a job that goes back under policy recover (schema.Job.Rewinds) would compute
// batches again if this trainer left at once, it trains on until a version is durable, for 20 s at most.
//
// Time spent in report, or between two calls of Run, is time that the others wait: beyond the server's deadline the job
// ends as it does for any slow trainer.
//
// After an error the session has failed, and Abort should be called with it. Errors: ErrOrder where a batch is under
// way, ErrWorkload, Refused, ErrServerLost, ErrJobFailed, ErrLeft, and the cause of ctx. In sync the weights that
// are read or written down are those of a whole number of batches in any case.
//
// In bounded a batch is computed on a version up to ahead batches older, and report follows as batches are complete;
// Run returns when all are. In async the trainers of a job need not run the same number of batches, report tells of
// this trainer's alone, and afterwards Param and Digest give the dense parameters as this trainer saw them last.
func (s *Session) Run(ctx context.Context, w Workload, batches uint64, report func(Progress)) error {
	s.form, s.inRun = formRun, true
	defer func() { s.inRun = false }()
	first := s.Version()
	s.workload, s.until = w, first+schema.Version(batches)
	each := report
	if report != nil {
		began := time.Now()
		each = func(p Progress) {
			p.Batches, p.ElapsedTime = batches, time.Since(began)
			p.Done = uint64(max(schema.Version(p.Batch)+1, first) - first) // a restart may go back behind the first batch
			report(p)
		}
	}
	err := s.acrossRestarts(ctx, func(m *membership) error { return s.computeMissing(ctx, m, each) })
	if err != nil {
		s.workload = nil
		s.endJoin(err)
	}
	return err
}

// computeMissing computes what is missing of the batches of the last Run.
func (s *Session) computeMissing(ctx context.Context, m *membership, report func(Progress)) error {
	return m.Run(ctx, s.workload, uint64(s.until-min(s.until, m.Version())), report)
}

// Next gives the batch to be computed, at once, and the lanes that this trainer hosts: results of the batches before
// may still be under way. Keys can be named at once; what needs values waits (Wait, Fetch). Next follows a Commit, or
// begins a run of batches, which Finish ends.
//
// Errors: ErrOrder, and that of a session which has ended.
func (s *Session) Next() (*Batch, error) {
	s.form = formOwn
	return s.membership.Next()
}

// NextAssigned is Next for a program that computes whatever lanes it is assigned. It gives the next batch of this
// trainer's lanes when all that was committed is complete. Where a trainer was lost in between, it gives lanes of the
// batch that was committed last, as Batch.Lanes of a Batch with the same number. Where the job goes back to an earlier
// version, it gives the batch that is computed on that.
//
//	for {
//		b, err := session.NextAssigned(ctx)
//		if err != nil || b.Number() >= batches {
//			break // all batches are complete: b.GiveBack, and Finish or Close
//		}
//		... // as after Next
//		if err = b.Commit(ctx); errors.Is(err, trainer.ErrRewound) {
//			continue // likewise after any other call of the batch, or of the session
//		}
//	}
//
// ErrAgain is to be followed by another call. Errors: ErrOrder where a batch is under way, and those of Run.
func (s *Session) NextAssigned(ctx context.Context) (b *Batch, err error) {
	s.form = formAssigned
	err = s.acrossRestarts(ctx, func(m *membership) error {
		b, err = m.nextAssigned(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	m := b.of
	b.rewound = func(err error) error { return s.rewound(m, err) }
	s.given, s.readAt, s.rewind, s.restarts = b, nil, false, false
	return b, nil
}

// rewound is an error of a batch of NextAssigned, or of a read at its slot: ErrRewound where that counts for nothing.
func (s *Session) rewound(of *membership, err error) error {
	if err == nil || s.form != formAssigned || errors.Is(err, ErrAgain) {
		return err
	}
	if of != s.membership && !slices.Contains(s.takeovers.hosted, of) { // of a run or a slot that the session has left
		return fmt.Errorf("%w: %w", ErrRewound, err)
	}
	if of != s.membership && of.Err() != nil && s.membership.Err() == nil {
		if errors.Is(of.Err(), errReplaced) {
			s.drop(of)
			s.given = nil
			return fmt.Errorf("%w: %w", ErrRewound, err)
		}
		s.fail(of.Err())
	}
	if !s.survives(s.membership.Err()) {
		return err
	}
	s.restarts, s.given = true, nil
	return fmt.Errorf("%w: %w", ErrRewound, err)
}

// read makes a call that reads. In the report of Run the error is that of the run, and Run continues after a restart.
func (s *Session) read(ctx context.Context, call func(m *membership) error) error {
	switch {
	case s.form == formAssigned:
		return s.readAssigned(ctx, call)
	case s.form == formOwn || s.inRun:
		return call(s.membership)
	}
	return s.acrossRestarts(ctx, func(m *membership) error {
		if s.workload != nil && m.Version() < s.until {
			s.inRun = true // the workload may read
			err := s.computeMissing(ctx, m, nil)
			if s.inRun = false; err != nil {
				return err
			}
		}
		return call(m)
	})
}

// readSettled makes a call that reads a version which is complete.
func (s *Session) readSettled(ctx context.Context, call func(r *reader) error) error {
	return s.read(ctx, func(m *membership) error {
		if err := m.settled(ctx); err != nil {
			return err
		}
		return call(m.reader)
	})
}

// readAssigned is read of a program that calls NextAssigned. It reads where the batch under way is computed, or else
// the one that is next.
func (s *Session) readAssigned(ctx context.Context, call func(m *membership) error) error {
	at := s.reading
	switch {
	case at != nil:
	case s.given != nil && s.given.stage != committed:
		at = s.given.of
	default:
		err := s.acrossRestarts(ctx, func(m *membership) error {
			next, err := m.waitAssigned(ctx)
			if err == nil {
				at = next
			}
			return err
		})
		if err != nil {
			return err
		}
		if s.rewind {
			s.rewind = false
			return fmt.Errorf("%w: version %d", ErrRewound, s.Version())
		}
	}
	s.readAt, s.reading = at, nil
	err := call(at)
	if errors.Is(err, ErrAgain) {
		s.reading = at
	}
	return s.rewound(at, err)
}

// Finish ends the batches that Next or NextAssigned began: it returns when all that were committed are complete. From
// then on the other trainers need nothing of this one that is not asked of it by a further Next. Close does the
// same where it is not done.
func (s *Session) Finish(ctx context.Context) error {
	return s.rewound(s.membership, s.membership.Finish(ctx))
}

// Param is a dense parameter at the current version, row-major; nil where the job has none of that name. The slice is
// the session's own: read only, and valid until the next call that trains or reads, since a restart frees it. While a
// call that ended by ErrAgain is to be repeated it may be nil.
func (s *Session) Param(name string) []float32 {
	switch {
	case s.joining != nil:
		return nil
	case s.readAt != nil:
		return s.readAt.Param(name)
	case s.given != nil && s.given.stage != committed:
		return s.given.of.Param(name)
	}
	return s.membership.Param(name)
}

// Wait returns when the batches that were committed are complete. Lookup, Table and Digest wait by themselves. With
// NextAssigned, further reports that the last batch is not complete, since lanes of it remain that were a lost trainer's:
// NextAssigned gives these, and reads give the version on which they are computed.
func (s *Session) Wait(ctx context.Context) (further bool, err error) {
	err = s.read(ctx, func(m *membership) error {
		further = m != s.membership
		return m.settled(ctx)
	})
	return further, err
}

// Lookup gives the rows of keys at the current version: for each of asks, [len(Keys), dim] row-major in the order of
// Keys, in new memory. It is for evaluation and prediction, between batches or within one, and takes any number of
// keys. It waits until what was committed is complete; Version says then which version the rows are of. What a batch
// changes is not seen before the batch is complete everywhere, so all that is read at one version is of one state of the
// job. In async and grouped, rows move at any time, and a version says nothing about them.
//
//	rows, err := session.Lookup(ctx, []trainer.Query{{Table: 0, Keys: []uint64{7, 7, 3}}})
func (s *Session) Lookup(ctx context.Context, asks []Query) (rows [][]float32, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		rows, err = r.Lookup(ctx, asks)
		return err
	})
	return rows, err
}

// LookupInto is Lookup without copies: rows go where they are asked for as they arrive. All of asks are one request to
// a shard where they are no more than 16 MiB, and name each table once. It leaves at once, behind what was committed
// last, and is answered when that is complete: gradients and rows are one round trip then. While a batch's keys are
// being named, rows are those that the batch is computed on: in bounded they may lack as many batches as the trainer
// may be ahead.
//
// ErrWorkload says that an ask is not possible: nothing was asked for, and the session continues. ErrAgain is to be
// followed by the same call: the memory stays in use until then. Any other error is that of the session, or the cause of ctx.
func (s *Session) LookupInto(ctx context.Context, asks []Query) error {
	return s.read(ctx, func(m *membership) error { return m.LookupInto(ctx, asks) })
}

// Table gives all rows of a table at the current version, piece by piece: partitions ascending, and keys ascending
// within a partition, which is the order of the digest. rows is [len(keys), dim]; both slices are the session's and
// valid until yield returns. An error of yield ends the scan and is returned. Without an error every row came, once:
// each piece is checked against what was asked for, and in the end all of them are counted. Where the run has ended in
// the middle, the scan begins again.
func (s *Session) Table(ctx context.Context, table schema.Table, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	return s.readSettled(ctx, func(r *reader) error { return r.Table(ctx, table, yield) })
}

// Digest is the SHA-256 over all weights at the current version, as schema.WeightsDigest defines it. It is the same for
// any number of trainers and shards, and reads every table from the shards.
func (s *Session) Digest(ctx context.Context) (digest [32]byte, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		digest, err = r.Digest(ctx)
		return err
	})
	return digest, err
}

// Weights reads the whole model at the current version. It fails where a table has more rows than can be held; Table
// reads such a one.
func (s *Session) Weights(ctx context.Context) (w *Model, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		w, err = r.Weights(ctx)
		return err
	})
	return w, err
}

// Save writes the model at the current version to a file, from which OpenModel reads it; see Model.Save. Rows go to the
// file as they come, of which this process holds no more than a piece of ChunkBytes. Any trainer may do it, and where
// several do at one path, the file is the same.
//
// extra, at most one, goes into the file, too. Save fails where a tensor of it has the name of another or of a weight, or
// its metadata have an entry that Save writes.
func (s *Session) Save(ctx context.Context, path string, extra ...Extra) error {
	return s.readSettled(ctx, func(r *reader) error { return r.save(ctx, path, extra...) })
}

// ScaleLR changes the learning rates of the job, of every parameter and table: from a batch on that it returns they are
// scale times what the manifest says, until they are changed again. The coordinator names the batch, records it and
// tells all members; none of them begins that batch before. from 0 asks for a batch soon; another asks for that one,
// which fails where a trainer has begun it (Refused). Scale is absolute: asked for again, by this trainer or
// another, it changes nothing. It may be called where Run may, by any number of trainers, in sync and bounded. Any
// scale is taken: a program knows its rates, which schedules bring close to 0.
//
//	from, err := session.ScaleLR(ctx, 0, 0.1) // a tenth of the manifest's rates, from batch from on
//
// Errors: Refused with the reason, and those of Run.
func (s *Session) ScaleLR(ctx context.Context, from schema.Batch, scale float32) (schema.Batch, error) {
	at := schema.Batch(0)
	call := func(m *membership) (err error) {
		at, err = m.lr.ScaleLR(ctx, from, scale)
		return err
	}
	if s.form == formAssigned { // also while a batch is under way
		return at, s.rewound(s.membership, call(s.membership))
	}
	return at, s.read(ctx, call)
}

// Module gives the module of a name, which the manifest has. It stays the session's after a restart.
//
//	net, err := session.Module("net")
//	pass, y, err := net.Forward(ctx, b, first, x)
//	lossSum, err := loss.Loss(y, classes, gradY)
//	_, err = pass.BackwardStep(ctx, gradY, samples)
func (s *Session) Module(name string) (*Module, error) {
	m, err := s.modules.module(name)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(s.handles, func(h *Module) bool { return h.index == m.index }); i >= 0 {
		return s.handles[i], nil
	}
	h := &Module{m}
	s.handles = append(s.handles, h)
	return h, nil
}

// Close ends the membership and frees what the session holds. What was committed is awaited first, as Finish does; of a
// session that has failed the others hear why it has. It waits for at most LeaveWithin for the coordinator, and in a
// job that reduces between trainers for those who need what this one has, for at most the job's deadline. A second call
// does nothing.
//
// The error says that a batch was under way, or failed, or that the coordinator was not seen to take the leave; the
// session is gone all the same.
func (s *Session) Close() error {
	defer s.free()
	s.endJoin(ErrLeft)
	if s.failed != nil || s.form == formAssigned || s.form == formOwn {
		return s.membership.Close()
	}
	return s.read(context.Background(), (*membership).Close)
}

// Abort is Close for a program that could not finish: err ends the job for the others, with its text as the reason. But
// where the last run of batches went well, and no other has begun, what failed came after the training: this trainer
// ends alone, and the others only if they continue and a batch needs it. A program that holds its batches (Next,
// NextAssigned) may have meant to continue, and ends the job in any case. Without an error it is Close, so that a function
// may end with
//
//	return errors.Join(err, session.Abort(err))
func (s *Session) Abort(err error) error {
	if err == nil {
		return s.Close()
	}
	defer s.free()
	s.endJoin(err)
	if s.form == formOwn || s.form == formAssigned {
		return s.membership.abortTraining(err)
	}
	return s.membership.Abort(err)
}

// free frees what the session has beside its membership.
func (s *Session) free() {
	if s.opened != nil {
		s.opened.Close()
		s.opened = nil
	}
}
