package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/gpu"
	"gradbus/internal/kernelflag"
	"gradbus/internal/process"
	"gradbus/internal/regular"
	"gradbus/internal/verification"
	"gradbus/ps"
	"gradbus/ps/members"
	"gradbus/ps/ops/display"
	"gradbus/ps/ops/status"
)

// flags are what the command line and the configuration file may say.
type flags struct {
	listen, tokenFile, controlTokenFile, portFile string
	natsCA, members, credentials                  string
	tls                                           config.TLS
	log                                           config.Log
	gpu                                           gpu.Flags
	server                                        ps.Config
	page                                          pageFlags
	secrets                                       secrets
	checkpointEvery                               string
	memoryMiB, stagedMiB                          int64
	pendingMiB                                    int64
	verify                                        verification.Flags
}

func command() *cobra.Command {
	f := flags{server: ps.Default()}
	f.server.Shards = shardsDefault
	c := &cobra.Command{
		Use:   "ps",
		Short: "Run a parameter server with an embedded NATS server",
		Long: `Run a parameter server with an embedded NATS server. It holds shards of any number of jobs.

Without arguments it serves this machine. The first trainer of a job registers the job; when the last trainer has left,
the name is free and the memory is returned.

If there is an NVIDIA driver, ps watches the GPUs. A GPU with a fault stays unhealthy until you acknowledge the fault, with
./bin/ps gpu-ack for one GPU or SIGUSR1 for all. Faults are remembered after the process ends (--gpu-state).`,
		Example: `  ./bin/ps                                             127.0.0.1:4222, two shards, page at 127.0.0.1:8080
  ./bin/ps --listen 127.0.0.1:0 --port-file url        a free port; the address is written to the file
  ./bin/ps --listen 0.0.0.0:4222 --token-file secret   serve other machines that know the token
  ./bin/ps --listen 0.0.0.0:4222 --members members     serve the members of a file, each with its own key
  ./bin/ps --listen 0.0.0.0:4222 --token-file secret --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem
                                                       mutual TLS: clients need a certificate of that CA
  ./bin/ps --http 0.0.0.0:8080 --http-token-file secret --http-tls-cert cert.pem --http-tls-key key.pem
                                                       serve the page to other machines
  ./bin/ps --config ps.yaml --shards 4                 settings from a file; flags override it
  ./bin/ps --listen 0.0.0.0:4222 --token-file secret --nats nats://10.0.0.1:4222
                                                       one of several ps that share jobs
  ./bin/ps --listen 0.0.0.0:4222 --token-file secret --nats nats://10.0.0.1:4222 --replicas 1
                                                       the same, with a replica of each shard on another ps
  ./bin/ps --listen 0.0.0.0:4222 --token-file secret --replicas 1 --peer nats://10.0.0.1:4222
                                                       one of a pair: each continues the other's jobs`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := config.RefuseIdle(c.Flags(), f.idle()); err != nil {
				return err
			}
			f.page.anyPort = f.page.listen == httpDefault && !c.Flags().Changed("http")
			return f.run(c.Context(), c.Flags(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f.add(c)
	c.AddCommand(statusCommand(), tapCommand(), scaleCommand(), drainCommand(), takeoverCommand(),
		memberCommand(), checkpointsCommand(), doctorCommand(), runbookCommand(), gpu.ProbeCommand(), gpu.AcknowledgeCommand(),
		withdrawn("top", "./bin/ps status, or the page of the ps (http://127.0.0.1:8080/)"), withdrawn("gpu-list", "./bin/ps gpu-ack"))
	config.Program(c, cuda.Built())
	config.Sectioned(c, []config.Section{
		{Title: "Serving", First: "listen"}, {Title: "Several ps", First: "nats"}, {Title: "Arithmetic", First: "backend"},
		{Title: "Memory and bounds", First: "memory-mib"},
		{Title: "Checkpoints", First: "checkpoint-dir"},
		{Title: "The page, the API and the metrics", First: "http"}, {Title: "GPUs", First: "gpu"},
		{Title: "Log and settings", First: "log-format"},
	})
	return c
}

// idle are the flags that change nothing as they are.
func (f *flags) idle() []config.Idle {
	return []config.Idle{
		{When: f.server.NATS == "", Flags: []string{"nats-creds"}, Why: "it is for --nats: want that with it"},
		{When: f.server.NATS == "" && f.server.Peer == "", Flags: []string{"credentials"},
			Why: "it is for --nats and --peer: want one of them with it"},
		{When: f.members != "", Flags: []string{"insecure"}, Why: "with --members every client needs a key: give one of the two"},
		{When: f.tokenFile != "", Flags: []string{"insecure"},
			Why: "with --token-file every client needs the token: give one of the two"},
		{When: f.server.Checkpoints.Dir == "", Flags: []string{"checkpoint-every", "checkpoint-keep"},
			Why: "nothing is written: want --checkpoint-dir with it"},
		{When: f.page.listen == "off", Flags: []string{"http-host", "http-token-file", "metrics-token-file",
			"http-tls-cert", "http-tls-key", "http-insecure"}, Why: "there is no page with --http off: leave it out"},
		{When: f.gpu.Mode == string(gpu.Off), Flags: []string{"gpu-expected", "gpu-state", "gpu-library"},
			Why: "--gpu off watches no GPU: leave it out"},
	}
}

// posture says who may connect, and what a client can do then.
func (f *flags) posture() string {
	switch {
	case f.members != "":
		return fmt.Sprintf("%d members of %s may connect, each with its own key.\n", len(f.server.Members.Names()), f.members)
	case f.server.Token != "":
		return "Each holder of the token may end every job and this ps.\n"
	case f.server.Insecure:
		return "Any client that reaches this address may do anything.\n"
	}
	return "Any local user may do anything here.\n"
}

// durable says what is durable, beside the address.
func (f *flags) durable() string {
	if f.server.Checkpoints.Dir == "" {
		return "Nothing is durable; --checkpoint-dir DIR keeps versions of jobs.\n"
	}
	return fmt.Sprintf("Versions of jobs are written to %s every %s.\n", f.server.Checkpoints.Dir,
		f.server.Checkpoints.Interval())
}

// shardsDefault suits a machine of two cores and keeps the parts honest on a larger one.
const shardsDefault = 2

// drainWithin is for how long a ps that is told to end waits for the last versions of its jobs to be durable.
const drainWithin = 20 * time.Second

func (f *flags) add(c *cobra.Command) {
	s, set := &f.server, c.Flags()
	set.SortFlags = false
	set.StringVar(&f.listen, "listen", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)),
		"`HOST:PORT`: address to listen on; port 0 picks a free port")
	set.IntVar(&s.Shards, "shards", s.Shards, "`N`: shards of each job")
	set.DurationVar(&s.Deadline, "deadline", s.Deadline,
		"`DURATION`: a trainer that is silent for this long is lost; a slow one loses its lanes")
	set.DurationVar(&s.StallTimeout, "stall-timeout", s.StallTimeout,
		"`DURATION`: longest wait for a live trainer whose loss would end or restart the job")
	set.DurationVar(&s.StartTimeout, "start-timeout", s.StartTimeout,
		"`DURATION`: a job ends if it misses trainers and none has joined for this long")
	set.StringVar(&f.tokenFile, "token-file", "",
		"`PATH`: file whose first line is the token that every connection must present")
	set.StringVar(&f.members, "members", "",
		"`PATH`: file of the members that may connect, each with its own key (ps member new); excludes --token-file")
	set.BoolVar(&s.Insecure, "insecure", false,
		"allow --listen beyond loopback without a token or members: any client may do anything")
	f.tls.Add(set, "certificate (PEM) of this ps; enables TLS on all connections; read again when it changes",
		"CA bundle (PEM) for client certificates, --nats and --peer; enables mutual TLS")
	set.StringVar(&f.portFile, "port-file", "", "`PATH`: write the address to this file when the server is ready")
	set.StringVar(&s.NATS, "nats", "",
		"`URL`: NATS server or cluster with JetStream, or another ps, that connects several ps")
	set.StringVar(&f.controlTokenFile, "control-token-file", "",
		"`PATH`: file with the token for control connections between ps (first line)")
	set.StringVar(&f.credentials, "credentials", "",
		"`PATH`: file with the key of this ps (role ps) for --nats and --peer, if those have --members")
	set.StringVar(&s.NATSCredsFile, "nats-creds", "",
		"`PATH`: NATS credentials file for --nats")
	set.StringVar(&f.natsCA, "nats-ca", "",
		"`PATH`: CA bundle (PEM) for --nats; default is --tls-ca, then the system's")
	set.StringVar(&s.Advertise, "advertise", "",
		"`HOST:PORT`: address at which trainers reach this ps; default is that of --listen")
	set.IntVar(&s.Replicas, "replicas", 0,
		"`N`: copies of each shard on other ps, 0 or 1; 1 needs --nats or --peer")
	set.StringVar(&s.Peer, "peer", "",
		"`URL`: the other ps of a pair; each continues the other's jobs; needs --replicas 1")
	set.StringVar(&s.ID, "id", "", "`NAME`: name of this ps among several; empty is host name and port")
	set.StringVar(&s.Backend, "backend", s.Backend, "`NAME`: what computes: "+strings.Join(cuda.Names(), ", "))
	set.StringVar(&s.ISA, "isa", "",
		"`NAME`: instruction set of the cpu backend: baseline, avx2 or avx512; empty is the best")
	set.IntVar(&s.Threads, "threads", 1,
		"`N`: threads of one call of the cpu backend; results do not depend on it")
	kernelflag.Add(set)
	f.verify.Add(set)
	set.Int64Var(&f.memoryMiB, "memory-mib", 0,
		"`MIB`: memory that all jobs may use; 0 is 3/4 of the memory of the machine or control group")
	set.Int64Var(&f.stagedMiB, "staged-mib", s.StagedBytesMax>>20,
		"`MIB`: memory for gradients of open rounds, for each job and shard")
	set.Int64Var(&f.pendingMiB, "pending-mib", s.PendingBytesMax>>20,
		"`MIB`: memory for messages that wait for one client; windows fill at most half of it")
	set.IntVar(&s.JobsMax, "jobs-max", s.JobsMax, "`N`: most jobs at the same time")
	set.StringVar(&s.Checkpoints.Dir, "checkpoint-dir", "",
		"`DIR`: folder for checkpoints, shared by all ps of a job; empty writes none")
	set.StringVar(&f.checkpointEvery, "checkpoint-every", "10s",
		"`INTERVAL`: between two checkpoints: a time (10s) or a number of batches (500)")
	set.IntVar(&s.Checkpoints.Keep, "checkpoint-keep", checkpoint.KeepMin,
		"`N`: checkpoints kept of each job, at least 2; older ones are removed")
	f.page.add(c)
	f.gpu.Add(set)
	f.log.Add(set)
	config.AddFileFlag(set)
	config.Addresses(set, "nats", "peer")
}

// run serves until ctx ends, which is a clean end.
func (f *flags) run(ctx context.Context, set *pflag.FlagSet, out, logTo io.Writer) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	log, err := f.log.Logger(logTo)
	if err != nil {
		return err
	}
	if err := f.fill(log); err != nil {
		return err
	}
	backend, gpus, closeBoth, err := f.arithmetic(ctx, log)
	if err != nil {
		return err
	}
	defer closeBoth()
	shown, err := f.page.open(ctx, log, f.secrets, f.hosts())
	if err != nil {
		return err
	}
	defer shown.Close()
	options := ps.Options{Backend: backend, Log: log, LimitHeap: config.HeapLimiter(),
		GPUs: verification.GPUs(backend, gpus),
		Fit:  verification.Fit(backend, gpus.Fit), Writes: []process.Folder{{Path: gpus.KeptAt(), Use: "state of GPUs"},
			{Path: f.server.Checkpoints.Dir, Use: status.UseCheckpoints}}}
	shown.Options(&options)
	running, end := context.WithCancel(context.WithoutCancel(ctx)) // an interrupt ends it when its jobs are durable
	defer end()
	started := context.AfterFunc(ctx, end)
	server, err := ps.Start(running, f.server, options)
	started()
	if errors.Is(err, fabric.ErrPortTaken) {
		return fmt.Errorf("%w (--listen)", err)
	}
	if err != nil {
		return err
	}
	defer server.Close()
	shown.Begin(server)
	if err := f.writePorts(server, shown); err != nil {
		return err
	}
	defer f.removePorts()
	through := ""
	if f.server.NATS != "" {
		through = " for " + server.JoinURL()
	}
	fmt.Fprintf(out,
		"gradbus ps is ready at %s%s (shards %d, deadline %s).\n%s%s%sNext, in another terminal:  %s packages%s\n",
		server.URL(), through, f.server.Shards, f.server.Deadline, f.posture(), f.page.line(shown), f.durable(),
		process.Invoked("trainer"), f.hint(server.JoinURL()))
	notify(daemon.SdNotifyReady, log)
	if f.serve(ctx, set, hangups, server, shown, log) {
		notify(daemon.SdNotifyStopping, log)
		log.Info("ending", "reason", "asked to")
		within, stop := context.WithTimeout(context.Background(), drainWithin)
		server.Drain(within)
		stop()
	}
	server.Close()
	return server.Err()
}

