package trainer

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// draws is a workload that computes next to nothing: each batch moves 2000 rows, drawn of so many.
type draws struct {
	seed  uint64
	of    uint64
	grads []float32
}

const drawn = 2000

func (w *draws) Keys(b schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	r := rand.New(rand.NewPCG(w.seed, uint64(b)))
	for range drawn {
		keys[0] = append(keys[0], r.Uint64N(w.of)*(textRows/w.of)) // spread over the table
	}
	return drawn, keys
}

func (w *draws) Lane(step *LaneStep) (float64, error) {
	step.BagGrad(0, cuda.Sum, nil, w.grads)
	return 0, nil
}

// moves is a workload that moves one parameter, which trainers have.
type moves struct{}

func (moves) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) { return 1, keys }

func (moves) Lane(step *LaneStep) (float64, error) {
	step.Grad("w")[0] = 1e-3
	return 0, nil
}

// BenchmarkCheckpoints is how long batches take without checkpoints, with them, and while one is being written: of a
// table of 128 MiB with its momentum, at a server in this process over TCP, one after the other as soon as the one
// before is durable. "few" moves a fiftieth of the rows, so increments follow a full one; "all" moves all, so every one
// is full. Both are in sync, in bounded, and in async, where every one is full. "mean" is of a parameter of 32 MiB that
// the trainer has, with its momentum.
//
//	go test ./trainer -run '^$' -bench Checkpoints -benchtime 20000x
//
// Batches without and with take turns, so that what else the machine does is in both.
func BenchmarkCheckpoints(b *testing.B) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	rows := textJob(1, schema.ApplyUpdate)
	rows.Parameters, rows.Lanes = nil, 1
	for name, of := range map[string]uint64{"few": textRows / 50, "all": textRows} {
		w := &draws{seed: 1, of: of, grads: make([]float32, drawn*textDim)}
		for i := range w.grads {
			w.grads[i] = float32(i%7) * 1e-3
		}
		b.Run(name, func(b *testing.B) { benchmarkCheckpoints(b, backend, rows, w) })
		bounded, async := *rows, *rows
		bounded.Consistency, bounded.Ahead, async.Consistency = schema.ConsistencyBounded, 2, schema.ConsistencyAsync
		b.Run(name+", bounded", func(b *testing.B) { benchmarkCheckpoints(b, backend, &bounded, w) })
		b.Run(name+", async", func(b *testing.B) { benchmarkCheckpoints(b, backend, &async, w) })
	}
	dense := *rows
	dense.Apply, dense.Tables = schema.ApplyMean, nil
	dense.Parameters = []schema.Parameter{{Name: "w", Shape: []int{8 << 20}, Init: schema.Normal(1)}}
	b.Run("mean", func(b *testing.B) { benchmarkCheckpoints(b, backend, &dense, moves{}) })
}

func benchmarkCheckpoints(b *testing.B, backend cuda.Backend, job *schema.Job, w Workload) {
	dir := b.TempDir()
	var sessions []*Session
	for _, config := range []ps.Config{{}, {Checkpoints: checkpoint.Policy{Dir: dir, Batches: 1}}} {
		server, err := ps.Start(b.Context(), config, ps.Options{Backend: backend})
		if err != nil {
			b.Fatal(err)
		}
		defer server.Close()
		s, err := Join(b.Context(), Config{Server: server.URL(), Backend: backend}, job)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		sessions = append(sessions, s)
	}
	var without, between, during []time.Duration
	versions := map[string]bool{}
	b.ResetTimer()
	for done := 0; done < b.N; done += 20 {
		for i, s := range sessions {
			last := time.Now()
			if err := s.Run(b.Context(), w, 20, func(Progress) {
				took := time.Since(last)
				parts, _ := filepath.Glob(filepath.Join(dir, "*", "*", ".s0*")) // what is being written
				switch {
				case i == 0:
					without = append(without, took)
				case len(parts) > 0:
					versions[parts[0]] = true
					during = append(during, took)
				default:
					between = append(between, took)
				}
				last = time.Now()
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	for what, all := range map[string][]time.Duration{"without": without, "between": between, "during": during} {
		slices.Sort(all)
		for _, percent := range []int{50, 99} {
			if n := len(all); n > 0 {
				b.ReportMetric(all[n*percent/100].Seconds()*1e3, fmt.Sprintf("ms-p%d-%s", percent, what))
			}
		}
	}
	b.ReportMetric(float64(len(during)), "batches-during")
	b.ReportMetric(float64(len(versions)), "checkpoints")
}
