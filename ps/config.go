package ps

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/ps/members"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
)

// Config is all that a server can be told. Default gives one that works; Validate finds everything that is wrong with
// one. Names in the comments are those that errors use.
type Config struct {
	// Host (host) is the address to listen at: a name or IP of this machine. Empty means 127.0.0.1. Anything but
	// loopback needs a Token, or Insecure.
	Host string
	// Port (port) is the TCP port, 0 to 65535. 0 means any free one; Server.URL tells which.
	Port int
	// Shards (shards) is how many shards each job is cut into, 1 to 64. 0 means 1. A shard is one goroutine, so more of
	// them than processors gains nothing.
	Shards int
	// Token (token) is what every connection must show, of at least 16 characters. Empty means that none is asked for.
	Token string
	// ControlToken (control_token) is the secret of other ps that use this one as control server, and the one that this
	// ps sends to the server at NATS. A client with it may do everything that a ps may. Empty: no other ps may use this
	// one, and it sends Token.
	ControlToken string
	// Members (members) are the keys that may connect, each with a role. nil: connections need no key. Excludes Token and
	// ControlToken.
	Members *members.List
	// Key (credentials) is the credential of this ps at NATS and Peer. nil: it shows a token, or nothing.
	Key *fabric.Key
	// Insecure (insecure) allows listening beyond loopback without a token. Every client that reaches the port can then
	// train, read and end every job.
	Insecure bool
	// TLS encrypts all connections but those of this process where it is not nil: it has the certificate, and may ask for
	// those of others.
	TLS *tls.Config

	// ID (id) names this ps among all that share a control server: 1 to 61 of a-z, 0-9 and -. The order of a job's shards
	// follows from it. Empty means the machine's name and the port.
	ID string
	// NATS (nats) is the address of a NATS server or cluster with JetStream, or of another ps, that carries control:
	// several addresses are separated by commas, and user:password@ may be part of each. Empty means the server of this
	// process.
	NATS string
	// NATSCredsFile (nats_creds) is a file with credentials for NATS. Empty means none.
	NATSCredsFile string
	// NATSTLS says how to check the certificate of NATS; nil is plain TCP, or the system's roots for tls://.
	NATSTLS *tls.Config
	// PeerTLS says how to check the certificates of the data servers of other ps, as trainers do; nil is plain TCP, or the
	// system's roots for tls://.
	PeerTLS *tls.Config
	// Advertise (advertise) is the host:port at which others dial this ps, where that is not Host and Port. Where Host is
	// every address, it is by default the one by which this machine reaches NATS, or others.
	Advertise string

	// Replicas (replicas) is how many copies of shards of jobs other ps keep, 0 or 1, for which this one keeps theirs. The
	// others are those at NATS that have it, too, or Peer.
	Replicas int
	// Peer (peer) is the address of exactly one other ps, which has a registry of its own. This one keeps what the shards
	// of its jobs have, and goes on with them when that ps is lost. Used with Replicas 1, and without NATS.
	Peer string

	// Deadline (deadline) is how long a trainer may be silent before it counts as lost: 1 s to 1 h. 0 means 30 s. A live
	// trainer that keeps a batch waiting is given up after the same time if others can compute its lanes.
	Deadline time.Duration

	// StallTimeout (stall_timeout) is how long a live trainer may keep a batch waiting when its loss would end or rewind
	// the job: from Deadline to 168 h. 0 means 30 min, or Deadline where that is longer.
	StallTimeout time.Duration

	// StartTimeout (start_timeout) is how long a job waits for missing trainers while no new one joins, before it ends:
	// 1 s to 168 h. 0 means 1 h.
	StartTimeout time.Duration

	// Checkpoints (checkpoint_dir, checkpoint_every, checkpoint_batches, checkpoint_keep) is where and how often versions
	// of jobs are written down. All ps of a job share the folder; without one nothing is durable.
	Checkpoints checkpoint.Policy

	// Backend (backend) names what does the arithmetic: see cuda.Names. Empty means auto. Options.Backend wins over it.
	Backend string
	// ISA (isa) forces an instruction set of the cpu backend. Empty means the best.
	ISA string
	// Threads (threads) is how many threads one call of the cpu backend may use. Zero means 1. Results do not depend on
	// it.
	Threads int

	// MemoryBytesMax (memory_bytes_max) bounds what all jobs may hold in parameters, tables and open rounds; a job that
	// would need more is refused when it is registered. 0 means three quarters of what the process may
	// take: the machine's memory, the limit of its control group or of those around it, or GOMEMLIMIT.
	MemoryBytesMax int64
	// StagedBytesMax (staged_bytes_max) bounds the contributions to open rounds of one job on one shard, 16 MiB to 1 TiB.
	// Each trainer may use its share of it, at least 8 MiB, which must hold its sparse gradients of one batch. 0 means
	// 128 MiB.
	StagedBytesMax int64
	// JobsMax (jobs_max) is how many jobs may exist at once, 1 to 1024. 0 means 16.
	JobsMax int
	// PendingBytesMax (pending_bytes_max) bounds what may wait in the NATS server for one reader, four times
	// PayloadBytesMax to 4 GiB. One that lets more come together is cut off, and asks again for what it missed. The
	// windows of all trainers to the shards of all jobs may fill half of it, of which each of JobsMax jobs is sure of an
	// even share of one half. 0 means 256 MiB.
	PendingBytesMax int64
	// PayloadBytesMax (payload_bytes_max) is the largest message taken, 1 MiB to 8 MiB. 0 means 8 MiB.
	PayloadBytesMax int

	modules *module.Sizes // of modules that were built before; nil: none is remembered
	local   *Local        // as of Options
}

