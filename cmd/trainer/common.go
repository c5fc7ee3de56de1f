package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/internal/gpu"
	"gradbus/internal/kernelflag"
	"gradbus/internal/process"
	"gradbus/internal/report"
	"gradbus/internal/safetensors"
	"gradbus/internal/settings"
	"gradbus/internal/tensorboard"
	"gradbus/internal/verification"
	"gradbus/local"
	"gradbus/schema"
	"gradbus/trainer"
)

// common is what every workload's command is told: where the server is, what computes, and what to write.
type common struct {
	way              connect.Flags
	id               string
	reconnectTimeout time.Duration
	resume           bool
	windowMiB        int
	backend, isa     string
	threads          int
	verify           verification.Flags
	spawn, json      bool
	save, load       string
	saveEvery        uint64
	tensorboard      string
	predict          string
	gpu              gpu.Flags
	gpus             *gpu.Monitor // nil where this process computes on none
	watchedFrom      time.Time
	endTraining      func() // see trained; nil where no GPU is watched
	events           string // of a trainer that another one started: what it writes
	logging          config.Log
	local            localFlags
	shards           *local.Shards // where --local has them; else nil
	quiet            bool          // another trainer of this process shows progress
	shared           *settings.Shared
	asides           []aside
	own              func() []config.Idle // of the workload; nil for none

	out    io.Writer
	errOut *os.File
	log    *slog.Logger
}

const serverDefault = "nats://127.0.0.1:4222"

// addServer adds the flags of the way to the server.
func (o *common) addServer(set *pflag.FlagSet) {
	o.way.AddServer(set, serverDefault)
	o.way.AddData(set)
	set.DurationVar(&o.reconnectTimeout, "reconnect-timeout", 30*time.Second,
		"`DURATION`: longest outage of a connection to a shard before the session ends")
	set.IntVar(&o.windowMiB, "window-mib", 0,
		"`MIB`: most unacknowledged gradients for each shard; 0 is what the server grants (usually 4)")
}

// addPlace adds the flags of the job's name and size, and of the trainer's place in it.
func (o *common) addPlace(set *pflag.FlagSet, s *settings.Shared) {
	set.StringVar(&s.Job, "job", s.Job, "`NAME`: name of the job")
	set.IntVar(&s.Trainers, "trainers", s.Trainers, "`N`: trainers of the job")
	set.IntVar(&s.Lanes, "lanes", s.Lanes,
		"`N`: lanes of a batch; results depend on it; 0 is 8, or more if there are more trainers")
	set.StringVar(&o.id, "id", "", "`ID`: member id to ask for: t0, t1, ...; empty is the next free one")
	set.BoolVar(&o.resume, "resume", false,
		"start from the newest checkpoint of the job (ps with --checkpoint-dir); all trainers must say so")
	set.BoolVar(&o.spawn, "spawn", false, "start all trainers of the job as child processes")
	o.local.add(set)
}

// addTraining adds the flags of how a job learns. drawn names what follows from the seed; dense is "dense " where the
// workload has tables besides its parameters.
func (o *common) addTraining(set *pflag.FlagSet, s *settings.Shared, drawn, dense string) {
	o.shared = s
	set.Float64Var(&s.LR, "lr", s.LR,
		"`RATE`: learning rate; default 0.001 for adam and adamw, 0.01 for adagrad and rowwise_adagrad")
	set.StringVar(&s.Optimizer, "optimizer", s.Optimizer,
		"`KIND[:OPTIONS]`: sgd, adagrad, rowwise_adagrad, adam, adamw or ftrl, e.g. adam:beta1=0.95; empty is sgd")
	set.StringVar(&s.Schedule, "schedule", s.Schedule,
		"`KIND[:OPTIONS]`: constant, linear, cosine or steps, e.g. cosine:warmup=100,total=2000; empty is constant")
	set.StringVar(&s.Clip, "clip", s.Clip,
		"`KIND:MAX`: value, row (norm of each table row) or global (norm of all; needs --apply mean); empty is none")
	set.Float64Var(&s.Momentum, "momentum", s.Momentum, "`MOMENTUM`: momentum of SGD, 0 or more and below 1")
	set.Uint64Var(&s.Seed, "seed", s.Seed, "`SEED`: determines "+drawn)
	set.StringVar(&s.Reduce, "reduce", s.Reduce,
		"`WHO`: shards sum gradients, or trainers among themselves (needs --apply mean); default is shards")
	set.StringVar(&s.Apply, "apply", s.Apply,
		"`HOW`: update: shards own the "+dense+"parameters and optimizer; mean: trainers do")
	set.StringVar(&s.Consistency, "consistency", schema.ConsistencySync,
		"`MODE`: sync, bounded (see --staleness), async, or grouped (see --group)")
	set.IntVar(&s.Staleness, "staleness", 0,
		"`N`: batches that a trainer may be ahead of the slowest one in bounded, 1 to 16")
	set.IntVar(&s.Group, "group", 0,
		"`N`: contributions that make one update in grouped; 0 is the number of trainers")
	set.StringVar(&s.FailurePolicy, "failure-policy", s.FailurePolicy,
		"`POLICY`: for a lost trainer: fail, wait or recover; empty is recover if that changes no bit")
	set.StringVar(&s.OnNonfinite, "on-nonfinite", schema.NonfiniteFail,
		"`POLICY`: for a lane with a gradient that is not finite: fail ends the job, skip drops the lane")
	set.StringVar(&s.Wire.Gradients, "wire", schema.GradientsFloat32,
		"`DTYPE`: gradients on the wire: float32, bfloat16 or float16")
	set.BoolVar(&s.Wire.ErrorFeedback, "error-feedback", false,
		"add the rounding error of a "+dense+"gradient to the next batch's (16-bit --wire)")
}

