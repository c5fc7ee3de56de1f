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

// Folder is a place that a process writes to.
type Folder = process.Folder

// Config says how a trainer reaches its server and how long it waits for what. What the trainers of a job must agree on
// is not here but in the job's manifest (schema.Job). The zero value of every field works.
type Config struct {
	// Server is the address of the ps, as in nats://127.0.0.1:4222, or of the NATS server or cluster by which several ps
	// know each other; user:password@ may be part of it. Empty is nats://127.0.0.1:4222, where ./bin/ps listens.
	Server string
	// Bus is the network that Server is an address of, in a job that lives in this process; nil is TCP. Token and TLS then
	// say nothing.
	Bus *fabric.Bus
	// Local says that shards and trainers of the job are one program, by package local: then a value that is not finite
	// ends the training alone, and the session stays readable where the job has no modules (Session.Err).
	Local bool
	// Derived says that gradbus has derived the name of the job from another job's. A program that chooses a name leaves
	// it false, and is refused one of those (schema.CheckChosen).
	Derived bool
	// Route says how to reach the shards: schema.DataDirect (also ""), each ps at the address that it announces; or
	// schema.DataCluster, all by way of Server, which is slower.
	Route string
	// Member is the member id to ask for, t0, t1, ...; empty for the next free one.
	Member schema.Member
	// Token is the server's credential; empty where it asks for none.
	Token string
	// CredsFile is a file with NATS credentials for Server; empty where it wants none.
	CredsFile string
	// TLS encrypts the connections to Server, and to those ps whose address begins with tls://, where it is not nil.
	TLS *tls.Config
	// DataHost is where this trainer's own data server listens in a job that reduces between trainers: a name or IP of
	// this machine, or host:port for a port of choice. Anything but loopback needs a Token of at least 16 characters, and
	// DataTLS where the way to Server is encrypted. Empty is the address of this machine on the way to Server where that
	// is elsewhere and these are given, else 127.0.0.1.
	DataHost string
	// Advertise is the host, or host:port, by which the other trainers reach the data server; empty means DataHost, or
	// where that is all addresses the one of this machine on the way to Server.
	Advertise string
	// DataTLS holds the data server's certificate; nil means that it speaks plain TCP. TLS says how others' are checked.
	DataTLS *tls.Config
	// Backend does the arithmetic. The session does not close it. Where it is nil, the session opens the fastest that this
	// build has on this machine, and closes it at the end; Session.Backend gives it.
	Backend cuda.Backend
	// From is the model whose values the job begins with: Join notes it in the manifest (schema.Job.Start), or compares it
	// with the one that is noted there. Where the manifest notes one, only the trainer that has lane 0 needs it. nil where
	// values are drawn. See Model.
	From *Model
	// Dense are the values that the dense parameters begin with, by name and all of them, where tables are drawn: Join
	// notes their digest in the manifest, so that a trainer whose values are others is refused. They are read until Join
	// returns. nil where all is drawn, or with From.
	Dense map[string][]float32
	// Resume begins with the newest durable version of the job in place of version 0: ps writes versions down where it has
	// a folder for them (--checkpoint-dir). All trainers of a job resume, or none. Session.Version tells where it is.
	Resume bool
	// Log receives what a person may want to know later; nil discards it, but for the warning of a build whose arithmetic
	// is slow.
	Log *slog.Logger
	// OnWaiting is called by Join each time the number of trainers that have not joined yet changes; nil for nothing.
	OnWaiting func(missing int)

	// GPUs is asked with every report for what it says of this machine's GPUs; nil for nothing. It must return at once,
	// and what it returns is not to be changed any more.
	GPUs func() []schema.GPUReport

	// Writes is where this process writes what the session knows nothing of, such as models: reports say how much room
	// there is. It is asked every ten seconds, and nothing ever waits for an answer.
	Writes []Folder

	// OnGroup is told what becomes of groups, in the order in which it happens and before this trainer has what a group
	// made, in a grouped job whose manifest asks for it (schema.Job.GroupEvents); nil for nothing. It must return at once.
	OnGroup func(schema.Group)

	// Timeline asks for Progress.Buckets: when each bucket's gradient left and when its result was in place.
	Timeline bool

	// WindowBytes bounds the bytes of gradients in flight to each shard, 64 KiB to 64 MiB; the server may grant less.
	// 0: what the server grants, usually 4 MiB, which keeps 10 Gbit/s busy over 3 ms. With less, requests wait less
	// behind gradients.
	WindowBytes int

	// HeartbeatEvery is the time between two signs of life to the coordinator. Zero means 1 s. It must be well below the
	// coordinator's deadline (30 s by default).
	HeartbeatEvery time.Duration
	// TelemetryEvery is the time between two reports, by which a page, a metric or a terminal shows how this trainer
	// fares. Zero means 1 s; below zero none are sent. It must not exceed an hour.
	TelemetryEvery time.Duration
	// RetryAfter is the time after which a missing answer is requested again, before the duration of answers is known
	// (then it follows from that, for lookups and the like). It doubles at times, up to eight times. Zero: 1 s.
	RetryAfter time.Duration
	// AnswerWithin bounds the time of the coordinator's first answer to a join. Zero: 10 s.
	AnswerWithin time.Duration
	// ReconnectTimeout is the time for a lost connection to shards to return before the session ends with
	// ErrServerLost. Zero: 30 s, after which a job's other members give up this one too, unless the server has another
	// deadline.
	ReconnectTimeout time.Duration
	// LeaveWithin bounds the time that Close and Abort wait for the coordinator. Zero means 10 s.
	LeaveWithin time.Duration

	rejoin   schema.RunID      // the run that the trainer was part of, and whose job it rejoins; 0: none
	rejoinAs schema.Member     // the member that the trainer was in that run
	standby  string            // where the job continues when the ps at Server is lost; empty: nowhere else
	key      *uint64           // of all joins until one is answered: schema.Join.Key
	number   uint64            // of this session: schema.Join.Number
	rejoinAt schema.Generation // of its slot in that run
	promised schema.Generation // rejoinAt where it has promised the standby to follow it: schema.Join.Promised; else 0
}

