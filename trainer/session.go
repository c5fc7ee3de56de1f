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

// ErrRewound reports that the batch under way is void: the job resumed at another version, or another trainer computes
// its lanes. The session continues; NextAssigned returns the batch to compute.
var ErrRewound = errors.New("batch void: the job resumed at another version, or its lanes were reassigned")

// Session is a trainer's membership of a job, from Join to Close. It survives restarts: if the run ends because a ps or
// a trainer was lost, and the job continues in another run, the session joins that run at the version with which it
// begins. Run then computes the missing batches again. NextAssigned returns the batch to compute, which has a lower
// number. A program that calls Next computes only its own lanes, in order, and its session ends with the run.
//
// The methods must be called from one goroutine at a time, except Stats, Member, Job, RunID, Lanes, Shards, Version,
// LRScale and Distinct, which are safe for concurrent use.
//
// After a session has failed, every call returns the first error, and only Close and Abort are useful. There is one
// exception: if a job within this process (package local) ends its training because a value is not finite, its last
// complete version stays readable, unless the job has hosted modules. See Err.
type Session struct {
	*membership            // of the run under way; mu guards the pointer
	mu          sync.Mutex // a leaf

	form    form
	failed  error        // final error, which no restart follows; nil while the session is usable
	next    restart      // how the session joins the job's next run
	joining *rejoining   // join of the next run; nil while there is none
	opened  cuda.Backend // backend that Join opened; nil if the Config had one
	handles []*Module    // modules that Module has returned

	// Of the last successful Run. Its workload computes the batches that a later restart takes back.
	workload Workload
	until    schema.Version
	inRun    bool // Run is under way

	// Of a program that calls NextAssigned.
	given    *Batch      // last batch that NextAssigned returned
	readAt   *membership // membership of the last read since then
	reading  *membership // membership of a read that ErrAgain interrupted
	rewind   bool        // the run is another one, and the program does not know it yet
	restarts bool        // the program knows that the run has ended
}

// form is the way in which a program gets its batches. The session's behavior at a restart depends on it.
type form int

const (
	formNone     form = iota // no batch has begun
	formRun                  // Run, which can compute any batch again
	formAssigned             // NextAssigned, which selects the batch and lanes
	formNext                 // Next: the trainer's own lanes, in order
)

// newSession returns the session of a trainer that was admitted.
func newSession(m *membership, next restart) *Session {
	s := &Session{membership: m, next: next}
	s.next.joined(m)
	return s
}

// current returns the membership of the run under way. It is safe for concurrent use.
func (s *Session) current() *membership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.membership
}

// Member returns the trainer's id within the run.
func (s *Session) Member() schema.Member { return s.current().Member() }

// Job returns the manifest, with the chunk size that the server granted. The caller must not change it.
func (s *Session) Job() *schema.Job { return s.current().Job() }

// RunID returns the id of this run of the job.
func (s *Session) RunID() schema.RunID { return s.current().RunID() }

// Lanes returns the range of lanes that this trainer hosts.
func (s *Session) Lanes() (first lane.Lane, count int) { return s.current().Lanes() }

// Shards returns the number of shards of the job.
func (s *Session) Shards() int { return s.current().Shards() }

// Version returns the number of batches applied, which is the number of the next batch. A job that begins with the
// values of a model counts from those.
func (s *Session) Version() schema.Version { return s.current().Version() }

// LRScale returns the factor that the next batch applies to the manifest's learning rates.
func (s *Session) LRScale() float32 { return s.current().lr.LRScale() }

// Stats returns the counters and times since the session joined the run under way, and its current activity, as its
// telemetry reports have them.
func (s *Session) Stats() (t schema.TrainerReport) {
	s.current().heartbeats.fillReport(&t)
	return t
}

// Distinct writes the n distinct values of keys, ascending, to the beginning of unique, and the index of each key among
// them to ids: unique[ids[i]] is keys[i]. unique and ids must be as long as keys.
//
//	keys 9 4 9  ->  unique 4 9, ids 1 0 1
func (s *Session) Distinct(table schema.Table, keys, unique []uint64, ids []int64) (n int, err error) {
	return s.current().reader.Distinct(table, keys, unique, ids)
}

// Err returns nil while the session can train, and otherwise the reason why it cannot. If the reason is a value that
// was not finite, in a job within this process that has no hosted modules, nothing of that batch was applied: Param,
// Lookup, Table, Digest and Save still return the last complete version.
func (s *Session) Err() error { return s.unlessRestarted(s.membership.trainingErr()) }

// unlessRestarted returns the error of the run under way, or nil if the next call joins another run.
func (s *Session) unlessRestarted(err error) error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.joining != nil || s.survives(err):
		return nil
	}
	return err
}

// survives reports whether the session joins another run after err has ended the one under way.
func (s *Session) survives(err error) bool {
	return err != nil && s.failed == nil && s.form != formNext && s.next.follows(s.membership, err)
}

// acrossRestarts calls call with the membership of the run under way. If that run has ended and the job continues, it
// joins the next run and calls again.
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