// Folder is a place that a process writes to.
type Folder = process.Folder

// Options are the callbacks and objects of a server, as opposed to its settings.
type Options struct {
	Backend cuda.Backend // does the arithmetic; nil means that the server opens and closes the one that Config names
	Log     *slog.Logger // nil discards
	// LimitHeap is called, when jobs or anonymous connections come and go, with the size of the Go heap within which
	// ProcessBytes holds; nil: none. ./bin/ps gives the runtime that limit.
	LimitHeap func(bytes int64)
	// Journal is told what the shards of jobs do to their tables and answer from them, as ShardConfig.Journal says; nil
	// for nothing. Shards call it at the same time.
	Journal func(job schema.JobName, shard int, entry shard.Journal)
	// Rounds receives the times of each bucket of each batch on a shard here, once its last result is published; nil:
	// none. The goroutines that publish for shards call it, several at a time, and it must return at once. Jobs in
	// grouped, and those whose tables are applied alone, are not reported.
	Rounds func(RoundTimes)

	// Telemetry receives every report that arrives, and once a second this ps's own, also while the control server is
	// unreachable: the job and member of the subject, and the report, which it may keep and must not change. It is
	// never called concurrently, and must not call Close. Reports that wait for it are bounded, and counted when they are
	// dropped. The sender and every bound of a report have been checked; the number of jobs and members has not. nil:
	// reports of others are not received. Own reports are sent in any case.
	Telemetry func(job schema.JobName, from schema.Member, p *schema.Telemetry)
	// GPUs is asked once a second for what reports say of this machine's GPUs; nil for nothing. It must return at once,
	// and what it returns is not to be changed any more.
	GPUs func() []schema.GPUReport
	// Fit says why this process must compute nothing more, such as a GPU that is broken; nil, as a function or an error,
	// is that it may. It is asked before shards of a job are made and once a second while there are some, and must return
	// at once. An error ends the jobs with shards here, and its text is the reason that their trainers are given.
	Fit func() error
	// Bus is the network that the server listens at, in place of TCP, and that Config.NATS is an address of; nil is TCP.
	// Host, tokens and TLS then say nothing. Trainers of such a job give it their Config too.
	Bus *fabric.Bus
	// Local is set where the trainers of all jobs are in this process, which has a Bus then; else nil.
	Local *Local
	// Writes is where this process writes, for its reports: it is asked every ten seconds how much room there is, and
	// nothing waits for an answer.
	Writes []Folder
	// Page is the URL of this ps's page, for its reports; empty where it has none.
	Page string

	lease time.Duration    // of the lease record, for tests; 0 is leaseTime
	clock func() time.Time // for tests, in which it jumps; nil is time.Now

	dialing func(ctx context.Context, shard int) error // for tests: called before the link of a shard number is dialed
}

