package hybrid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gradbus"
	"gradbus/bench/harness"
	"gradbus/bench/machine"
	"gradbus/cuda"
	"gradbus/internal/connect"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// Run runs the system as often as c.Runs says. What members say goes to out or errs, as harness.Flags.Harness tells.
func Run(ctx context.Context, c Config, out, errs io.Writer) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := newResult(c)
	for range c.Runs {
		found, err := harness.Once[measured](ctx, &c.Flags, harness.System{Title: "hybrid", Roles: Roles(),
			Servers: c.Servers, Procs: c.procs(), Role: trainerRole, Trainers: c.Trainers, Waits: waits,
			Settings: func(way connect.Flags, member schema.Member) any {
				return settings{Config: c, Way: way, Member: member}
			}}, out, errs)
		if err != nil {
			return nil, err
		}
		if err := r.add(found); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// procs is for harness.Member.LimitProcs: where processes outnumber the cores of this host, one, since a second would
// be busy elsewhere.
func (c *Config) procs() int {
	if c.Servers+c.TrainersHere(c.Trainers) > runtime.NumCPU() {
		return 1
	}
	return 0
}

// waits is the number of times that trainers wait for each other: before the measurement, after it, and after the
// weights were read.
const waits = 3

var errNothing = errors.New("no trainer ran here")

const trainerRole = "hybrid-trainer"

// Roles returns the roles of members of this system.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{trainerRole: train}
}

// settings are those of one trainer.
type settings struct {
	Config Config        `json:"config"`
	Way    connect.Flags `json:"way"`
	Member schema.Member `json:"member"` // empty: the next that is free
}

// measured is the result of one trainer.
type measured struct {
	Member  schema.Member        `json:"member"`
	Epochs  []float64            `json:"epochs"`  // seconds of each
	Samples []int                `json:"samples"` // of this trainer, in each
	Loss    float64              `json:"loss"`    // mean over the last epoch
	Digest  string               `json:"digest"`
	Dense   string               `json:"dense"` // what multiplied matrices
	Stats   schema.TrainerReport `json:"stats"`
}

// train is the role of a trainer.
func train(ctx context.Context, m *harness.Member) (result any, err error) {
	var s settings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	m.LimitProcs(s.Config.procs())
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	defer backend.Close()
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{Library: s.Config.Dense})
	if err != nil {
		return nil, err
	}
	defer dense.Close()
	w, err := newWorkload(&s.Config, backend, dense)
	if err != nil {
		return nil, err
	}
	config, err := s.Way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	config.Member, config.Backend = s.Member, backend
	session, err := trainer.Join(ctx, config, s.Config.job())
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := session.Abort(err); err == nil && e != nil {
			err = e
		}
	}()
	others := connect.Meeting{Config: config, Session: session, Apart: s.Config.Apart(s.Config.Trainers)}
	wait := func(occasion string) error {
		if err := m.Wait(ctx); err != nil {
			return err
		}
		return others.Wait(ctx, occasion)
	}
	found, err := measure(ctx, m, session, w, &s.Config, wait)
	if err != nil {
		return nil, err
	}
	found.Dense = strings.TrimSpace(dense.Name())
	return found, nil
}

// measure runs the warm-up, waits for the others, and times every epoch.
func measure(ctx context.Context, m *harness.Member, session *trainer.Session, w *workload, c *Config,
	wait func(occasion string) error) (*measured, error) {
	if err := session.Run(ctx, w, uint64(c.Warmup*c.Batches), nil); err != nil {
		return nil, err
	}
	if err := wait("warm"); err != nil {
		return nil, err
	}
	found := &measured{Member: session.Member()}
	begun, samples, losses, last := time.Now(), 0, 0.0, 0
	before := session.Stats()
	err := session.Run(ctx, w, uint64(c.Epochs*c.Batches), func(p trainer.Progress) {
		samples, losses = samples+p.Samples, losses+p.Loss*float64(p.Samples)
		if p.Done%uint64(c.Batches) != 0 {
			return
		}
		now := time.Now()
		found.Epochs, found.Samples = append(found.Epochs, now.Sub(begun).Seconds()), append(found.Samples, samples)
		found.Loss, last = losses/float64(samples), samples
		begun, samples, losses = now, 0, 0
		m.Progress(len(found.Epochs), c.Epochs)
	})
	if err != nil {
		return nil, err
	}
	found.Stats = less(session.Stats(), before)
	if last == 0 {
		return nil, fmt.Errorf("an epoch without samples")
	}
	if err := wait("trained"); err != nil { // else who is through would change rows that another one reads
		return nil, err
	}
	digest, err := session.Digest(ctx)
	if err != nil {
		return nil, err
	}
	found.Digest = fmt.Sprintf("%x", digest)
	return found, wait("read")
}

