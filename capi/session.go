//go:build cgo

package main

// #cgo CFLAGS: -O3
// #include "shim.h"
import "C"

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"gradbus/cuda"
	"gradbus/internal/certificate"
	"gradbus/internal/regular"
	"gradbus/schema"
	"gradbus/trainer"
)

// renamed has the new names of settings by the old ones, which are refused until 1.0. It is never written to.
var renamed = map[string]string{"back_within": "reconnect_timeout", "told": "elastic"}

// session is a trainer's, for threads that know nothing of each other.
type session struct {
	*trainer.Session // once joined
	ctx              context.Context
	cancel           context.CancelCauseFunc
	turn             chan struct{} // holds a value while a call uses the trainer's session
	busy             atomic.Bool   // a call that trains is under way
	joined           atomic.Bool
	batch            *trainer.Batch // under way, or nil
	of               *shards        // that it joined at, or nil
	backend          cuda.Backend   // of its own, or nil
	log              *os.File       // or nil
	elastic          bool           // it computes whatever lanes it is given, in a job that recovers
}

// fileBytesMax bounds the files of a token and of certificates.
const fileBytesMax = 4 << 20

// config is the configuration of gradbus_join.
type config struct {
	arithmetic
	Local     uint64 `json:"local"`
	Server    string `json:"server"`
	Route     string `json:"route"`
	TokenFile string `json:"token_file"`
	Creds     string `json:"creds"`
	TLSCA     string `json:"tls_ca"`
	TLSCert   string `json:"tls_cert"`
	TLSKey    string `json:"tls_key"`
	ID        string `json:"id"`
	Log       string `json:"log"`
	// ReconnectTimeout is the time, in seconds, for a lost server to return; 0: the default of trainer.Config.
	ReconnectTimeout float64 `json:"reconnect_timeout"`
	From             string  `json:"from"`           // a saved model
	Resume           bool    `json:"resume"`         // begin with the newest durable version
	CheckpointDir    string  `json:"checkpoint_dir"` // of Local, to resume from
	// Elastic says whether the program computes whatever lanes gradbus_begin gives.
	Elastic elasticity `json:"elastic"`
	// Derived says that the name of the job is one that this library's callers derive, and no program has chosen.
	Derived bool `json:"derived"`
}

// elasticity says whether a program computes any lanes that gradbus_begin assigns.
type elasticity int

const (
	inelastic    elasticity = iota
	elastic                 // for the trainer that registers the job
	asRegistered            // where the job is registered so
)

// UnmarshalJSON reads true, false or "registered".
func (e *elasticity) UnmarshalJSON(text []byte) error {
	words := map[string]elasticity{"false": inelastic, "true": elastic, `"registered"`: asRegistered}
	is, ok := words[string(text)]
	if !ok {
		return fmt.Errorf("elastic %s: want true, false or \"registered\"", text)
	}
	*e = is
	return nil
}

func (c *config) trainer() (to trainer.Config, s *session, err error) {
	s = &session{turn: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if c.Local != 0 {
		if s.of, err = get[*shards](c.Local); err != nil {
			return to, s, err
		}
	}
	if err = s.of.checkpointsIn(c.CheckpointDir); err != nil {
		return to, s, err
	}
	if s.of != nil {
		to = s.of.Config()
		to.Member = schema.Member(c.ID)
		return to, s, c.begin(&to)
	}
	to = trainer.Config{Server: c.Server, Route: c.Route, Member: schema.Member(c.ID), CredsFile: c.Creds}
	if c.TokenFile != "" {
		token, err := regular.Read(c.TokenFile, fileBytesMax)
		if err != nil {
			return to, s, fmt.Errorf("%w: token_file: %w", errFile, err)
		}
		to.Token = strings.TrimSpace(string(token))
	}
	if to.Log, s.log, err = logTo(c.Log); err != nil {
		return to, s, err
	}
	for _, secret := range []string{c.TokenFile, c.Creds} {
		regular.WarnExposed(secret, to.Log)
	}
	if to.TLS, err = c.dial(to.Log); err == nil {
		err = c.begin(&to)
	}
	if err == nil {
		s.backend, err = c.open(to.Log)
	}
	to.Backend = s.backend
	return to, s, err
}

// begin says what the job begins with, what becomes of its versions, and how long a lost server is waited for.
func (c *config) begin(to *trainer.Config) (err error) {
	if c.ReconnectTimeout < 0 || c.ReconnectTimeout > math.MaxInt32 {
		return fmt.Errorf("%w: reconnect_timeout: %g: want seconds, or 0 for the default", errConfig, c.ReconnectTimeout)
	}
	to.ReconnectTimeout = time.Duration(c.ReconnectTimeout * float64(time.Second))
	to.Derived = c.Derived
	to.Resume = c.Resume
	if c.From != "" {
		to.From, err = trainer.OpenModel(c.From)
	}
	return err
}

// dial says how connections are encrypted; nil where nothing says so.
func (c *config) dial(log *slog.Logger) (*tls.Config, error) {
	if c.TLSCA == "" && c.TLSCert == "" && c.TLSKey == "" {
		return nil, nil
	}
	dial := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCA != "" {
		data, err := regular.Read(c.TLSCA, fileBytesMax)
		if err != nil {
			return nil, fmt.Errorf("%w: tls_ca: %w", errFile, err)
		}
		if dial.RootCAs = x509.NewCertPool(); !dial.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%w: tls_ca: %s holds no certificate: want PEM, that begins with -----BEGIN CERTIFICATE-----",
				errConfig, c.TLSCA)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return nil, fmt.Errorf("%w: tls_cert and tls_key: want both or neither", errConfig)
	}
	if c.TLSCert != "" {
		pair, err := certificate.Load("tls", c.TLSCert, c.TLSKey, log)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errFile, err)
		}
		pair.Show(dial)
	}
	return dial, nil
}

