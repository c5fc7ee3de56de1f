package trainer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/client"
	"gradbus/internal/loglimit"
	"gradbus/internal/process"
	"gradbus/schema"
)

// Join makes this process a trainer of a job. The first trainer registers the job with its manifest; the manifests of
// the others must be equal. Fields left out have the defaults of schema.Job.WithDefaults. Join returns when all
// trainers have joined and the job has started, at version 0 or, with Config.Resume, at the newest durable version. If
// the job cannot be registered yet, because a ps has just died or memory is not free yet, Join retries for 30 s, with
// Resume without limit.
//
// Errors: ErrConfig, an invalid manifest (schema.JobErrors), fabric.ErrNoServer and fabric.ErrRefused from dialing,
// Refused (if manifests differ, its text names the field and both values), ErrServerLost, ErrJobFailed, and the cause
// of ctx. After an error, nothing remains to be closed.
func Join(ctx context.Context, c Config, job *schema.Job) (*Session, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if job == nil {
		return nil, fmt.Errorf("%w: the job is nil: want its manifest", ErrConfig)
	}
	job = job.WithDefaults()
	if c.Dense != nil {
		m, err := denseModel(job, c.Dense)
		if err != nil {
			return nil, err
		}
		if c.From != nil {
			return nil, fmt.Errorf("%w: job %q begins with the values of From and of Dense: want one of them",
				ErrConfig, job.Name)
		}
		c.From = m
	}
	if err := c.From.begin(job); err != nil {
		return nil, err
	}
	if err := job.Validate(); err != nil {
		return nil, fmt.Errorf("join job %q: %w", job.Name, err)
	}
	if err := schema.CheckChosen(job.Name); err != nil && !c.Derived {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c.Dense = nil
	if c.Backend != nil {
		return joinFirst(ctx, c, job)
	}
	log := c.Log
	if log == nil {
		log = loglimit.Logger(slog.New(warnings{slog.Default().Handler()}))
	}
	backend, err := cuda.Open(cuda.Options{Log: log})
	if err != nil {
		return nil, fmt.Errorf("join job %s: %w", job.Name, err)
	}
	c.Backend = backend
	s, err := joinFirst(ctx, c, job)
	if err != nil {
		backend.Close()
		return nil, err
	}
	s.opened = backend
	return s, nil
}

// joinFirst joins with a Backend.
func joinFirst(ctx context.Context, c Config, job *schema.Job) (*Session, error) {
	c = c.withDefaults()
	m, err := joinWithRetry(ctx, c, job)
	if err != nil {
		return nil, err
	}
	return newSession(m, restart{config: c, job: job}), nil
}

// warnings is a handler that drops records below level warning.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

// join joins with a complete Config and manifest. If the join is postponed, it retries after retry, then at growing
// intervals. If the server of a run that has not begun is lost, it joins again, since another ps may have the job by
// then.
func join(ctx context.Context, c Config, job *schema.Job, retry time.Duration) (*membership, error) {
	var before error
	for {
		s, err := joinOnce(ctx, c, job, retry)
		if err == nil || ctx.Err() != nil {
			return s, err
		}
		if !errors.As(err, new(endedBefore)) {
			if before != nil && !errors.Is(err, &Refused{}) {
				err = fmt.Errorf("%w; it asked anew: %w", before, err)
			}
			return nil, err
		}
		before = err
		c.Log.Warn("join restarted", "job", job.Name, "err", err)
		select {
		case <-time.After(rejoinEvery):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// joinOnce is one attempt of join.
func joinOnce(ctx context.Context, c Config, job *schema.Job, retry time.Duration) (*membership, error) {
	j, err := newJoiner(ctx, c, job)
	if err != nil {
		return nil, fmt.Errorf("join job %s: %w", job.Name, err)
	}
	defer j.Close()
	j.retry = retry
	s, err := j.join(ctx)
	if err != nil {
		j.peer.close()
		return nil, fmt.Errorf("join job %s at %s: %w", job.Name, c.serverName(), err)
	}
	return s, nil
}

// joiner requests a slot in a job. A trainer has no member id before it is admitted.
type joiner struct {
	*client.Client
	config  Config
	job     *schema.Job
	peer    *peerServer // data server in a job that reduces between trainers; else nil
	request *schema.Join
	frame   []byte        // encoded request
	retry   time.Duration // interval if the join is postponed
	answers chan schema.Control
}

// newJoiner dials the server, and starts this trainer's data server if the job needs one.
func newJoiner(ctx context.Context, c Config, job *schema.Job) (*joiner, error) {
	j := &joiner{config: c, job: job, answers: make(chan schema.Control, 1)}
	var err error
	if j.Client, err = client.Dial(ctx, c.dialConfig(), job.Name, j.receive); err != nil {
		return nil, err
	}
	j.peer, err = startPeerServer(ctx, c, job, j.Control().LocalHost())
	j.request = &schema.Join{Job: job, Wanted: c.Member, Host: process.HostAndID(), Data: c.Route,
		Resume: c.Resume, Process: process.Self(), Run: c.rejoin, Number: c.number,
		Promised: c.promised}
	if j.peer != nil {
		j.request.URL = j.peer.url
	}
	if err == nil {
		err = j.encode(0)
	}
	if err != nil {
		j.peer.close()
		j.Close()
		return nil, err
	}
	return j, nil
}

// newJoinKey draws a key or number by which a ps recognizes a trainer; never 0. It does not use math/rand, since forked
// processes may draw equal numbers from its seed.
func newJoinKey() uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return binary.LittleEndian.Uint64(random[:]) | 1
}

// encode writes the request as of now. run is the run to which this trainer was admitted, 0 if none. A ps that does not
// know the run refuses the request and admits no trainer.
func (j *joiner) encode(run schema.RunID) (err error) {
	j.request.Key = *j.config.key
	head := schema.Head{Job: run, Lanes: uint16(j.job.Lanes)}
	j.frame, err = schema.EncodeControl(head, schema.Control{Join: j.request})
	return err
}

// receive stores the latest answer.
func (j *joiner) receive(m fabric.Message) {
	c, ok := client.Answer(m.Data)
	if !ok || c.Joined == nil && c.Refused == nil {
		return
	}
	for {
		select {
		case j.answers <- c:
			return
		default:
		}
		select {
		case <-j.answers:
		default:
		}
	}
}

func (j *joiner) ask() error { return j.Publish(j.frame) }

// join asks until it is admitted, then builds the session and waits for the start.
func (j *joiner) join(ctx context.Context) (*membership, error) {
	answer, err := j.finalAnswer(ctx)
	if err != nil {
		return nil, err
	}
	if answer.Refused != nil {
		return nil, refusedBy(answer.Refused)
	}
	return j.begin(ctx, answer.Joined)
}

// begin builds the session of a trainer that was admitted, and waits for the start. If that fails, it gives the slot
// back.
func (j *joiner) begin(ctx context.Context, joined *schema.Joined) (*membership, error) {
	*j.config.key = newJoinKey() // the slot is taken: another join needs another key
	err := j.encode(joined.RunID)
	if err != nil {
		return nil, err
	}
	s, err := j.session(ctx, joined)
	if err != nil {
		return nil, err
	}
	if err = s.connect(ctx, j.peer); err == nil {
		err = j.waitForStart(ctx, s)
	}
	if err == nil && s.peer != nil {
		err = s.connectPeers(ctx)
	}
	if err == nil {
		err = s.enter(ctx)
	}
	s.activity.begin(elsewhere)
	if err != nil {
		if s.control == nil {
			return nil, err
		}
		if errors.As(err, new(endedBefore)) {
			s.fail(err) // no coordinator is left
		}
		s.handsOver = true // the run has not begun: another trainer may take the slot
		if leaving := s.leave(err.Error()); leaving != nil {
			j.config.Log.Warn("leave after failed join failed", "job", j.job.Name, "member", s.Member(), "err", leaving)
		}
		return nil, err
	}
	return s, nil
}

// session builds the session of a trainer that was admitted. If that fails, or ctx ends, it gives the slot back by a
// message that needs no answer.
func (j *joiner) session(ctx context.Context, joined *schema.Joined) (*membership, error) {
	s, err := newMembership(ctx, j.config, j.job, *joined)
	if err != nil {
		j.returnSlot(joined, err)
		return nil, err
	}
	return s, nil
}

// returnSlot sends that this trainer does not take the slot to which it was admitted.
func (j *joiner) returnSlot(joined *schema.Joined, why error) {
	head := schema.Head{Job: joined.RunID, Generation: joined.Generation, Lanes: uint16(j.job.Lanes)}
	l := &schema.Leave{Reason: schema.Clip(why.Error()), HandOver: true}
	if isInterrupt(why) {
		l.End = schema.EndStopped
	}
	leave, broken := schema.EncodeControl(head, schema.Control{Leave: l})
	if broken == nil {
		broken = j.Publish(leave)
	}
	if broken != nil {
		j.config.Log.Warn("leave after failed join failed", "job", j.job.Name, "member", joined.Member, "err", broken)
	}
}

// busyWithin bounds the time for which a postponed join is retried. It exceeds the time for which a killed ps counts as
// possibly alive.
const busyWithin = 30 * time.Second

// patience returns the time for which a postponed join is retried. A trainer that has promised to follow a ps
// alternates between that ps and its own.
func (j *joiner) patience() time.Duration {
	switch {
	case j.config.promised > 0 && j.config.replica != "":
		return 0
	case j.config.promised > 0:
		return j.config.RetryAfter
	case j.config.Resume: // reading a checkpoint has no time limit
		return math.MaxInt64
	}
	return busyWithin
}

// finalAnswer asks until a coordinator admits this trainer or refuses it for good.
func (j *joiner) finalAnswer(ctx context.Context) (schema.Control, error) {
	var postponed string
	for began := time.Now(); ; {
		answer, err := j.answer(ctx)
		if err != nil && postponed != "" {
			return answer, fmt.Errorf("%w; before, it was put off: %s", err, postponed)
		}
		if err != nil || answer.Refused == nil || answer.Refused.Reason != schema.RefusedBusy ||
			time.Since(began) > j.patience() {
			return answer, err
		}
		if answer.Refused.Text != postponed {
			postponed = answer.Refused.Text
			j.config.Log.Info("join postponed", "job", j.job.Name, "text", postponed)
		}
		select {
		case <-time.After(j.retry):
			j.retry = min(2*j.retry, j.config.RetryAfter)
		case <-ctx.Done():
			return answer, fmt.Errorf("%w; it was put off: %s", context.Cause(ctx), postponed)
		}
	}
}

// answer asks until there is an answer.
func (j *joiner) answer(ctx context.Context) (schema.Control, error) {
	within, cancel := context.WithTimeoutCause(ctx, j.config.AnswerWithin,
		fmt.Errorf("%w within %v: is that a gradbus ps?", ErrNoAnswer, j.config.AnswerWithin))
	defer cancel()
	answer, err := fabric.Ask(within, j.config.RetryAfter, j.ask, j.answers)
	if err != nil {
		err = j.explain(ctx, within, err)
	}
	return answer, err
}

// explain returns the reason for a missing answer if it can be found out, otherwise err.
func (j *joiner) explain(ctx, within context.Context, err error) error {
	if ctx.Err() != nil || within.Err() == nil || errors.Is(err, fabric.ErrLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, j.config.AnswerWithin)
	defer cancel()
	var there []fabric.Entry
	bucket, lookupErr := j.Control().LookBucket(ctx, schema.ServersBucket)
	if lookupErr == nil {
		there, lookupErr = bucket.All(ctx)
	}
	switch at := j.config.serverName(); {
	case errors.Is(lookupErr, fabric.ErrNoJetStream):
		return fmt.Errorf("%w; %w", err, lookupErr)
	case errors.Is(lookupErr, fabric.ErrNoBucket), lookupErr == nil && len(there) == 0:
		return fmt.Errorf("%w %s; ./bin/ps --nats %s starts one; %w", errNoServers, at, at, err)
	case lookupErr == nil:
		return fmt.Errorf("%w; ps that are announced there: %d, the first is %s: want one of this trainer's version, which "+
			"has wire %d; "+
			"ps --version says its own", err, len(there), there[0].Key, schema.WireVersion)
	}
	return err
}

// endedBefore reports that the run to which a trainer was admitted is over and had not begun: its ps was restarted or
// lost, or this trainer was silent for too long.
type endedBefore struct{ error }

func (e endedBefore) Unwrap() error { return e.error }

// waitForStart repeats the request, whose answer has the number of missing trainers, until an answer or the
// coordinator's broadcast reports the start.
func (j *joiner) waitForStart(ctx context.Context, s *membership) error {
	ctx, stop := s.running(ctx)
	defer stop()
	missing := -1
	answer := func(joined *schema.Joined) (started bool) {
		if joined.Missing != missing && !joined.Started {
			missing = joined.Missing
			j.config.OnWaiting(missing)
		}
		s.joined.Peers = joined.Peers
		return joined.Started
	}
	if answer(&s.joined) {
		return nil
	}
	over := endedBefore{fmt.Errorf("%w: its run of job %s is over, and had not begun", ErrServerLost, j.job.Name)}
	s.retry.Reset(0) // the start may have been sent before this session subscribed
	defer s.retry.Stop()
	for {
		select {
		case c := <-s.controls:
			switch {
			case c.Start != nil && s.peer == nil:
				return nil
			case c.Ended != nil && c.Ended.End == schema.EndCompleted: // the job has ended without this trainer, which was silent for too long
				return over
			}
			s.retry.Reset(0) // the answer to a repetition has the addresses of the other trainers
		case c := <-j.answers:
			switch {
			case c.Refused != nil && c.Refused.Reason == schema.RefusedBusy: // sent before this trainer was admitted
			case c.Refused != nil && c.Refused.Reason == schema.RefusedOver:
				return over
			case c.Refused != nil:
				return refusedBy(c.Refused)
			case c.Joined.RunID != s.joined.RunID || c.Joined.Member != s.joined.Member: // the slot is another trainer's by now
				j.returnSlot(c.Joined, over)
				return over
			case answer(c.Joined):
				return nil
			}
		case <-s.retry.C:
			if err := j.ask(); err != nil && !errors.Is(err, fabric.ErrLost) {
				return err
			}
			s.retry.Reset(j.config.RetryAfter)
		case <-ctx.Done():
			err := context.Cause(ctx)
			returns := errors.Is(err, errRunRestarts) && (j.config.rejoin != 0 || !j.job.Rewinds())
			if errors.Is(err, ErrServerLost) && !returns { // a new trainer joins again if the run restarts with fewer trainers
				err = endedBefore{err}
			}
			return err
		}
	}
}