// Limits of a configuration.
const (
	shardsMax           = 64
	jobsMax             = 1024
	stagedBytesMin      = 16 << 20
	stagedBytesLimit    = 1 << 40 // of one job and shard; 64 shards and a trainer's share of each add up without overflow
	memoryBytesLimit    = 1 << 50
	payloadBytesMin     = 1 << 20
	pendingBytesLimit   = 4 << 30
	deadlineMin         = time.Second
	deadlineMax         = time.Hour
	deadlineDefault     = 30 * time.Second
	stallDefault        = 30 * time.Minute
	startTimeoutMin     = time.Second
	startTimeoutMax     = 168 * time.Hour
	startTimeoutDefault = time.Hour
	stagedDefault       = 128 << 20
	jobsDefault         = 16
	memoryBytesDefault  = 8 << 30 // where the machine does not say how much it has
)

// StallTimeoutMax is the longest Config.StallTimeout: for a job whose trainers are in one process, which its user sees.
const StallTimeoutMax = 168 * time.Hour

// Default is a server on loopback, at the port that trainers try first, with everything else as zero means.
func Default() Config {
	return Config{Host: "127.0.0.1", Port: 4222}.withDefaults()
}

// withDefaults puts in what zero means. MemoryBytesMax stays: what the machine has is asked for when the server starts.
func (c Config) withDefaults() Config {
	set(&c.Host, "127.0.0.1")
	set(&c.Shards, 1)
	set(&c.Deadline, deadlineDefault)
	set(&c.StallTimeout, max(stallDefault, c.Deadline))
	set(&c.StartTimeout, startTimeoutDefault)
	c.Checkpoints = c.Checkpoints.WithDefaults()
	set(&c.Backend, "auto")
	set(&c.StagedBytesMax, stagedDefault)
	set(&c.JobsMax, jobsDefault)
	set(&c.PayloadBytesMax, fabric.PayloadBytesMaxDefault)
	set(&c.PendingBytesMax, fabric.PendingBytesMaxDefault)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// grouped reports that replicas are kept among the ps of one NATS server.
func (c *Config) grouped() bool { return c.Replicas > 0 && c.Peer == "" }

// Validate lists everything that is wrong, in one line: each field, its value and what would be right.
func (c Config) Validate() error {
	c = c.withDefaults()
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(c.Port >= 0 && c.Port <= 65535, "port %d: want 1 to 65535, or 0 for any free one", c.Port)
	check(c.Shards >= 1 && c.Shards <= shardsMax, "shards %d: want 1 to %d", c.Shards, shardsMax)
	check(isLoopback(c.Host) || c.Token != "" || c.Members != nil || c.Insecure,
		"host %s: other machines can reach it, and there is no token and no members file: give one, listen at 127.0.0.1, or say insecure", c.Host)
	if err := fabric.CheckToken(c.Token); err != nil {
		wrong = append(wrong, err.Error())
	}
	if err := fabric.CheckToken(c.ControlToken); err != nil {
		wrong = append(wrong, "control_"+err.Error())
	}
	check(c.Members == nil || c.Token == "" && c.ControlToken == "",
		"members: with a members file every connection shows its own key, and a token opens nothing: give one of the two")
	check(c.ControlToken == "" || c.ControlToken != c.Token,
		"control_token: it is also the token, which every trainer knows: want another")
	check(c.ID == "" || len(c.ID) <= schema.ServerIDBytesMax && schema.CheckName("id", c.ID) == nil,
		"id %q: want 1 to %d of a-z, 0-9 and -", c.ID, schema.ServerIDBytesMax)
	check(c.NATS != "" || c.NATSCredsFile == "" && (c.Peer != "" || c.NATSTLS == nil),
		"nats_creds, nats_tls: want them only with nats, the address that they are for, or the last with peer")
	check(c.NATS == "" || c.Peer == "",
		"peer %s: want it without nats: each of a pair has a registry of its own", fabric.WithoutUser(c.Peer))
	check(c.Replicas == 0 || c.Replicas == 1, "replicas %d: want 0 or 1", c.Replicas)
	check(c.Replicas == 0 || c.NATS != "" || c.Peer != "",
		"replicas %d: want it with nats, a NATS server of several ps, or with peer, the address of one other ps", c.Replicas)
	check(c.Peer == "" || c.Replicas == 1, "peer %s: want replicas 1 with it", fabric.WithoutUser(c.Peer))
	if c.Advertise != "" {
		host, port, err := net.SplitHostPort(c.Advertise)
		number, errPort := strconv.Atoi(port)
		check(err == nil && host != "" && errPort == nil && number > 0 && number <= 65535,
			"advertise %q: want host:port, for example 10.0.0.2:4222", c.Advertise)
	}
	check(c.Deadline >= deadlineMin && c.Deadline <= deadlineMax, "deadline %s: want %s to %s", c.Deadline, deadlineMin,
		deadlineMax)
	check(c.StallTimeout >= c.Deadline && c.StallTimeout <= StallTimeoutMax,
		"stall_timeout %s: want the deadline, %s, to %s", c.StallTimeout, c.Deadline, StallTimeoutMax)
	check(c.StartTimeout >= startTimeoutMin && c.StartTimeout <= startTimeoutMax, "start_timeout %s: want %s to %s",
		c.StartTimeout, startTimeoutMin, startTimeoutMax)
	for _, err := range c.Checkpoints.Check() {
		wrong = append(wrong, err.Error())
	}
	known := false
	for _, name := range cuda.Names() {
		known = known || name == c.Backend
	}
	check(known, "backend %q: want one of %s", c.Backend, strings.Join(cuda.Names(), ", "))
	check(c.Threads >= 0 && c.Threads <= cuda.ThreadsMax, "threads %d: want 1 to %d, or 0 for one", c.Threads,
		cuda.ThreadsMax)
	check(c.MemoryBytesMax >= 0 && c.MemoryBytesMax <= memoryBytesLimit,
		"memory_bytes_max %d: want at most %d, or 0 for three quarters of the machine's", c.MemoryBytesMax,
		int64(memoryBytesLimit))
	check(c.StagedBytesMax >= stagedBytesMin && c.StagedBytesMax <= stagedBytesLimit,
		"staged_bytes_max %d: want %d to %d", c.StagedBytesMax, stagedBytesMin, int64(stagedBytesLimit))
	check(c.JobsMax >= 1 && c.JobsMax <= jobsMax, "jobs_max %d: want 1 to %d", c.JobsMax, jobsMax)
	check(c.PayloadBytesMax >= payloadBytesMin && c.PayloadBytesMax <= fabric.PayloadBytesMaxDefault,
		"payload_bytes_max %d: want %d to %d", c.PayloadBytesMax, payloadBytesMin, fabric.PayloadBytesMaxDefault)
	check(c.PendingBytesMax >= 4*int64(c.PayloadBytesMax) && c.PendingBytesMax <= pendingBytesLimit,
		"pending_bytes_max %d: want four times payload_bytes_max, %d, to %d", c.PendingBytesMax, 4*c.PayloadBytesMax,
		int64(pendingBytesLimit))
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("invalid configuration: %s", strings.Join(wrong, "; "))
}

// isLoopback reports whether a host is reached from this machine only.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