// manifest reads a job and says what has an obvious value, for a program that is elastic or not.
func manifest(text *C.char, elastic bool) (*schema.Job, error) {
	if text == nil {
		return nil, fmt.Errorf("%w: job is NULL", errArgument)
	}
	job, err := schema.DecodeJob([]byte(C.GoString(text)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	for i := range job.Parameters {
		p := &job.Parameters[i]
		p.Init.Kind = cmp.Or(p.Init.Kind, schema.InitZeros)
	}
	if elastic {
		return job.WithDefaults(), nil
	}
	// A program that computes its own lanes alone cannot compute those of one that was lost.
	if job.Policy = cmp.Or(job.Policy, schema.PolicyFail); job.Policy != schema.PolicyFail {
		return nil, fmt.Errorf("%w: policy %q: want %q, or \"elastic\": true of a program that computes whatever lanes "+
			"gradbus_begin gives", errConfig, job.Policy, schema.PolicyFail)
	}
	return job.WithDefaults(), nil
}

//export go_join
func go_join(t *C.gradbus_thread, text, jobText *C.char, start **C.float, out *C.gradbus_handle) C.int32_t {
	var c config
	var to trainer.Config
	var s *session
	var job, other *schema.Job // other has the other policy, for a job that is registered with that
	err := guarded(func() (err error) {
		if out == nil {
			return fmt.Errorf("%w: session is NULL", errArgument)
		}
		if err = options(text, &c); err != nil {
			return err
		}
		if c.Local != 0 {
			c.Elastic = inelastic
		}
		if job, err = manifest(jobText, c.Elastic == elastic); err != nil {
			return err
		}
		switch c.Elastic {
		case elastic: // a job that others have registered without a policy of theirs does not recover
			other, _ = manifest(jobText, false) // fails where the program has chosen a policy
		case asRegistered:
			if other, err = manifest(jobText, true); err != nil {
				return err
			}
		}
		if err = job.Validate(); err != nil {
			return err
		}
		if to, s, err = c.trainer(); err != nil {
			return err
		}
		s.elastic = c.Elastic == elastic && job.Policy != schema.PolicyFail
		to.Dense, err = denseValues(job, start)
		return err
	})
	if err != nil {
		if s != nil {
			s.of = nil
			s.gone()
		}
		return end(t, err)
	}
	if t.pending != 0 {
		s.of = nil
		s.gone()
		return wait(t, s.ctx, nil) // which refuses
	}
	if s.of != nil && s.of.sessions.Add(1) <= 0 {
		s.gone()
		return end(t, fmt.Errorf("%w: the shards are gone", errClosed))
	}
	handle := all.add(s)
	*out = C.gradbus_handle(handle)
	return beside(t, s.ctx, func() (err error) {
		s.turn <- struct{}{}
		defer func() { <-s.turn }()
		s.Session, err = trainer.Join(s.ctx, to, job)
		if r, ok := errors.AsType[*trainer.Refused](err); ok && r.Field == "policy" && other != nil {
			s.elastic = other.Policy != schema.PolicyFail
			s.Session, err = trainer.Join(s.ctx, to, other)
		}
		if err != nil {
			all.remove(handle)
			s.gone()
			return err
		}
		s.joined.Store(true)
		return nil
	})
}

// gone lets go of what a session had besides the trainer's.
func (s *session) gone() {
	if s.of != nil {
		s.of.sessions.Add(-1)
	}
	if s.backend != nil {
		s.backend.Close()
	}
	s.log.Close()
}

// denseValues are copies of the values of all parameters, by name; nil where they are drawn.
func denseValues(job *schema.Job, start **C.float) (map[string][]float32, error) {
	if start == nil || len(job.Parameters) == 0 {
		return nil, nil
	}
	values := map[string][]float32{}
	for i, p := range unsafe.Slice(start, len(job.Parameters)) {
		spec := &job.Parameters[i]
		if p == nil {
			return nil, fmt.Errorf("%w: dense_start of parameter %q is NULL: want all parameters, or none",
				errArgument, spec.Name)
		}
		values[spec.Name] = append([]float32(nil), floats(p, spec.Elements())...)
	}
	return values, nil
}

func floats(p *C.float, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(p)), n)
}