// awaitJoin waits until the next run is joined, or ctx ends; after that it may be called again.
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

// endJoin cancels the join of the next run, and ends the session with why.
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

// Run trains for a number of batches from the current version on: for each it calls the workload's Keys and Lane. It
// calls report after each completed batch, from the calling goroutine; nil: no reports. All trainers of a job must run
// the same number of batches, except in async. Single batches may be empty, but a Run needs a sample in at least one
// (ErrWorkload).
//
// If the job rewinds to an earlier version, Run computes the batches since then again, and reports them again. A read
// after Run returns at least the version that Run reached: after a restart, the session first calls the same workload
// for the missing batches, without reports. If an error ends a trainer after its last Run, the others continue: see
// Abort.
//
// If ctx is canceled, and leaving at once would make the other trainers compute batches again (schema.Job.Rewinds,
// policy recover), Run continues until a version is durable, for at most 20 s.
//
// Other trainers wait while report runs and between two calls of Run. Beyond the server's deadline the trainer counts
// as lost.
//
// In bounded, a batch is computed on a version up to Ahead batches older, and report is called as batches become
// complete; Run returns when all are. In async, reports concern this trainer's batches only, and afterwards Param and
// Digest return the dense parameters that this trainer received last. In sync, the weights that are read or stored are
// always those of a whole number of batches.
//
// After an error the session has failed, and the program calls Abort with it. Errors: ErrOrder if a batch is under way,
// ErrWorkload, Refused, ErrServerLost, ErrJobFailed, ErrLeft, and the cause of ctx.
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

// computeMissing computes the missing batches of the last Run.
func (s *Session) computeMissing(ctx context.Context, m *membership, report func(Progress)) error {
	return m.Run(ctx, s.workload, uint64(s.until-min(s.until, m.Version())), report)
}

// Next returns the next batch to compute, with the lanes that this trainer hosts. It does not wait for the results of
// earlier batches: keys can be named at once, while Wait and Fetch wait for values. Next follows a Commit, or begins a
// series of batches, which Finish ends.
//
// Errors: ErrOrder, and the error that ended the session.
func (s *Session) Next() (*Batch, error) {
	s.form = formNext
	return s.membership.Next()
}

// NextAssigned is Next for a program that computes any lanes that it is assigned. It waits until all committed batches
// are complete, then returns the next batch of this trainer's lanes. If a trainer was lost, it returns lanes of the
// batch that was committed last, as a Batch with the same number. If the job rewinds to an earlier version, it returns
// the batch that is computed on that version.
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
// After ErrAgain, call it again. Errors: ErrOrder if a batch is under way, and those of Run.
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

// rewound wraps an error of a batch of NextAssigned, or of a read, with ErrRewound if the batch or read is void.
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

// read calls call, which reads. Within Run's report, it returns the error of the run, since Run itself continues after
// a restart.
func (s *Session) read(ctx context.Context, call func(m *membership) error) error {
	switch {
	case s.form == formAssigned:
		return s.readAssigned(ctx, call)
	case s.form == formNext || s.inRun:
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

// readSettled calls call at a complete version.
func (s *Session) readSettled(ctx context.Context, call func(r *reader) error) error {
	return s.read(ctx, func(m *membership) error {
		if err := m.settled(ctx); err != nil {
			return err
		}
		return call(m.reader)
	})
}

// readAssigned is read for a program that calls NextAssigned. It reads the version on which the batch under way is
// computed, or else the next batch.
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

// Finish ends the series of batches that Next or NextAssigned began. It returns when all committed batches are
// complete. The other trainers then need nothing more of this one until a further Next. Close calls Finish if the
// program has not.
func (s *Session) Finish(ctx context.Context) error {
	return s.rewound(s.membership, s.membership.Finish(ctx))
}

// Param returns a dense parameter at the current version, row-major; nil if the job has no parameter of that name. The
// session owns the slice: it is read-only, and valid until the next call that trains or reads, since a restart frees
// it. It may be nil while a call that returned ErrAgain is to be repeated.
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

// Wait returns when the committed batches are complete. Lookup, Table and Digest wait by themselves. further applies to
// NextAssigned: it is true if this trainer must still compute a lost trainer's lanes of the last batch. NextAssigned
// then returns those lanes, and reads return the version on which they are computed.
func (s *Session) Wait(ctx context.Context) (further bool, err error) {
	err = s.read(ctx, func(m *membership) error {
		further = m != s.membership
		return m.settled(ctx)
	})
	return further, err
}

// Lookup returns the rows of keys at the current version, in new memory: for each query [len(Keys), dim], row-major, in
// the order of Keys. It serves evaluation and prediction, between batches or within one, and accepts any number of
// keys. It waits until the committed batches are complete; Version then returns the version of the rows. No read sees
// part of a batch, so all reads at one version see the same weights. In async and grouped, rows change at any time, and
// Version does not describe them.
//
//	rows, err := session.Lookup(ctx, []trainer.Query{{Table: 0, Keys: []uint64{7, 7, 3}}})
func (s *Session) Lookup(ctx context.Context, queries []Query) (rows [][]float32, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		rows, err = r.Lookup(ctx, queries)
		return err
	})
	return rows, err
}