// less returns the counts since before.
func less(now, before schema.TrainerReport) schema.TrainerReport {
	now.Batches -= before.Batches
	now.KeysSeconds -= before.KeysSeconds
	now.LookupSeconds -= before.LookupSeconds
	now.ComputeSeconds -= before.ComputeSeconds
	now.SendSeconds -= before.SendSeconds
	now.ResultSeconds -= before.ResultSeconds
	now.Traffic.MessagesSent -= before.Traffic.MessagesSent
	now.Traffic.MessagesReceived -= before.Traffic.MessagesReceived
	now.Traffic.BytesSent -= before.Traffic.BytesSent
	now.Traffic.BytesReceived -= before.Traffic.BytesReceived
	return now
}

// workload is the model and its data.
type workload struct {
	trainer.NetWorkload
	config *Config

	batches map[lane.Lane]*batch // of the lanes that this trainer computes, new for each batch
	other   batch                // of a lane that another one may compute
	sizes   []int                // of all lanes
	x       []float32
	part    []float32 // of one table
	tables  int
}

func newWorkload(c *Config, backend cuda.Backend, dense *cuda.Dense) (*workload, error) {
	net, err := nn.NewNet(c.model(), []int{c.inputs()}, nn.Env{Backend: backend, Dense: dense})
	if err != nil {
		return nil, err
	}
	net.GradX = true
	loss := nn.NewCrossEntropy(backend, classes)
	w := &workload{config: c, batches: map[lane.Lane]*batch{}, tables: len(c.job().Tables)}
	w.NetWorkload = trainer.NetWorkload{Net: net, InputGrad: w.giveBack,
		Input: func(step *trainer.LaneStep) ([]float32, error) { return w.pooled(step), nil },
		Loss: func(step *trainer.LaneStep, y, gradY []float32) (float64, error) {
			sum, err := loss.Loss(y, w.batches[step.Lane].targets, gradY)
			multiply(gradY, w.scale(step))
			return sum, err
		}}
	return w, nil
}

// Keys implements trainer.Workload: the same ids for every table.
func (w *workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	x := w.batches[l]
	if x == nil {
		x = new(batch)
		w.batches[l] = x
	}
	x.draw(w.config.Seed, uint64(b), uint64(l), w.config.Embeddings)
	for i := range keys {
		keys[i] = append(keys[i], x.ids...)
	}
	return len(x.targets), keys
}

// Bags implements trainer.Bagged.
func (w *workload) Bags(_ schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	for i := range offsets {
		offsets[i] = append(offsets[i], w.batches[l].offsets...)
	}
	return offsets
}

// pooled is the input of the dense part.
func (w *workload) pooled(step *trainer.LaneStep) []float32 {
	if w.tables == 1 {
		return step.Pooled(0)
	}
	dim, width := w.config.Dim, w.config.inputs()
	w.x = grown(w.x, step.Samples*width)
	for t := range w.tables {
		rows := step.Pooled(schema.Table(t))
		for i := range step.Samples {
			copy(w.x[i*width+t*dim:i*width+(t+1)*dim], rows[i*dim:])
		}
	}
	return w.x
}

// scale returns the factor of a lane's gradient by which the mean over all lanes becomes the requested one.
func (w *workload) scale(step *trainer.LaneStep) float32 {
	if w.config.Mean != harness.MeanLanes {
		return 1
	}
	w.sizes = w.sizes[:0]
	for l := range uint64(w.config.Trainers) {
		w.other.draw(w.config.Seed, uint64(step.Batch), l, w.config.Embeddings)
		w.sizes = append(w.sizes, len(w.other.targets))
	}
	return harness.LaneScale(w.sizes, int(step.Lane))
}