// notify tells the service manager that started this process how it is, where there is one that wants to know.
func notify(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("service manager not notified", "err", err)
	}
}

// arithmetic opens the backend and begins to watch the GPUs: first the one that the other needs.
func (f *flags) arithmetic(ctx context.Context, log *slog.Logger) (backend cuda.Backend, gpus *gpu.Monitor,
	closeBoth func(), err error) {
	var opened []func()
	closeBoth = func() {
		for _, end := range slices.Backward(opened) {
			end()
		}
	}
	open := func() error {
		wrongBits, err := f.gpu.WrongBits()
		if err != nil {
			return err
		}
		backend, err = cuda.Open(f.verify.Options(cuda.Options{Name: f.server.Backend, ISA: f.server.ISA,
			Threads: f.server.Threads, Log: log}, wrongBits))
		if err == nil {
			opened = append(opened, func() { backend.Close() })
		}
		return err
	}
	look := func() (err error) {
		if gpus, err = f.gpu.Watch(ctx, f.server.Backend, cuda.LacksCUDA(), log); err == nil {
			opened = append(opened, gpus.Close)
		}
		return err
	}
	steps := []func() error{open, look}
	if f.gpu.Takes(f.server.Backend) {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			closeBoth()
			return nil, nil, nil, err
		}
	}
	return backend, gpus, closeBoth, nil
}

