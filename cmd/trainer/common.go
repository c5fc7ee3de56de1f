package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// common is the configuration of every workload's command: the server, the backend, and the output.
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
	save, model      string // --load is model
	saveEvery        uint64
	savedAt          schema.Version // that --save-every has saved last; 0: none
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
	workload

	data  func() (*dataset, error) // reads it, once
	name  string                   // of the workload
	flags *pflag.FlagSet           // of its command

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
func (o *common) addPlace(set *pflag.FlagSet) {
	s := o.shared
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
func (o *common) addTraining(set *pflag.FlagSet, drawn, dense string) {
	s := o.shared
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
	set.StringVar(&o.model, "load", "",
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

// parentFlags are the flags that a process with --spawn does not hand on as they are to the trainers that it starts.
var parentFlags = strings.Fields("help version config server data-host advertise id spawn local shards memory-mib http " +
	"kernel-library gpu gpu-expected gpu-use gpu-state gpu-library inject json save save-every predict dump log-format " +
	"log-level events")

// childArgs returns the arguments of the i-th trainer: the flags of this process, from wherever it had them.
func (o *common) childArgs(i int) []string {
	args := []string{o.name, "--id", fmt.Sprintf("t%d", i)}
	o.flags.VisitAll(func(f *pflag.Flag) {
		if value := f.Value.String(); value != "" && !slices.Contains(parentFlags, f.Name) {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	way := o.way.Of(i)
	args = slices.Concat(args, config.GivenPairs("--data-host", way.DataHost, "--advertise", way.Advertise),
		o.logging.Args(config.LogJSON), o.gpu.Args()) // the log is read and handed on
	if i > 0 {
		return append(args, "--events", eventsResult)
	}
	return append(args, config.GivenPairs("--events", eventsAll, "--save", o.save, "--save-every",
		strconv.FormatUint(o.saveEvery, 10))...)
}

// command completes the command of a workload, which has all of its flags.
func (o *common) command(c *cobra.Command) *cobra.Command {
	o.name, o.flags = c.Name(), c.Flags()
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
		return o.run(c.Context())
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
func (o *common) asks() bool { return o.model != "" && o.predict != "" }

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
	c.Backend, c.Log, c.Writes = backend, o.log, o.writes(job)
	c.OnWaiting = func(missing int) { o.showWaiting(string(job.Name), missing) }
	if o.model != "" {
		if c.From, err = trainer.OpenWeights(o.model, job); err != nil {
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

// left returns the number of batches of a job that remain: all, unless it was resumed.
func left(all uint64, session *trainer.Session) uint64 {
	return all - min(all, uint64(session.Version()))
}

// saveWhileRunning saves the model at a version that has just become the current one, where --save-every says so. A disk
// that fails stops no training.
func (o *common) saveWhileRunning(ctx context.Context, session *trainer.Session, v schema.Version) {
	if first, _ := session.Lanes(); o.saveEvery == 0 || uint64(v)%o.saveEvery != 0 || first != 0 {
		return
	}
	log := o.log.With("job", session.Job().Name, "member", session.Member(), "version", uint64(v), "path", o.save)
	if err := session.Save(ctx, o.save); err != nil {
		log.Error("model not saved", "err", err)
		return
	}
	o.savedAt = v
	log.Info("model saved")
}

// leave ends a session that ended with err, and gives that, or what went wrong with leaving.
func (o *common) leave(ctx context.Context, session *trainer.Session, err error) error {
	if err != nil && o.savedAt > 0 && session.Job().Plan().Capability() == (schema.Capability{}) {
		err = fmt.Errorf("%w %s, which has version %d", err, o.save, o.savedAt)
	}
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

// print writes a result for the parent process.
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

// watchGPUs watches the GPUs where this process computes on one, and gives a context that ends, with the GPU's reason
// as its cause, when it must not any more, until trained is called. It takes some hundred milliseconds where there is a
// GPU, and nothing elsewhere.
func (o *common) watchGPUs(ctx context.Context) (watched context.Context, stop func(), err error) {
	if !o.gpu.Takes(o.backend) && o.gpu.Mode != string(gpu.Require) {
		return ctx, func() {}, o.gpu.Check()
	}
	m, err := o.gpu.Watch(ctx, o.backend, cuda.LacksCUDA(), o.log)
	if err != nil {
		return nil, nil, err
	}
	watched, cancel := context.WithCancelCause(ctx)
	trained, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(fitEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-trained:
				return
			case <-tick.C:
				if err := m.Fit(); err != nil {
					cancel(&unfitError{err})
					return
				}
			}
		}
	}()
	o.gpus, o.watchedFrom = m, time.Now()
	o.endTraining = sync.OnceFunc(func() { close(trained); <-ended })
	return watched, func() { cancel(nil); <-ended; m.Close() }, nil
}

// trained says that the training is over: from now on a fault of the GPU makes what was trained suspect, rather than
// end the process and lose it, and other faults end this process alone.
func (o *common) trained() {
	if o.events != "" {
		_ = report.Event{Trained: true}.Write(o.out) // a parent that is gone ends this process anyway
	}
	if o.endTraining != nil {
		o.endTraining()
	}
}

// blame gives the GPU's reason for an error after the training, where it has one.
func (o *common) blame(err error) error {
	if err == nil || o.gpus == nil {
		return err
	}
	if unfit := o.gpus.Fit(); unfit != nil {
		return fmt.Errorf("%w (%w)", unfit, err)
	}
	return err
}

// fitEvery is the interval at which a trainer checks whether it may continue.
const fitEvery = 200 * time.Millisecond

// unfitError ends a trainer whose GPU is broken.
type unfitError struct{ reason error }

func (e *unfitError) Error() string { return e.reason.Error() }

// because gives the GPU's reason for an error, where that is what ended the trainer.
func because(ctx context.Context, err error) error {
	if err != nil && isUnfit(ctx) {
		return context.Cause(ctx)
	}
	return err
}

func isUnfit(ctx context.Context) bool { return errors.As(context.Cause(ctx), new(*unfitError)) }

// suspectWithin bounds the time for which a save waits for the state of the GPU during the training.
const suspectWithin = 5 * time.Second

// suspect says why what was trained may be wrong; empty where nothing speaks for it. It waits for a word of the GPU
// that is younger than the training.
func (o *common) suspect(ctx context.Context) string {
	if o.gpus == nil {
		return ""
	}
	o.log.Debug("asking the GPU whether its memory was sound")
	text := o.gpus.Doubt(ctx, o.watchedFrom, suspectWithin)
	if text != "" {
		o.log.Warn("what was trained is suspect", "reason", text)
	}
	return text
}

// aside is the work of a workload's command instead of training, with the flags that it accepts.
type aside struct {
	on    func() bool
	takes []string
	why   string // what the others are, and what would be right
}

// always are the flags that mean the same whatever a command does. A kernel library is among them, since it comes from
// the environment to programs that compute nothing, too.
var always = []string{"help", "version", "events", config.FileFlag, "log-format", "log-level", "kernel-library"}

// asking is the aside that queries a saved model; more are further flags of this workload's.
func (o *common) asking(more ...string) aside {
	return aside{o.asks, append(more, "load", "predict", "json"),
		"it is of training, and --predict asks a model that is there: give one of the two"}
}

// dumping is the aside that writes the data to a file, which these flags name.
func dumping(file *string, more ...string) aside {
	return aside{func() bool { return *file != "" }, append(more, "dump"),
		"it is of training, and --dump writes the data and trains nothing: give one of the two"}
}

// idle are the flags that change nothing as they are.
func (o *common) idle(set *pflag.FlagSet) (rules []config.Idle) {
	for _, a := range o.asides {
		rule := config.Idle{When: a.on(), Why: a.why}
		set.VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(a.takes, f.Name) && !slices.Contains(always, f.Name) {
				rule.Flags = append(rule.Flags, f.Name)
			}
		})
		rules = append(rules, rule)
	}
	if o.own != nil {
		rules = append(rules, o.own()...)
	}
	watched := o.gpu.Takes(o.backend) || o.gpu.Mode == string(gpu.Require)
	shardsAlone := !o.shared.Manifest("").Plan().Reduces(schema.ByTrainers)
	return append(append(rules, o.local.idle()...),
		config.Idle{When: shardsAlone, Flags: connect.Between,
			Why: "trainers that send to shards alone listen nowhere: want --reduce trainers with it"},
		config.Idle{When: shardsAlone, Flags: []string{"save-every"},
			Why: "a ps saves versions of the job: give it --checkpoint-dir, or want --reduce trainers with it"},
		config.Idle{When: o.save == "", Flags: []string{"save-every"}, Why: "nothing is saved: want --save with it"},
		config.Idle{When: !watched, Flags: []string{"gpu-expected", "gpu-state", "gpu-library"},
			Why: "no GPU is used here: want --gpu-use with it, or --backend cuda"})
}