// addOutput adds the flags of the arithmetic and of what is written.
func (o *common) addOutput(set *pflag.FlagSet) {
	set.StringVar(&o.backend, "backend", "auto", "`NAME`: what computes: "+strings.Join(cuda.Names(), ", "))
	set.StringVar(&o.isa, "isa", "",
		"`NAME`: instruction set of the cpu backend: baseline, avx2 or avx512; empty is the best")
	set.IntVar(&o.threads, "threads", 1,
		"`N`: threads of one call of the cpu backend; results do not depend on it")
	kernelflag.Add(set)
	o.verify.Add(set)
	o.gpu.Add(set)
	set.BoolVar(&o.json, "json", false, "print one line of JSON and nothing else on standard output")
	set.StringVar(&o.save, "save", "",
		"`PATH`: write the trained model to this safetensors file, replacing an existing one")
	set.Uint64Var(&o.saveEvery, "save-every", 0,
		"`N`: batches between two saves to --save, with --reduce trainers; 0 saves at the end only")
	set.StringVar(&o.load, "load", "",
		"`PATH`: safetensors model to start from, or to ask with --predict")
	set.StringVar(&o.tensorboard, "tensorboard", "",
		"`DIR`: write TensorBoard curves to DIR/JOB-RUN/MEMBER")
	o.logging.Add(set)
	set.StringVar(&o.events, "events", "", "write events instead of text")
	_ = set.MarkHidden("events") // of the protocol between --spawn and what it starts
}

// openBackend opens the arithmetic, and beside it what checks it where it is to be checked.
func (o *common) openBackend() (cuda.Backend, error) {
	wrongBits, err := o.gpu.WrongBits()
	if err != nil {
		return nil, err
	}
	return cuda.Open(o.verify.Options(cuda.Options{Name: o.backend, ISA: o.isa, Threads: o.threads, Log: o.log},
		wrongBits))
}

// childArgs are the flags of the i-th trainer that every workload has: those of this process, from wherever it had
// them.
func (o *common) childArgs(i int, s *settings.Shared) []string {
	args := config.GivenPairs("--job", s.Job, "--trainers", strconv.Itoa(s.Trainers),
		"--lanes", strconv.Itoa(s.Lanes), "--epochs", strconv.Itoa(s.Epochs), "--lr", settings.Number(s.LR),
		"--momentum", settings.Number(s.Momentum), "--optimizer", s.Optimizer, "--schedule",
		s.Schedule, "--clip", s.Clip, "--seed", strconv.FormatUint(s.Seed, 10),
		"--apply", s.Apply, "--reduce", s.Reduce, "--consistency", s.Consistency, "--staleness", strconv.Itoa(s.Staleness),
		"--group", strconv.Itoa(s.Group),
		"--failure-policy", s.FailurePolicy, "--on-nonfinite", s.OnNonfinite,
		"--wire", s.Wire.Gradients, "--id", fmt.Sprintf("t%d", i), "--backend", o.backend, "--isa", o.isa,
		"--threads", strconv.Itoa(o.threads), "--reconnect-timeout", o.reconnectTimeout.String(), "--window-mib",
		strconv.Itoa(o.windowMiB), "--load", o.load, "--tensorboard", o.tensorboard)
	args = append(args, "--error-feedback="+strconv.FormatBool(s.Wire.ErrorFeedback))
	way := o.way.Of(i)
	args = append(args, way.Args()...)
	if o.resume {
		args = append(args, "--resume")
	}
	args = append(args, o.logging.Args(config.LogJSON)...) // which is read and handed on
	args = append(args, "--verify", strconv.Itoa(o.verify.OneIn))
	args = append(args, o.gpu.Args()...)
	if i > 0 {
		return append(args, "--events", eventsResult)
	}
	return append(args, config.GivenPairs("--events", eventsAll, "--save", o.save, "--save-every",
		strconv.FormatUint(o.saveEvery, 10))...)
}