// writePorts writes the files that tell other programs where the server is.
func (f *flags) writePorts(server *ps.Server, shown *display.Display) error {
	if f.portFile != "" {
		if err := writePort(f.portFile, server.URL()); err != nil {
			return err
		}
	}
	if f.page.portFile == "" || shown == nil {
		return nil
	}
	err := writePort(f.page.portFile, shown.URL())
	if err != nil {
		f.removePorts()
	}
	return err
}

func writePort(path, url string) error {
	err := atomicfile.Write(path, 0o600, func(w io.Writer) error { _, err := fmt.Fprintln(w, url); return err })
	if err != nil {
		return fmt.Errorf("write the server's address: %w", err)
	}
	return nil
}

// removePorts removes the files again. What is no file, such as /dev/null, was written to and stays.
func (f *flags) removePorts() {
	for _, file := range []string{f.portFile, f.page.portFile} {
		if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() {
			os.Remove(file)
		}
	}
}

// fill completes the server's configuration from the flags that are not fields of it.
func (f *flags) fill(log *slog.Logger) error {
	// What zero stands for in ps.Config is a default, which is not what 0 on a command line means.
	switch {
	case f.server.Shards == 0:
		return errors.New("shards 0: want at least 1")
	case f.server.Deadline == 0:
		return errors.New("deadline 0: want a time, for example 30s")
	case f.server.StartTimeout == 0:
		return errors.New("start-timeout 0: want a time, for example 1h")
	case f.memoryMiB < 0:
		return fmt.Errorf("memory-mib %d: want a number of MiB, or 0 for three quarters of the machine's", f.memoryMiB)
	case f.stagedMiB < 16:
		return fmt.Errorf("staged-mib %d: want at least 16", f.stagedMiB)
	case f.pendingMiB < 32:
		return fmt.Errorf("pending-mib %d: want at least 32", f.pendingMiB)
	case f.server.JobsMax == 0:
		return errors.New("jobs-max 0: want at least 1")
	}
	if err := f.server.Checkpoints.SetInterval(f.checkpointEvery); err != nil {
		return fmt.Errorf("checkpoint-every %w", err)
	}
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return fmt.Errorf("listen %q: want host:port, for example 127.0.0.1:4222", f.listen)
	}
	if f.server.Port, err = strconv.Atoi(port); err != nil {
		return fmt.Errorf("listen %q: port %q is not a number", f.listen, port)
	}
	f.server.Host = host
	if host == "" { // as in :4222, which people write for all addresses
		f.server.Host = "0.0.0.0"
	}
	const mib = 1 << 20
	inBytes := func(n int64) int64 { return max(-1, min(n, math.MaxInt64/mib)) * mib } // Validate refuses both ends
	f.server.MemoryBytesMax, f.server.StagedBytesMax = inBytes(f.memoryMiB), inBytes(f.stagedMiB)
	f.server.PendingBytesMax = inBytes(f.pendingMiB)
	if f.secrets, err = f.readSecrets(log); err != nil {
		return err
	}
	f.server.Token, f.server.ControlToken = f.secrets.token, f.secrets.control
	if f.members != "" {
		if f.server.Members, err = members.Read(f.members); err != nil {
			return err
		}
	}
	if f.server.Key, err = connect.Key(f.credentials, log); err != nil {
		return err
	}
	regular.WarnExposed(f.server.NATSCredsFile, log)
	if err := f.fillTLS(log); err != nil {
		return err
	}
	return f.server.Validate()
}

