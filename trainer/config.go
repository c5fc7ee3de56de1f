package trainer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/loglimit"
	"gradbus/internal/process"
	"gradbus/schema"
)

// Folder is a directory that a process writes to.
type Folder = process.Folder

// Config sets how a trainer reaches its server, which values its job begins with, and its timeouts. Settings on which
// the trainers of a job must agree are in the job's manifest (schema.Job). The zero value is valid.
type Config struct {
	// Server is the URL of the ps, or of the NATS server or cluster through which several ps communicate. It may contain
	// user:password@. Default: nats://127.0.0.1:4222, the address of ./bin/ps.
	Server string
	// Bus is the in-process network of Server, for a job within this process. nil: TCP. With a Bus, Token and TLS are
	// ignored.
	Bus *fabric.Bus
	// Local marks a job whose shards and trainers are one program, as package local makes it. A value that is not finite
	// then ends the training only, and the session stays readable if the job has no modules (Session.Err).
	Local bool
	// Derived allows a job name of the form that gradbus derives from another job's name. Programs leave it false, and
	// Join then refuses such names (schema.CheckChosen).
	Derived bool
	// Route selects the connections to the shards. schema.DataDirect, the default, connects to each ps at the address
	// that it announces. schema.DataCluster sends everything through Server, which is slower.
	Route string
	// Member is the requested member id: t0, t1, and so on. Default: the next free one.
	Member schema.Member
	// Token is the server's shared secret. Empty: none.
	Token string
	// Key is this trainer's credential at a ps that has a members file (fabric.ReadKey). nil: none.
	Key *fabric.Key
	// CredsFile is the path of a NATS credentials file for Server. Empty: none.
	CredsFile string
	// TLS encrypts the connections to Server, and to each ps whose address begins with tls://. nil: no TLS.
	TLS *tls.Config
	// DataHost is the host, or host:port, at which this trainer's data server listens. Only jobs that reduce between
	// trainers have data servers. A host other than loopback requires a Token of at least 16 characters, and DataTLS if
	// the connection to Server is encrypted. Default: the local address of the connection to Server if those requirements
	// are met, otherwise 127.0.0.1.
	DataHost string
	// Advertise is the host, or host:port, at which other trainers reach the data server. Default: DataHost, or, if that
	// means all addresses, the local address of the connection to Server.
	Advertise string
	// DataTLS is the TLS configuration of the data server, with its certificate. nil: plain TCP. TLS verifies the
	// certificates of other trainers.
	DataTLS *tls.Config
	// Backend does the arithmetic. The caller owns it and closes it after the session. nil: the session opens the fastest
	// backend of this build that the machine supports, and closes it when the session closes. Session.Backend returns it.
	Backend cuda.Backend
	// From is the model whose values the job begins with. Join records its digest in the manifest (schema.Job.Start), or
	// compares it with the recorded one. If the manifest already has a digest, only the trainer with lane 0 needs From.
	// nil: initial values are drawn. Excludes Dense.
	From *Model
	// Dense has the initial values of all dense parameters by name, for a job whose tables are drawn. Join records their
	// digest in the manifest, so a trainer with different values is refused. Join copies them. nil: initial values are
	// drawn, or come from From.
	Dense map[string][]float32
	// Resume begins with the newest durable version of the job instead of version 0. A ps stores versions if it runs with
	// --checkpoint-dir. All trainers of a job must have the same value. Session.Version returns the version.
	Resume bool
	// Log receives the session's log records. nil: only warnings about slow arithmetic are logged, to slog.Default.
	Log *slog.Logger
	// OnWaiting is called by Join whenever the number of missing trainers changes. nil: no calls.
	OnWaiting func(missing int)

	// GPUs returns the state of this machine's GPUs for each telemetry report. It must return at once, and the caller
	// must not change the result afterwards. nil: reports have no GPUs.
	GPUs func() []schema.GPUReport

	// Writes lists directories that this process writes to, such as the one for its models. Reports have the free space
	// of each. The session measures it every ten seconds without delaying the training.
	Writes []Folder

	// OnGroup is called for each event of a group, in order, and before this trainer has the group's result. It applies
	// to mode grouped, with schema.Job.GroupEvents set. It must return at once. nil: no calls.
	OnGroup func(schema.Group)

	// Timeline records the times of each bucket in Progress.Buckets.
	Timeline bool

	// WindowBytes bounds the gradients in flight to each shard, in bytes: 64 KiB to 64 MiB. The server may grant less. A
	// smaller window delays requests less, a larger one keeps a longer link busy. Default: the server's grant, usually 4
	// MiB, which keeps 10 Gbit/s busy over 3 ms.
	WindowBytes int

	// HeartbeatEvery is the interval between heartbeats to the coordinator. It must be well below the coordinator's
	// deadline (30 s by default). Default: 1 s.
	HeartbeatEvery time.Duration
	// TelemetryEvery is the interval between telemetry reports, at most 1 h. Negative: no reports. Default: 1 s.
	TelemetryEvery time.Duration
	// RetryAfter is the time before an unanswered request is repeated. For lookups and results, measured response times
	// replace it, and the wait doubles with each repetition, up to eight times RetryAfter. Default: 1 s.
	RetryAfter time.Duration
	// AnswerWithin bounds the wait for the coordinator's first answer to a join. Default: 10 s.
	AnswerWithin time.Duration
	// ReconnectTimeout is the time for a lost connection to a shard to return; then the session ends with ErrServerLost.
	// Default: 30 s, which is also the coordinator's default deadline for a silent trainer.
	ReconnectTimeout time.Duration
	// LeaveWithin bounds the time that Close and Abort wait for the coordinator. Default: 10 s.
	LeaveWithin time.Duration

	rejoin   schema.RunID      // run whose job the trainer rejoins; 0: none
	replica  string            // URL of the ps where the job continues if Server is lost; empty: none
	key      *uint64           // schema.Join.Key of all joins until one is answered
	number   uint64            // schema.Join.Number of this session
	rejoinAt schema.Generation // generation of its slot in that run
	promised schema.Generation // schema.Join.Promised: rejoinAt if it promised the replica's ps to follow it, else 0
}

