package trainer

import (
	"context"
	"log/slog"
	"time"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// drainEvery is how often a trainer that leaves says again that it has all results: nothing acknowledges that.
const drainEvery = 100 * time.Millisecond

// sayComplete tells the other trainers, in a job that reduces between trainers, that this one has all results of the
// batches before b: by a pull of batch b, which nobody has begun and to which there is no answer. They may leave then.
func (s *membership) sayComplete(b schema.Batch) error {
	for owner, l := range s.links {
		if !l.reduce || l.outbox == nil || len(s.results.rounds[owner]) == 0 {
			continue // this trainer itself, or one who has added up nothing
		}
		if err := s.sendPull(exchange.Pull{Owner: owner, Batch: b, Round: s.results.rounds[owner][0]}); err != nil {
			return err
		}
	}
	return nil
}

// awaitOthers keeps this trainer's results within reach of the others until all of them have said that they need them
// no more: the data server goes with the session. A trainer whose connection is gone, because it has left, is not
// waited for, and none for longer than the job's deadline. Where this trainer is in a hurry, that is LeaveWithin.
func (s *membership) awaitOthers(ctx context.Context, hurry bool) error {
	if s.reducer == nil || s.Err() != nil {
		return nil
	}
	within := time.Duration(s.joined.DeadlineMS) * time.Millisecond
	if hurry {
		within = min(within, s.config.LeaveWithin)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	again := time.NewTicker(drainEvery)
	defer again.Stop()
	for !s.reducer.done(s.newest(), s.gone()) {
		if err := s.sayComplete(s.newest()); err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil // the coordinator will say who was missing
		case <-s.ctx.Done():
			return nil
		}
	}
	return nil
}

// mayLeave reports whether the other trainers may leave, and their data servers with them: this one has all results of
// what it was to run.
func (s *membership) mayLeave() bool {
	done := s.batch.Load()
	return done > 0 && done >= s.planned.Load()
}

// drainLog is a log in which what is a warning while a trainer is needed is none any more once it may leave.
type drainLog struct {
	slog.Handler
	mayLeave func() bool
}

func (f drainLog) level(of slog.Level) slog.Level {
	if of == slog.LevelWarn && f.mayLeave() {
		return slog.LevelDebug
	}
	return of
}

// Enabled implements slog.Handler.
func (f drainLog) Enabled(ctx context.Context, level slog.Level) bool {
	return f.Handler.Enabled(ctx, f.level(level))
}

// Handle implements slog.Handler.
func (f drainLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level = f.level(r.Level); !f.Handler.Enabled(ctx, r.Level) { // it may leave since Enabled was asked
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (f drainLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return drainLog{f.Handler.WithAttrs(attrs), f.mayLeave}
}

// WithGroup implements slog.Handler.
func (f drainLog) WithGroup(name string) slog.Handler {
	return drainLog{f.Handler.WithGroup(name), f.mayLeave}
}

// logOf is where is told what happens to the way to a server.
func (s *membership) logOf(d *dataServer) *slog.Logger {
	if d.peer == "" {
		return s.config.Log
	}
	return slog.New(drainLog{s.config.Log.Handler(), s.mayLeave})
}

// gone are the trainers whose data servers are out of reach.
func (s *membership) gone() map[schema.Member]bool {
	all := map[schema.Member]bool{}
	for _, d := range s.servers {
		if _, lost := s.watch.lasts(&d.lost, time.Now()); lost && d.peer != "" {
			all[d.peer] = true
		}
	}
	return all
}
