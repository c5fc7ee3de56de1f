// Package local runs a whole job in one process: shards, coordinator and trainers, without a server and without a
// socket. Frames are those of a job on several machines, and reach their receiver by a function call (fabric.Bus). So
// the digest is the same, and moving to a server changes only the address that trainers dial.
//
//	shards, err := local.Start(ctx, local.Options{Shards: 2})
//	if err != nil { ... }
//	defer shards.Close()
//	session, err := trainer.Join(ctx, shards.Config(), job)
//
// The end of the process ends the whole job, and trainers share the processors with shards. Trainers and shards share
// the memory of gradients, which is counted once. The package is above ps and trainer, and knows no arithmetic, no
// frames and no flags.
package local

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// Options configures the shards. The zero value is valid.
type Options struct {
	// Shards is the number of shards of each job, 1 to 64. Default: 1.
	Shards int
	// Backend does the arithmetic of shards and trainers. The caller closes it. nil: Start opens the fastest, and Close
	// closes it.
	Backend cuda.Backend
	// Log receives the log records of the shards; level info is lowered to debug. nil: no records.
	Log *slog.Logger
	// MemoryBytesMax bounds the memory of jobs on shards, in bytes. Default: three quarters of the process's limit.
	MemoryBytesMax int64
	// MemorySetting is the user's name of MemoryBytesMax in error texts. Default: its name here.
	MemorySetting string
	// CheckpointDir is the folder for versions that trainers request (trainer.Session.Checkpoint), and CheckpointKeep the
	// number of versions to keep; 0: 2. See also Shards.SetFolder.
	CheckpointDir  string
	CheckpointKeep int
	// Adjust may change the configuration of ps, such as deadlines and receivers of reports. nil: no changes.
	Adjust func(*ps.Config, *ps.Options)
}

// Shards runs the shards of any number of jobs within this process. It is safe for concurrent use.
type Shards struct {
	bus     *fabric.Bus
	server  *ps.Server
	backend cuda.Backend
	own     bool // Start opened the backend, and Close closes it
	log     *slog.Logger
	once    sync.Once
}

// batchesMax is the interval of versions that are written without a request: more batches than any job has.
const batchesMax = 1 << 40

// Start starts shards, which run until ctx ends or Close. Errors: those of ps.Start. After an error nothing is left
// running.
func Start(ctx context.Context, o Options) (*Shards, error) {
	config := ps.Config{Shards: o.Shards, ID: "local", MemoryBytesMax: o.MemoryBytesMax, StallTimeout: ps.StallTimeoutMax}
	config.Checkpoints.Dir, config.Checkpoints.Keep = o.CheckpointDir, o.CheckpointKeep
	config.Checkpoints.Batches = batchesMax
	s := &Shards{bus: fabric.NewBus(), backend: o.Backend, log: o.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.backend == nil {
		backend, err := cuda.Open(cuda.Options{Log: s.log})
		if err != nil {
			return nil, err
		}
		s.backend, s.own = backend, true
	}
	options := ps.Options{Backend: s.backend, Bus: s.bus, Log: slog.New(aside{s.log.Handler()}),
		Local: &ps.Local{Settings: map[string]string{
			"memory-mib": cmp.Or(o.MemorySetting, "MemoryBytesMax of local.Options")}}}
	if o.Adjust != nil {
		o.Adjust(&config, &options)
	}
	server, err := ps.Start(ctx, config, options)
	if err != nil {
		s.closeBackend()
		return nil, err
	}
	s.server = server
	return s, nil
}

// Config returns the configuration for trainers in this process. The caller may set its other fields.
func (s *Shards) Config() trainer.Config {
	return trainer.Config{Server: s.server.URL(), Bus: s.bus, Local: true, Backend: s.backend, Log: s.log}
}

// Server returns the server that runs the shards, for monitoring.
func (s *Shards) Server() *ps.Server { return s.server }

// SetFolder sets the folder of checkpoints: versions that trainers ask for (trainer.Session.Checkpoint) go to it, and
// jobs resume from it. They are written whole; with CheckpointDir only what has changed since the one before may be. It
// fails if the folder is not writable, or another one is in use.
func (s *Shards) SetFolder(dir string) error { return s.server.SetFolder(dir) }

// SetProgram sets the program's part of the version that its job requests next: at most 64 MiB, which Program returns
// after a resume. nil: there is none. The caller does not change data afterwards.
func (s *Shards) SetProgram(job schema.JobName, data []byte) { s.server.SetProgram(job, data) }

// Program returns the program's part of the version that its job was resumed at; nil: there is none.
func (s *Shards) Program(job schema.JobName) ([]byte, error) { return s.server.Program(job) }

// Run calls train concurrently for the given number of trainers, and returns when all calls have returned. The first
// error ends ctx for the other calls, and Run returns it. The configuration for the trainer with index i requests
// member ti.
func (s *Shards) Run(ctx context.Context, trainers int, train func(ctx context.Context, index int,
	c trainer.Config) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	errs := make([]error, trainers)
	for i := range trainers {
		all.Go(func() {
			c := s.Config()
			c.Member = schema.TrainerMember(i)
			if errs[i] = train(ctx, i, c); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Wait()
	if errors.Join(errs...) == nil {
		return nil
	}
	return context.Cause(ctx)
}

// Close ends all jobs and waits until every goroutine has ended and all memory is free. Sessions must have left before.
// Repeated calls are harmless.
func (s *Shards) Close() {
	s.once.Do(func() {
		s.server.Close()
		s.closeBackend()
	})
}

func (s *Shards) closeBackend() {
	if !s.own {
		return
	}
	if err := s.backend.Close(); err != nil {
		s.log.Warn("close backend", "err", err)
	}
}

// aside is a handler that lowers level info to debug.
type aside struct{ slog.Handler }

func (a aside) level(of slog.Level) slog.Level {
	if of == slog.LevelInfo {
		return slog.LevelDebug
	}
	return of
}

// Enabled implements slog.Handler.
func (a aside) Enabled(ctx context.Context, level slog.Level) bool {
	return a.Handler.Enabled(ctx, a.level(level))
}

// Handle implements slog.Handler.
func (a aside) Handle(ctx context.Context, r slog.Record) error {
	r.Level = a.level(r.Level)
	return a.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (a aside) WithAttrs(attrs []slog.Attr) slog.Handler { return aside{a.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (a aside) WithGroup(name string) slog.Handler { return aside{a.Handler.WithGroup(name)} }