// Limits of Config.WindowBytes.
const (
	windowBytesMin = 64 << 10
	windowBytesMax = 64 << 20
)

// Errors of a session. They are wrapped with details. See also Refused.
var (
	// ErrConfig reports a Config or job description that is invalid. Nothing was sent.
	ErrConfig = errors.New("invalid trainer configuration")
	// ErrNoAnswer reports a server without a coordinator that answers: it is no ps, or a ps of an incompatible version.
	// It also reports another trainer's data server that cannot be reached.
	ErrNoAnswer = errors.New("no coordinator answered")
	// ErrServerLost reports that the server, and with it the state of the job, was lost, and that the job does not
	// continue from a durable version or at another ps. If it does continue, the session joins its next run instead of
	// failing.
	ErrServerLost = errors.New("server lost")
	// ErrJobFailed reports that the coordinator ended the job for all trainers, for example because a trainer failed or a
	// ps was told to stop. The job's name can be used again.
	ErrJobFailed = errors.New("job failed")
	// ErrInterrupted is the argument of Abort for a program that was told to stop and has not failed. Other trainers may
	// then compute its lanes. The cancellation of a context (context.Canceled) has the same meaning.
	ErrInterrupted = errors.New("interrupted")
	// ErrWorkload reports a request for, or a value of, something that the job does not have, or an error of a Workload.
	// Nothing was sent. The session stays usable if the call was Distinct, Lookup or LookupInto.
	ErrWorkload = errors.New("workload")
	// ErrAgain is a context's cause that interrupts a wait without ending the session. Batch.Wait, NextAssigned, Wait,
	// Finish, LookupInto, and reads that wait for the job's next run return it. The same call, repeated before any other,
	// continues the wait. Any other call treats it as any cause and fails.
	ErrAgain = errors.New("interrupted: call again")
	// ErrLeft reports that the session was ended by Close or Abort.
	ErrLeft = errors.New("session has left its job")
)

