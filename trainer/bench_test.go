package trainer

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
)

// text is a workload of the size of examples/packages: bags of about ten of 262,144 rows of 64 values, Zipf-distributed
// as words are, a linear layer to 60 classes, batches of 256 samples in 4 lanes. Its samples are drawn beforehand.
type text struct {
	bag                    *nn.EmbeddingBag
	linear                 *nn.Linear
	loss                   *nn.CrossEntropy
	lanes                  [][]textLane // [batch modulo its length][lane]
	pooled, logits, gl, gp []float32
}

type textLane struct {
	keys    []uint64
	offsets []int64
	targets []int32
}

const (
	textRows, textDim, textClasses = 262144, 64, 60
	textBatch, textLanes           = 256, 4
)

func newText(backend cuda.Backend) *text {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 8, textRows-1)
	w := &text{bag: nn.NewEmbeddingBag(backend, textDim, cuda.Mean), linear: nn.NewLinear(backend, textDim, textClasses),
		loss: nn.NewCrossEntropy(backend, textClasses), lanes: make([][]textLane, 64)}
	const n = textBatch / textLanes
	w.pooled, w.gp = make([]float32, n*textDim), make([]float32, n*textDim)
	w.logits, w.gl = make([]float32, n*textClasses), make([]float32, n*textClasses)
	for b := range w.lanes {
		w.lanes[b] = make([]textLane, textLanes)
		for l := range w.lanes[b] {
			t := &w.lanes[b][l]
			t.offsets = append(t.offsets, 0)
			for range n {
				for range 5 + random.IntN(11) {
					t.keys = append(t.keys, schemaMix(zipf.Uint64()))
				}
				t.offsets, t.targets = append(t.offsets, int64(len(t.keys))), append(t.targets, int32(random.IntN(textClasses)))
			}
		}
	}
	return w
}

// schemaMix spreads frequent words over the table, as hashing does.
func schemaMix(word uint64) uint64 { return word * 0x9e3779b97f4a7c15 >> 46 }

func textJob(trainers int, apply string) *schema.Job {
	return &schema.Job{Name: "text", Workload: "text", Seed: 1, Trainers: trainers, Lanes: textLanes,
		Consistency: schema.ConsistencySync,
		Apply:       apply, Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytes,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5, Momentum: 0.9},
		Parameters: []schema.Parameter{
			{Name: "weight", Shape: []int{textClasses, textDim}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.125}},
			{Name: "bias", Shape: []int{textClasses}, Init: schema.Init{Kind: schema.InitUniform, Scale: 0.125}}},
		Tables: []schema.TableSpec{{Name: "words", Rows: textRows, Dim: textDim, Partitions: schema.Partitions,
			Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}}}}
}

func (w *text) at(b schema.Batch, l lane.Lane) *textLane { return &w.lanes[int(b)%len(w.lanes)][l] }

func (w *text) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	t := w.at(b, l)
	keys[0] = append(keys[0], t.keys...)
	return len(t.targets), keys
}

func (w *text) Lane(step *LaneStep) (float64, error) {
	t, rows, ids, weight := w.at(step.Batch, step.Lane), step.Rows(0), step.IDs(0), step.Param("weight")
	if err := w.bag.Forward(rows, ids, t.offsets, w.pooled); err != nil {
		return 0, err
	}
	if err := w.linear.Forward(weight, step.Param("bias"), w.pooled, w.logits); err != nil {
		return 0, err
	}
	loss, err := w.loss.Loss(w.logits, t.targets, w.gl)
	if err == nil {
		err = w.linear.BackwardParams(w.pooled, w.gl, step.Grad("weight"), step.Grad("bias"))
	}
	if err != nil {
		return 0, err
	}
	step.Done("bias")
	step.Done("weight")
	if err := w.linear.BackwardInput(weight, w.gl, w.gp); err != nil {
		return 0, err
	}
	step.BagGrad(0, w.bag.Mode, t.offsets, w.gp)
	return loss, nil
}

// BenchmarkRun is whole batches, with the server and all trainers in this process over TCP: what an operation costs all
// of them together.
func BenchmarkRun(b *testing.B) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	for _, shards := range []int{1, 2} {
		for _, trainers := range []int{1, 2} {
			b.Run(fmt.Sprintf("backend=%s/shards=%d/trainers=%d", backend.Name(), shards, trainers), func(b *testing.B) {
				server, err := ps.Start(b.Context(), ps.Config{Shards: shards}, ps.Options{Backend: backend})
				if err != nil {
					b.Fatal(err)
				}
				defer server.Close()
				benchmarkRun(b, server, backend, trainers)
			})
		}
	}
}

func benchmarkRun(b *testing.B, server *ps.Server, backend cuda.Backend, trainers int) {
	var all, joined sync.WaitGroup
	stats, begin := make([]schema.TrainerReport, trainers), make(chan struct{})
	joined.Add(trainers)
	for i := range trainers {
		all.Go(func() {
			s, err := Join(b.Context(), Config{Server: server.URL(), Backend: backend, Member: schema.TrainerMember(i)},
				textJob(trainers, schema.ApplyUpdate))
			if err != nil {
				b.Error(err)
				joined.Done()
				return
			}
			w := newText(backend)
			joined.Done()
			<-begin
			if err := s.Run(b.Context(), w, uint64(b.N), nil); err != nil {
				b.Error(err)
			}
			stats[i] = s.Stats()
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	joined.Wait()
	b.ReportAllocs()
	b.ResetTimer()
	close(begin)
	all.Wait()
	b.StopTimer()
	per := func(name string, d float64) { b.ReportMetric(d/float64(b.N)/1e3, name) }
	b.ReportMetric(float64(b.N)*textBatch/b.Elapsed().Seconds(), "samples/s")
	per("keys-us", 1e9*float64(stats[0].KeysSeconds))
	per("rows-us", 1e9*float64(stats[0].LookupSeconds))
	per("compute-us", 1e9*float64(stats[0].ComputeSeconds))
	per("send-us", 1e9*float64(stats[0].SendSeconds))
	per("result-us", 1e9*float64(stats[0].ResultSeconds))
	b.ReportMetric(float64(stats[0].Traffic.BytesSent+stats[0].Traffic.BytesReceived)/float64(b.N), "B/batch")
}