// usable is a session that has joined.
func usable(handle C.gradbus_handle) (*session, error) {
	s, err := get[*session](uint64(handle))
	if err == nil && !s.joined.Load() {
		err = fmt.Errorf("%w: the session has not joined yet", trainer.ErrOrder)
	}
	return s, err
}

// trains makes a call of those that are made one at a time.
func trains(t *C.gradbus_thread, handle C.gradbus_handle, body func(context.Context, *session) error) C.int32_t {
	s, err := usable(handle)
	if err == nil {
		err = s.begin(t)
	}
	if err != nil {
		return end(t, err)
	}
	return wait(t, s.ctx, s.inTurn(func(ctx context.Context) error { return body(ctx, s) }, &s.busy))
}

// trainsBeside is trains for what cannot be interrupted.
func trainsBeside(t *C.gradbus_thread, handle C.gradbus_handle, body func(*session) error) C.int32_t {
	s, err := usable(handle)
	if err == nil {
		err = s.begin(t)
	}
	if err != nil {
		return end(t, err)
	}
	turn := s.inTurn(func(context.Context) error { return body(s) }, &s.busy)
	if s.of != nil && s.Job().Trainers == 1 { // no other trainer is waited for: this thread does the work
		return wait(t, s.ctx, turn)
	}
	return beside(t, s.ctx, func() error { return turn(s.ctx) })
}

// begin begins a call of those that are made one at a time.
func (s *session) begin(t *C.gradbus_thread) error {
	if t.pending != 0 {
		return nil // which wait refuses
	}
	if !s.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: another call of this session is under way", trainer.ErrOrder)
	}
	return nil
}

// inTurn makes a body wait until no other call uses the session. It keeps its turn while it is interrupted. Then busy
// is cleared, where it is not nil.
func (s *session) inTurn(body func(context.Context) error, busy *atomic.Bool) func(context.Context) error {
	mine := false
	return func(ctx context.Context) (err error) {
		defer func() {
			if errors.Is(err, trainer.ErrAgain) {
				return
			}
			if mine {
				<-s.turn
			}
			if busy != nil {
				busy.Store(false)
			}
		}()
		if !mine && s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if !mine {
			select {
			case s.turn <- struct{}{}:
				mine = true
			default: // first, for a thread without patience
				select {
				case s.turn <- struct{}{}:
					mine = true
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		if err = guarded(func() error { return body(ctx) }); errors.Is(err, errFault) {
			s.fail(err)
		}
		if errors.Is(err, trainer.ErrRewound) {
			s.batch = nil
		}
		return err
	}
}

// fail ends a session, whatever it waits for.
func (s *session) fail(cause error) {
	s.cancel(cause)
	go func() { _ = guarded(func() error { s.abort(cause); return nil }) }()
}

//export go_cancel
func go_cancel(t *C.gradbus_thread, handle C.gradbus_handle, text *C.char) C.int32_t {
	return now(t, func() error {
		s, err := get[*session](uint64(handle))
		if err != nil || s.ctx.Err() != nil {
			return err
		}
		why := reasonOf(text)
		if why == nil {
			why = trainer.ErrInterrupted // it has not failed: others may compute its lanes
		}
		s.fail(fmt.Errorf("%w: %w", errCanceled, why))
		return nil
	})
}

// reasonOf returns the caller's reason of an end by an error; nil if there is none.
func reasonOf(text *C.char) error {
	if text == nil {
		return nil
	}
	return errors.New(cmp.Or(C.GoString(text), "it gave no reason"))
}

// abort leaves a session that was canceled, as soon as nothing waits on it any more.
func (s *session) abort(cause error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.Session != nil {
		_ = s.Abort(cause) // gradbus_leave says so, too
	}
}

//export go_leave
func go_leave(t *C.gradbus_thread, handle C.gradbus_handle, text *C.char) C.int32_t {
	s, err := usable(handle)
	if err != nil {
		return end(t, err)
	}
	return s.leave(t, handle, reasonOf(text))
}

// leave ends a session, where there is a reason by an error.
func (s *session) leave(t *C.gradbus_thread, handle C.gradbus_handle, reason error) C.int32_t {
	if err := s.begin(t); err != nil {
		return end(t, err)
	}
	return beside(t, s.ctx, func() error {
		s.turn <- struct{}{} // whether or not it was canceled
		defer func() { <-s.turn }()
		all.remove(uint64(handle))
		defer s.gone()
		if reason == nil && s.Err() == nil {
			if err := s.giveBack(); err != nil {
				return errors.Join(err, s.Abort(err))
			}
		}
		return s.Abort(cmp.Or(context.Cause(s.ctx), reason)) // what ended it first
	})
}