// Limits of Config.WindowBytes.
const (
	windowBytesMin = 64 << 10
	windowBytesMax = 64 << 20
)

// Errors of a session, wrapped with what happened. Refused is another.
var (
	// ErrConfig: the Config is not usable; nothing was sent.
	ErrConfig = errors.New("invalid trainer configuration")
	// ErrNoAnswer: the server is there, and no coordinator of it has answered, since it is no ps, or one of another build;
	// or another trainer of a job that reduces between trainers is out of reach.
	ErrNoAnswer = errors.New("no coordinator answered")
	// ErrServerLost: the server was there and is not any more, with the job's state, and the job does not continue from a
	// durable version or at another ps. Where it does, the session joins its next run and gives no error.
	ErrServerLost = errors.New("server lost")
	// ErrJobFailed: the coordinator ended the job for all of its trainers, also because one of them, or a ps, was asked to
	// end. Its name may be used again.
	ErrJobFailed = errors.New("job failed")
	// ErrInterrupted is the argument of Abort for a program that was told to end, and has not failed: other trainers
	// may compute its lanes. The end of a context by context.Canceled has the same meaning.
	ErrInterrupted = errors.New("interrupted")
	// ErrWorkload: the program asked for, or gave, what the job does not have, or a Workload returned an error. Nothing
	// was sent. Session.Distinct, Lookup and LookupInto leave the session usable.
	ErrWorkload = errors.New("workload")
	// ErrAgain is the cause with which a context may end that is to interrupt a wait and not the session. Batch.Wait,
	// NextAssigned, Wait, Finish, LookupInto, and every read that waits for the job's next run give it; the same call,
	// made again before any other, continues where it was. Any other call fails by it as by any cause.
	ErrAgain = errors.New("interrupted: call again")
	// ErrLeft: the session has ended by Close or Abort.
	ErrLeft = errors.New("session has left its job")
)

// Errors that the package tells apart, and a program does not.
var (
	errNoServers error = &kindError{"no ps is announced at", ErrNoAnswer}
	// errPeerLost: another trainer's data server is out of reach.
	errPeerLost error = &kindError{"data server of a trainer lost", ErrNoAnswer}
	// errNoParameters: a new trainer did not get the parameters that other trainers own. Another join may get them.
	errNoParameters error = &kindError{"no other trainer says what parameters it has", ErrNoAnswer}
	errJobStopped   error = &kindError{"job stopped by request", ErrJobFailed}
	// errActivation: an activation of a module has ended. The session continues.
	errActivation = errors.New("context is gone")
)

// kindError is an error of a kind that programs know.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string        { return e.text }
func (e *kindError) Is(target error) bool { return target == e.kind }

// Validate lists everything that is wrong, each with the field, its value and what would be right.
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

// serverName is Server for people: without a password.
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