// LookupInto is Lookup without copies: rows arrive in the memory of the queries. Queries of at most 16 MiB in total
// that name each table once are one request to each shard; larger ones take several. The request leaves at once, right
// behind what was committed last, and is answered when that is complete, so gradients and rows share one round trip.
// While a batch's keys are being named, LookupInto returns the rows on which the batch is computed; in bounded, these
// may be older by as many batches as the trainer may be ahead.
//
// ErrWorkload reports an invalid query: nothing was requested, and the session continues. After ErrAgain, repeat the
// same call; the memory stays in use until then. Any other error is that of the session, or the cause of ctx.
func (s *Session) LookupInto(ctx context.Context, queries []Query) error {
	return s.read(ctx, func(m *membership) error { return m.LookupInto(ctx, queries) })
}

// Table calls yield with all rows of a table at the current version, piece by piece: partitions ascending, and keys
// ascending within a partition, which is the order of the digest. rows is [len(keys), dim]. The session owns both
// slices, which are valid until yield returns. An error of yield ends the scan and is returned. Without an error every
// row was passed exactly once. If the run ends during the scan and the job continues, the scan begins again.
func (s *Session) Table(ctx context.Context, table schema.Table, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	return s.readSettled(ctx, func(r *reader) error { return r.Table(ctx, table, yield) })
}

// Digest returns the SHA-256 of all weights at the current version, as schema.WeightsDigest defines it. It is the same
// for any number of trainers and shards. It reads every table from the shards.
func (s *Session) Digest(ctx context.Context) (digest [32]byte, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		digest, err = r.Digest(ctx)
		return err
	})
	return digest, err
}

// Weights reads the whole model at the current version into memory. It fails if a table has more than 1<<32-1 rows;
// Table reads those.
func (s *Session) Weights(ctx context.Context) (w *Model, err error) {
	err = s.readSettled(ctx, func(r *reader) error {
		w, err = r.Weights(ctx)
		return err
	})
	return w, err
}

// Save writes the model at the current version to a file, which OpenModel reads; see Model.Save. It streams rows to the
// file, in pieces of ChunkBytes. Any trainer may call it; several that save to one path write the same file.
//
// extra, at most one, is stored too. Save fails if one of its tensors has the name of another tensor or a weight, or if
// its metadata has a key that Save writes.
func (s *Session) Save(ctx context.Context, path string, extra ...Extra) error {
	return s.readSettled(ctx, func(r *reader) error { return r.save(ctx, path, extra...) })
}

// ScaleLR multiplies the manifest's learning rates, of every parameter and table, by scale, from the returned batch on
// and until the next change. The coordinator chooses and records the batch, and announces it to all members; none of
// them begins that batch before. from 0 requests an early batch. Another value requests that batch, which is refused if
// a trainer has begun it. scale replaces the factor before, so repeating the request, from any trainer, changes
// nothing. It may be called wherever Run may, by any number of trainers, in sync and bounded. Any scale is accepted,
// since a schedule may bring it close to 0.
//
//	from, err := session.ScaleLR(ctx, 0, 0.1) // a tenth of the manifest's rates, from batch from on
//
// Errors: Refused, which does not end the session, and those of Run.
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

// Module returns the hosted module of a name. It stays valid after a restart. Errors: a name that the manifest does not
// have.
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

// Close ends the membership and frees the session's resources. It first waits for the committed batches, as Finish
// does; if the session has failed, the other trainers receive the reason. It waits at most LeaveWithin for the
// coordinator. In a job that reduces between trainers, it also waits, at most for the job's deadline, for trainers that
// still need this one's data. A second call does nothing.
//
// Close returns an error if a batch was under way, if the session had failed, or if the coordinator did not confirm the
// leave. The session has ended in any case.
func (s *Session) Close() error {
	defer s.free()
	s.endJoin(ErrLeft)
	if s.failed != nil || s.form == formAssigned || s.form == formNext {
		return s.membership.Close()
	}
	return s.read(context.Background(), (*membership).Close)
}

// Abort is Close for a program that failed: it ends the job for all trainers, with the text of err as the reason. If
// Run finished and no further batch has begun, only this trainer leaves; the others fail only if they train on and need
// it. After Next or NextAssigned, Abort always ends the job, since the program may have meant to continue. If err is
// nil, Abort is Close, so a function can end with
//
//	return errors.Join(err, session.Abort(err))
func (s *Session) Abort(err error) error {
	if err == nil {
		return s.Close()
	}
	defer s.free()
	s.endJoin(err)
	if s.form == formNext || s.form == formAssigned {
		return s.membership.abortTraining(err)
	}
	return s.membership.Abort(err)
}

// free closes the backend that the session opened.
func (s *Session) free() {
	if s.opened != nil {
		s.opened.Close()
		s.opened = nil
	}
}