// workloadCommand is the command of a workload: it reads the flags' file, and then runs.
func (o *common) workloadCommand(c *cobra.Command, run func(ctx context.Context) error) *cobra.Command {
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unexpected argument %q: settings are flags (see trainer %s --help)", args[0], c.Name())
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.out, o.errOut = c.OutOrStdout(), os.Stderr
		var err error
		if o.log, err = o.logging.Logger(o.errOut); err != nil {
			return err
		}
		if err := o.local.check(); err != nil {
			return err
		}
		if o.events == "" { // else it is told all flags by who started it
			if err := config.RefuseIdle(c.Flags(), o.idle(c.Flags())); err != nil {
				return err
			}
		}
		given := func(flag string) bool { // a workload's own optimizer has its own rate
			return c.Flags().Changed(flag) || flag == "lr" && !c.Flags().Changed("optimizer")
		}
		if err := o.shared.Resolve(given); err != nil {
			return err
		}
		return run(c.Context())
	}
	c.Flags().SortFlags = false
	config.Sectioned(c, []config.Section{
		{Title: "Connection", First: "server"}, {Title: "Job", First: "job"},
		{Title: "Data and model", First: "input"},
		{Title: "Learning", First: "lr"}, {Title: "Arithmetic", First: "backend"}, {Title: "GPUs", First: "gpu"},
		{Title: "Results, log and settings", First: "json"},
	})
	return c
}

// asks tells that a model is asked, and nothing trained.
func (o *common) asks() bool { return o.load != "" && o.predict != "" }

// join makes this process a trainer of a job.
func (o *common) join(ctx context.Context, backend cuda.Backend, job *schema.Job) (*trainer.Session, error) {
	c, err := o.way.Config(o.log)
	if err != nil {
		return nil, err
	}
	if o.gpus != nil {
		c.GPUs = verification.GPUs(backend, o.gpus)
	}
	c.Member, c.WindowBytes = schema.Member(o.id), o.windowMiB<<20
	c.ReconnectTimeout, c.Resume = o.reconnectTimeout, o.resume
	if o.saveEvery > 0 {
		c.SavePath, c.SaveEvery = o.save, o.saveEvery
	}
	c.Backend, c.Log, c.Writes = backend, o.log, o.writes(job)
	c.OnWaiting = func(missing int) { o.showWaiting(string(job.Name), missing) }
	if o.load != "" {
		if c.From, err = trainer.OpenWeights(o.load, job); err != nil {
			return nil, fmt.Errorf("--load: %w", err)
		}
	}
	if o.shards != nil {
		there := o.shards.Config()
		c.Server, c.Bus, c.Route = there.Server, there.Bus, ""
	}
	if o.events != "" { // all trainers of the job are on this host
		config.ShareScheduler(job.Trainers)
	}
	return trainer.Join(ctx, c, job)
}

// writes is where this process writes while it trains, and when it has trained.
func (o *common) writes(job *schema.Job) []process.Folder {
	all := []process.Folder{
		// also where one is there, which the new one replaces when it is whole
		{Path: o.save, Use: "models", NeedBytes: 4 * job.Values()},
		{Path: o.tensorboard, Use: "curves"},
	}
	if o.gpus != nil {
		all = append(all, process.Folder{Path: o.gpus.KeptAt(), Use: "state of GPUs"})
	}
	return all
}

// left is how many of the batches of a job are to come: all, unless it was resumed.
func left(all uint64, session *trainer.Session) uint64 {
	return all - min(all, uint64(session.Version()))
}

// leave ends a session that ended with err, and gives that, or what went wrong with leaving.
func leave(ctx context.Context, session *trainer.Session, err error) error {
	reason := err
	switch {
	case err != nil && isUnfit(ctx):
		err = because(ctx, err)
		reason = err
	case ctx.Err() != nil:
		reason = trainer.ErrInterrupted
	}
	if leaving := session.Abort(reason); err == nil {
		err = leaving
	}
	return err
}

func (o *common) showWaiting(job string, missing int) {
	switch {
	case o.quiet:
	case o.events != "":
		_ = report.Event{Waiting: &missing}.Write(o.out) // a parent that is gone ends this process anyway
	case missing == 1:
		fmt.Fprintf(o.errOut, "waiting for 1 more trainer of job %s\n", job)
	case missing > 1:
		fmt.Fprintf(o.errOut, "waiting for %d more trainers of job %s\n", missing, job)
	}
}

// print writes a result for whoever started this process.
func (o *common) print(result report.Result) error {
	switch {
	case o.events != "":
		return report.Event{Result: &result}.Write(o.out)
	case o.json:
		return result.PrintJSON(o.out)
	}
	return result.Print(o.out)
}

// writables fails where what is to be written cannot be, so that this is known before the training and not after it.
func (o *common) writables() error {
	if o.save != "" {
		if err := safetensors.CheckSave(o.save); err != nil {
			return fmt.Errorf("--save: %w", err)
		}
	}
	if o.tensorboard == "" {
		return nil
	}
	return tensorboard.Check(o.tensorboard)
}