// secrets are what the files of tokens hold.
type secrets struct{ token, control, page, metrics string }

// readSecrets reads them. That of the metrics lies where a scraper has it, and must open nothing else.
func (f *flags) readSecrets(log *slog.Logger) (s secrets, err error) {
	for _, each := range []struct {
		flag, path string
		to         *string
	}{{"token-file", f.tokenFile, &s.token}, {"control-token-file", f.controlTokenFile, &s.control},
		{"http-token-file", f.page.tokenFile, &s.page}, {"metrics-token-file", f.page.metricsTokenFile, &s.metrics}} {
		if *each.to, err = config.Secret(each.path, log); err != nil {
			return secrets{}, fmt.Errorf("%s: %w", each.flag, err)
		}
	}
	if s.metrics != "" && (s.metrics == s.token || s.metrics == s.control) {
		return secrets{}, errors.New("metrics-token-file: its token is that of token-file or control-token-file, which may " +
			"end jobs: want another")
	}
	return s, nil
}

// hosts are the names and addresses of this machine that its own flags say.
func (f *flags) hosts() (all []string) {
	for _, at := range []string{f.listen, f.server.Advertise} {
		host, _, err := net.SplitHostPort(at)
		if ip := net.ParseIP(host); err == nil && host != "" && (ip == nil || !ip.IsUnspecified()) {
			all = append(all, host)
		}
	}
	return all
}