// Errors that only the package distinguishes.
var (
	errNoServers error = &kindError{"no ps is announced at", ErrNoAnswer}
	// errPeerLost reports that another trainer's data server cannot be reached.
	errPeerLost error = &kindError{"data server of a trainer lost", ErrNoAnswer}
	// errNoParameters reports that a new trainer did not receive the parameters that other trainers own. Another join may
	// receive them.
	errNoParameters error = &kindError{"no other trainer says what parameters it has", ErrNoAnswer}
	errJobStopped   error = &kindError{"job stopped by request", ErrJobFailed}
	// errActivation reports that an activation of a module has ended. The session continues.
	errActivation = errors.New("context is gone")
)

// kindError is an error that matches one of the exported errors.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string        { return e.text }
func (e *kindError) Is(target error) bool { return target == e.kind }

// Validate returns an ErrConfig that lists every invalid field with its value and the valid range, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var wrong []error
	for one := range strings.SplitSeq(c.Server, ",") {
		if u, err := url.Parse(one); err != nil || u.Host == "" {
			wrong = append(wrong, fmt.Errorf("server %q: want an address such as nats://127.0.0.1:4222",
				fabric.WithoutUser(one)))
		}
	}
	if c.Route != "" && c.Route != schema.DataDirect && c.Route != schema.DataCluster {
		wrong = append(wrong, fmt.Errorf("route %q: want %s or %s", c.Route, schema.DataDirect, schema.DataCluster))
	}
	for _, at := range [][2]string{{"data host", c.DataHost}, {"advertise", c.Advertise}} {
		if at[1] == "" {
			continue
		}
		if _, _, err := parseHost(at[0], at[1]); err != nil {
			wrong = append(wrong, err)
		}
	}
	if c.Member != "" {
		if err := schema.CheckName("member", string(c.Member)); err != nil {
			wrong = append(wrong, err)
		}
	}
	if n := c.WindowBytes; n != 0 && (n < windowBytesMin || n > windowBytesMax) {
		wrong = append(wrong, fmt.Errorf("window bytes %d: want %d to %d, or 0 for what the server grants", n, windowBytesMin,
			windowBytesMax))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"heartbeat every", c.HeartbeatEvery}, {"retry after", c.RetryAfter}, {"answer within", c.AnswerWithin},
		{"reconnect timeout", c.ReconnectTimeout}, {"leave within", c.LeaveWithin}} {
		if d.value < 0 {
			wrong = append(wrong, fmt.Errorf("%s %v: want a positive time, or 0 for the default", d.name, d.value))
		}
	}
	if c.TelemetryEvery > schema.TelemetryEveryMax*time.Millisecond {
		wrong = append(wrong, fmt.Errorf("report every %v: want at most an hour, or 0 for the default", c.TelemetryEvery))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(wrong...))
	}
	return nil
}

// serverName returns Server without a password, for messages.
func (c *Config) serverName() string { return fabric.WithoutUser(c.Server) }

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&c.HeartbeatEvery, time.Second}, {&c.TelemetryEvery, time.Second}, {&c.RetryAfter, time.Second},
		{&c.AnswerWithin, 10 * time.Second},
		{&c.ReconnectTimeout, 30 * time.Second}, {&c.LeaveWithin, 10 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if c.Server == "" {
		c.Server = "nats://127.0.0.1:4222"
	}
	c.Log = loglimit.Logger(c.Log)
	if c.OnWaiting == nil {
		c.OnWaiting = func(int) {}
	}
	if c.key == nil {
		key := newJoinKey()
		c.key, c.number = &key, newJoinKey()
	}
	return c
}