// tableGrad is the gradient of the input as tables get it. In modeAsync no mean is taken of them: each trainer's is
// applied as it is.
func (w *workload) tableGrad(step *trainer.LaneStep, gradX []float32) []float32 {
	if w.config.Mode == modeAsync {
		multiply(gradX, 1/w.scale(step))
	}
	return gradX
}

func multiply(values []float32, by float32) {
	if by == 1 {
		return
	}
	for i := range values {
		values[i] *= by
	}
}

// giveBack gives the gradient of the input to the tables.
func (w *workload) giveBack(step *trainer.LaneStep, gradX []float32) {
	gradX = w.tableGrad(step, gradX)
	if w.tables == 1 {
		step.PooledGrad(0, gradX)
		return
	}
	dim, width := w.config.Dim, w.config.inputs()
	w.part = grown(w.part, step.Samples*dim)
	for t := range w.tables {
		for i := range step.Samples {
			copy(w.part[i*dim:(i+1)*dim], gradX[i*width+t*dim:])
		}
		step.PooledGrad(schema.Table(t), w.part)
	}
}

// grown gives n elements that reuse s where it is large enough.
func grown(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// batch is one trainer's: ids, where each bag of them begins and the last one ends, and the class of each bag.
type batch struct {
	ids     []uint64
	offsets []int64 // [bags+1]
	targets []int32 // [bags]
}

// draw makes the batch of a number and a lane: 20 to 50 ids, cut into bags of 1 to 10, the last of which may be
// shorter. It is a pure function of its arguments, and reuses the memory.
func (x *batch) draw(seed uint64, number uint64, lane uint64, embeddings int) {
	random := philox.New(seed, "hybrid", number, lane, 0)
	n := idsMin + int(random.Below(idsMax-idsMin+1))
	x.ids, x.offsets, x.targets = x.ids[:0], x.offsets[:0], x.targets[:0]
	for range n {
		x.ids = append(x.ids, uint64(random.Below(uint32(embeddings))))
	}
	for at := 0; at < n; at += 1 + int(random.Below(bagMax)) {
		x.offsets, x.targets = append(x.offsets, int64(at)), append(x.targets, int32(random.Below(classes)))
	}
	x.offsets = append(x.offsets, int64(n))
}

// Result is the result over all runs.
type Result struct {
	P50              float64 `json:"p50_seconds_per_epoch"` // over the epochs of all trainers
	P75              float64 `json:"p75_seconds_per_epoch"`
	P90              float64 `json:"p90_seconds_per_epoch"`
	P95              float64 `json:"p95_seconds_per_epoch"`
	SamplesPerSecond float64 `json:"samples_per_second"` // all samples of all trainers, by the time that the slowest took
	Trainers         int     `json:"trainers"`
	Servers          int     `json:"servers"`
	Mode             string  `json:"mode"`
	Placement        string  `json:"placement"`
	Loss             float64 `json:"loss"` // mean over the last epoch
	WeightsSHA256    string  `json:"weights_sha256"`
	Dense            string  `json:"dense"` // what multiplied matrices
	Runs             int     `json:"runs"`

	config Config
	rows   []row
	all    row
	time   float64 // of the slowest trainer, over all runs
	stats  schema.TrainerReport
}

// row is the epochs of one trainer.
type row struct {
	name    string
	epochs  []float64
	samples int
}

func newResult(c Config) *Result {
	return &Result{Trainers: c.Trainers, Servers: c.Servers, Mode: c.Mode, Placement: c.Placement, config: c,
		all: row{name: "All"}}
}

// add takes one run.
func (r *Result) add(found []measured) error {
	if len(found) == 0 {
		return errNothing
	}
	r.Runs++
	slowest, losses := 0.0, 0.0
	for i := range found {
		m := &found[i]
		at := slices.IndexFunc(r.rows, func(x row) bool { return x.name == string(m.Member) })
		if at < 0 {
			at = len(r.rows)
			r.rows = append(r.rows, row{name: string(m.Member)})
		}
		total, samples := 0.0, 0
		for k, seconds := range m.Epochs {
			total, samples = total+seconds, samples+m.Samples[k]
		}
		r.rows[at].epochs, r.rows[at].samples = append(r.rows[at].epochs, m.Epochs...), r.rows[at].samples+samples
		r.all.epochs, r.all.samples = append(r.all.epochs, m.Epochs...), r.all.samples+samples
		slowest, losses = max(slowest, total), losses+m.Loss
		if m.Digest != found[0].Digest {
			return fmt.Errorf("%s has other weights than %s: %s and %s", m.Member, found[0].Member, m.Digest, found[0].Digest)
		}
	}
	r.time += slowest
	r.Loss, r.WeightsSHA256, r.Dense = losses/float64(len(found)), found[0].Digest, found[0].Dense
	r.SamplesPerSecond = float64(r.all.samples) / r.time
	for i, at := range []*float64{&r.P50, &r.P75, &r.P90, &r.P95} {
		*at = harness.Percentile(r.all.epochs, shown[i])
	}
	r.stats = found[0].Stats
	return nil
}

var shown = []float64{50, 75, 90, 95}

// Print writes the table: seconds an epoch at each percentile, and the rate that is.
func (r *Result) Print(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := ""
	for _, p := range shown {
		head += fmt.Sprintf("p%.0f s\tsamples/s\t", p)
	}
	fmt.Fprintf(w, "\t%s\n", head)
	for _, x := range append(slices.Clone(r.rows), r.all) {
		fmt.Fprintf(w, "%s\t%s\n", x.name, x.cells(len(r.rows)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s := &r.stats
	_, err := fmt.Fprintf(to, "\n%.0f samples/s over all; loss %.4f; weights %.12s; dense part by %s\n"+
		"a batch of the first trainer: keys %.2f ms, rows %.2f, compute %.2f, send %.2f, results %.2f; %d messages out, %d "+
		"in, %.0f KB out\n",
		r.SamplesPerSecond, r.Loss, r.WeightsSHA256, r.Dense,
		ms(s, s.KeysSeconds), ms(s, s.LookupSeconds), ms(s, s.ComputeSeconds),
		ms(s, s.SendSeconds), ms(s, s.ResultSeconds),
		s.Traffic.MessagesSent/max(1, s.Batches), s.Traffic.MessagesReceived/max(1, s.Batches),
		float64(s.Traffic.BytesSent)/1000/float64(max(1, s.Batches)))
	return err
}

func ms(s *schema.TrainerReport, seconds schema.Real) float64 {
	return 1000 * float64(seconds) / float64(max(1, s.Batches))
}

// cells are one line's. The row of all has the epochs of every trainer: its rate is that of all of them together.
func (x *row) cells(trainers int) string {
	text := ""
	perEpoch := float64(x.samples) / float64(len(x.epochs))
	if x.name == "All" {
		perEpoch *= float64(trainers)
	}
	for _, p := range shown {
		v := harness.Percentile(x.epochs, p)
		text += fmt.Sprintf("%.4f\t%.0f\t", v, perEpoch/v)
	}
	return text
}

// Banner writes where and with what it is measured.
func Banner(to io.Writer, c *Config) error {
	here := machine.This()
	_, err := fmt.Fprintf(to, "gradbus %s, %s, %s\n%s, %d cores\n%s\n%d trainers, %d servers, embeddings %d x %d by "+
		"%s, %d epochs of %d batches after %d of warm-up\ntables %s: %s\n\n",
		gradbus.Version, here.Go, here.Kernel, here.CPU, here.Cores, machine.TheseProcessors(),
		c.Trainers, c.Servers, c.Embeddings, c.inputs(), c.Placement, c.Epochs, c.Batches, c.Warmup, c.Mode,
		c.seen())
	return err
}

// seen describes the contents of a trainer's rows.
func (c *Config) seen() string {
	if c.Mode == modeSync {
		return "the mean of all trainers' gradients is applied once a batch; the next rows have it"
	}
	return "a trainer's gradients are applied when they arrive; its next rows have all of its own updates"
}