// fillTLS is fill for the certificates.
func (f *flags) fillTLS(log *slog.Logger) error {
	if f.tls.CA != "" && f.tls.Cert == "" && f.server.NATS == "" && f.server.Peer == "" {
		return errors.New("tls-ca: want tls-cert and tls-key with it, or nats, whose certificate it vouches for")
	}
	serve, dial, err := f.tls.Load(log)
	if err != nil {
		return err
	}
	own, err := config.RootCAs(f.natsCA)
	if err != nil {
		return err
	}
	f.server.TLS = serve
	f.dialWith(&f.server, dial, own)
	return nil
}

// dialWith says how a server dials others: dial is how it dials its trainers' servers, own vouches for NATS alone.
func (f *flags) dialWith(c *ps.Config, dial, own *tls.Config) {
	c.PeerTLS = dial.Clone()
	switch {
	case own == nil && (c.NATS != "" || c.Peer != ""):
		c.NATSTLS = dial
	case own != nil && dial != nil:
		dial.RootCAs = own.RootCAs
		c.NATSTLS = dial
	default:
		c.NATSTLS = own
	}
}

// hint is what a trainer has to be told besides its workload.
func (f *flags) hint(url string) string {
	more := ""
	if url != "nats://127.0.0.1:4222" {
		more += " --server " + url
	}
	if f.tokenFile != "" {
		more += " --token-file " + f.tokenFile
	}
	if f.members != "" {
		more += " --credentials FILE"
	}
	switch {
	case f.tls.CA != "" && f.tls.Cert != "":
		more += " --tls-ca " + f.tls.CA + " --tls-cert FILE --tls-key FILE"
	case f.tls.Cert != "":
		more += " --tls-ca " + f.tls.Cert // which vouches for itself, where no authority is known
	}
	return more
}
