package trainer

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gradbus/cuda"
	"gradbus/ps"
	"gradbus/schema"
)

// spoiling is a backend one of whose results has a wrong bit: what the n-th call of a method writes.
type spoiling struct {
	cuda.Backend
	method string
	calls  atomic.Int64 // of the method that wrote something
	at     int64
}

func (s *spoiling) spoil(method string, out cuda.Vector) {
	if method != s.method || out.Len() == 0 || s.calls.Add(1) != s.at {
		return
	}
	var bits [1]float32
	one := out.Slice(out.Len()/2, out.Len()/2+1)
	if s.Copy(cuda.Float32s(bits[:]), one) != nil {
		panic("no float32")
	}
	bits[0] = math.Float32frombits(math.Float32bits(bits[0]) ^ 1<<3)
	if s.Copy(one, cuda.Float32s(bits[:])) != nil {
		panic("no float32")
	}
}

func (s *spoiling) ApplyDense(a cuda.ApplyDense) error {
	err := s.Backend.ApplyDense(a)
	s.spoil("ApplyDense", a.Out)
	return err
}

func (s *spoiling) AverageApply(a cuda.AverageApply) error {
	err := s.Backend.AverageApply(a)
	s.spoil("AverageApply", a.Out)
	return err
}

func (s *spoiling) ApplyRows(a cuda.ApplyRows) error {
	err := s.Backend.ApplyRows(a)
	s.spoil("ApplyRows", a.Out)
	return err
}

func (s *spoiling) Average(a cuda.Average) error {
	err := s.Backend.Average(a)
	s.spoil("Average", a.Out)
	return err
}

func (s *spoiling) Merge(a cuda.Merge) (int, error) {
	n, err := s.Backend.Merge(a)
	s.spoil("Merge", a.OutRows.Slice(0, n*a.Dim))
	return n, err
}

// spoilt is such a backend with every block checked.
func spoilt(t *testing.T, method string, at int64) *cuda.Verified {
	t.Helper()
	v, err := cuda.Verify(&spoiling{Backend: testBackend(t), method: method, at: at}, testBackend(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// P6: wherever parameters change, on a shard or on a trainer, one wrong bit in what was computed ends the job with what
// differed and where, before anybody learns from it: until then all have computed what the oracle has.
func TestWrongArithmeticIsFoundWhereverItIs(t *testing.T) {
	const lanes, batches = 6, 7
	_, losses := toyOutcome(t, lanes, batches)
	for i, c := range []struct {
		on, method string
		route      int // -1 is mode update
		at         int64
		want       []string
	}{
		{"ps", "AverageApply", -1, 5, []string{"average apply: parameters", `parameter "`}},
		{"ps", "ApplyRows", -1, 6, []string{"apply rows: parameters", `table "`, "key "}},
		{"ps", "Merge", -1, 4, []string{"merge: sum", `table "`, "key "}},
		{"ps", "Average", 0, 6, []string{"average: sum", `parameter "`}},
		{"trainer", "ApplyDense", 0, 7, []string{"apply dense: parameters", `parameter "`}},
		{"trainer", "ApplyRows", 1, 3, []string{"apply rows: parameters", `table "`, "key "}},
		{"trainer", "ApplyDense", 4, 5, []string{"apply dense: parameters", `parameter "`}},
		{"trainer", "Average", 4, 6, []string{"average: sum"}},
		{"trainer", "Merge", 4, 9, []string{"merge: sum"}},
	} {
		t.Run(fmt.Sprintf("%s on %s, route %d", c.method, c.on, c.route), func(t *testing.T) {
			job := toyJob(fmt.Sprintf("wrong-%d", i), 2, lanes, schema.ApplyUpdate)
			if c.route >= 0 {
				job = routeJob(string(job.Name), c.route, 2, lanes)
			}
			backends := map[string]cuda.Backend{"ps": testBackend(t), "trainer": testBackend(t)}
			wrong := spoilt(t, c.method, c.at)
			backends[c.on] = wrong
			server, err := ps.Start(testContext(t), ps.Config{Shards: 1, Deadline: unhurried},
				ps.Options{Backend: backends["ps"], Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			out := [2]outcome{}
			var all sync.WaitGroup
			for k := range out {
				config := patient(Config{Server: server.URL(), Bus: busOf(server.URL()), Member: schema.TrainerMember(k),
					Backend: testBackend(t)})
				if k == 1 {
					config.Backend = backends["trainer"]
				}
				all.Go(func() { out[k] = train(testContext(t), config, job, newToy(t, job), batches) })
			}
			all.Wait()
			for k, o := range out {
				if o.err == nil {
					t.Fatalf("trainer %d ended well, with weights %x", k, o.digest[:6])
				}
				for _, word := range append(c.want, "verification failed", "in block ", "gives ") {
					if !strings.Contains(o.err.Error(), word) {
						t.Errorf("trainer %d: %v, want %q", k, o.err, word)
					}
				}
				if mine := c.on == "trainer" && k == 1; errors.Is(o.err, cuda.ErrVerify) != mine {
					t.Errorf("trainer %d: %v, which is of its own backend: want %t", k, o.err, mine)
				}
			}
			for b := range min(len(out[0].progress), len(out[1].progress)) {
				p, q := out[0].progress[b], out[1].progress[b]
				if got := p.Loss*float64(p.Samples) + q.Loss*float64(q.Samples); math.Abs(got-losses[b]) > 1e-9*math.Abs(
					losses[b]) {
					t.Errorf("batch %d: losses add up to %v, want %v: something wrong was learned from", b, got, losses[b])
				}
			}
			if _, n := wrong.Checked(); n != 1 {
				t.Errorf("%d mismatches, want one", n)
			}
		})
	}
}

// A step of a hosted module that came out wrong ends its job, too.
func TestWrongArithmeticOfHostedModule(t *testing.T) {
	server, err := ps.Start(testContext(t), ps.Config{Shards: 1, Deadline: unhurried},
		ps.Options{Backend: spoilt(t, "ApplyDense", 3)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	job := moduleJob("wrong-module", 1, schema.ConsistencyAsync)
	s := joinAll(t, testConfig(t, server), job)[0]
	steps, err := drive(testContext(t), s, 5, nil)
	if err == nil || len(steps) > 2 {
		t.Fatalf("after %d steps: %v, want the third to fail", len(steps), err)
	}
	for _, word := range []string{"verification failed: apply dense: parameters", `module "net", parameter "`,
		"in block "} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want %q", err, word)
		}
	}
	_ = s.Abort(err) // from a job that has ended
}

// What a trainer's backend has verified is in its reports.
func TestTrainersTellWhatTheyVerify(t *testing.T) {
	server, w := startWatched(t, ps.Config{Shards: 1})
	job := routeJob("verified", 1, 1, 2)
	c := testConfig(t, server)
	right, err := cuda.Open(cuda.Options{Name: "go", Verify: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer right.Close()
	c.Backend = right
	if o := train(testContext(t), c, job, newToy(t, job), 4); o.err != nil {
		t.Fatal(o.err)
	}
	w.last("t0", "blocks verified", func(p *schema.TrainerReport) bool {
		return p.Verification.OneIn == 1 && p.Verification.Blocks > 0 && p.Verification.Mismatches == 0
	})
}
