package hybrid

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/connect"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

const trainerRole = "hybrid-trainer"

// Roles are what the members of this system can be.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{trainerRole: train}
}

// settings are those of one trainer.
type settings struct {
	Config Config        `json:"config"`
	Way    connect.Flags `json:"way"`
	Member schema.Member `json:"member"` // empty: the next that is free
}

// measured is what one trainer found.
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

// less is what was counted since before.
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

// scale is what a lane's gradient is multiplied by so that the mean over all lanes is the one that is wanted.
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
