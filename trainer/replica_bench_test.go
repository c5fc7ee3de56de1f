package trainer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/ps"
	"gradbus/schema"
)

// idles is draws with a trainer that does nothing for a while of each batch, as one that waits for a GPU.
type idles struct {
	draws
	idle time.Duration
}

func (w *idles) Lane(step *LaneStep) (float64, error) {
	time.Sleep(w.idle)
	return w.draws.Lane(step)
}

// BenchmarkReplica is how long batches take without and with a ps with replicas, of a trainer that idles for 5 ms in
// each and of one that does not: one table of 128 MiB with its momentum, of which a batch moves 2000 rows. All are in
// this process, over TCP, and the batches of both take turns.
//
//	go test -tags native ./trainer -run '^$' -bench Replica -benchtime 4000x
func BenchmarkReplica(b *testing.B) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	for _, idle := range []time.Duration{5 * time.Millisecond, 0} {
		b.Run(fmt.Sprintf("idle-%v", idle), func(b *testing.B) { benchmarkReplica(b, backend, idle) })
	}
}

func benchmarkReplica(b *testing.B, backend cuda.Backend, idle time.Duration) {
	job := textJob(1, schema.ApplyUpdate)
	job.Parameters, job.Lanes, job.Policy = nil, 1, schema.PolicyRecover
	w := &idles{draws{seed: 1, of: textRows, grads: make([]float32, drawn*textDim)}, idle}
	for i := range w.grads {
		w.grads[i] = float32(i%7) * 1e-3
	}
	serve := func(config ps.Config) *ps.Server {
		server, err := ps.Start(b.Context(), config, ps.Options{Backend: backend})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(server.Close)
		return server
	}
	var sessions []*Session
	for _, name := range []string{"alone", "served"} {
		server := serve(ps.Config{ID: name})
		if name == "served" {
			serve(ps.Config{ID: "replica", Replicas: 1, Peer: server.URL()})
		}
		s, err := Join(b.Context(), Config{Server: server.URL(), Backend: backend}, job)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		sessions = append(sessions, s)
	}
	var took [2][]time.Duration
	turn := func(keep bool) {
		for i, s := range sessions {
			last := time.Now()
			if err := s.Run(b.Context(), w, 20, func(Progress) {
				if keep {
					took[i] = append(took[i], time.Since(last))
				}
				last = time.Now()
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	for began := time.Now(); sessions[1].replicaAt() == ""; turn(false) {
		if time.Since(began) > testTimeout {
			b.Fatal("replica unavailable")
		}
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += 20 {
		turn(true)
	}
	b.StopTimer()
	var middle [2]float64
	for i, name := range []string{"without", "with"} {
		slices.Sort(took[i])
		middle[i] = took[i][len(took[i])/2].Seconds() * 1e3
		b.ReportMetric(middle[i], "ms-p50-"+name)
		b.ReportMetric(took[i][len(took[i])*99/100].Seconds()*1e3, "ms-p99-"+name)
	}
	b.ReportMetric(middle[1]/middle[0], "ratio-p50")
}
