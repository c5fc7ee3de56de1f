package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// spoiled is the golden toy of which some lanes give a value that is not finite; the others are those of a job without
// these lanes.
type spoiled struct {
	goldenToy
	bad    func(b schema.Batch, l lane.Lane) int // 0: fine, 1: in a parameter, 2: in bags or rows
	absent bool                                  // bad lanes have no samples instead
}

func (m spoiled) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if m.absent && m.bad(b, l) != 0 {
		return 0, keys
	}
	return m.goldenToy.Keys(b, l, keys)
}

func (m spoiled) Lane(step *LaneStep) (float64, error) {
	loss, err := m.goldenToy.Lane(step)
	switch m.bad(step.Batch, step.Lane) {
	case 1:
		step.Grad("weight")[3] = float32(math.Inf(1))
	case 2:
		var given []float32
		switch rows := step.batch.of.compute.rows; {
		case rows.bags != nil:
			given = rows.bags.lanes[step.index][0].all()
		case len(rows.open[0]) > 0 && rows.open[0][len(rows.open[0])-1].lane == step.Lane:
			given = rows.open[0][len(rows.open[0])-1].values
		}
		if len(given) == 0 { // of a lane without keys
			given = step.Grad("bias")
		}
		given[len(given)-1] = float32(math.NaN())
	}
	return loss, err
}

// A lane whose gradient is not finite is absent: whichever lanes these are, in whatever mode and on any number of
// trainers, weights are those of a job in which they have no samples, down to batches of which no lane is left.
func TestSkippedLanesAreAbsent(t *testing.T) {
	server, seed := startServer(t, 2), rand.Uint64()
	t.Logf("seed %d", seed)
	m := mode{rounds: schema.ConsistencySync, momentum: 0.9, wire: schema.Wire{Gradients: schema.GradientsFloat32}}
	for i, way := range []struct{ apply, reduce, tables string }{
		{schema.ApplyUpdate, schema.ReduceShards, "by-rows"}, {schema.ApplyMean, schema.ReduceShards, "mixed"},
		{schema.ApplyMean, schema.ReduceTrainers, "replicated"}, {schema.ApplyUpdate, schema.ReduceShards, "whole"},
	} {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		kinds := map[string]int{}
		for b := range 6 {
			share := 1 + random.IntN(4)
			for l := range 5 {
				if random.IntN(4) < share {
					kinds[fmt.Sprint(b, l)] = 1 + random.IntN(2)
				}
			}
		}
		for l := range 5 { // nobody is left
			kinds[fmt.Sprint(4, l)] = 1
		}
		for l := range 5 { // and somebody: which lanes have samples is the toy's
			kinds[fmt.Sprint(0, l)] = 0
		}
		bad := func(b schema.Batch, l lane.Lane) int { return kinds[fmt.Sprint(b, l)] }
		m.apply, m.reduce, m.tables = way.apply, way.reduce, way.tables
		want := ""
		for _, trainers := range []int{1, 1, 2, 4} { // first without the bad lanes
			m.trainers = trainers
			job := m.job(fmt.Sprintf("skip-%d-%d-%v", i, trainers, want == ""))
			absent := want == ""
			if !absent {
				job.OnNonfinite = schema.NonfiniteSkip
			}
			got, skipped := skipping(t, testConfig(t, server), job, func() Workload {
				return spoiled{goldenToy{&bagToy{toy: newToy(t, job)}}, bad, absent}
			})
			if absent {
				want = got
			} else if got != want || skipped == 0 {
				t.Errorf("%+v, %d trainers: weights %s after %d skipped lanes, want %s", way, trainers, got, skipped, want)
			}
		}
	}
}

// skipping runs a job for six batches and gives the digest of its weights, and how many lanes its trainers have
// skipped.
func skipping(t *testing.T, config Config, job *schema.Job, w func() Workload) (digest string, skipped uint64) {
	t.Helper()
	sessions := joinAll(t, config, job)
	errs := make(chan error, job.Trainers)
	for _, s := range sessions {
		go func() { errs <- s.Run(testContext(t), w(), 6, nil) }()
	}
	for range sessions {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	digest = fmt.Sprintf("%x", sameDigest(t, sessions))
	for _, s := range sessions {
		skipped += s.Stats().LanesSkipped
	}
	leaveAll(t, sessions)
	return digest, skipped
}

// What comes of finite gradients is not finite: the job ends before anybody has it, whatever it does about gradients
// that are not, and the text names tensor and batch; also where trainers step, or add up.
func TestNonFiniteResultEndsTheJob(t *testing.T) {
	server := startServer(t, 2)
	for _, c := range []struct {
		name, apply, reduce, nonfinite string
		value, lr                      float32
		by                             string // whose outcome it is
	}{
		{"update", schema.ApplyUpdate, schema.ReduceShards, "", 3e38, 0.1, `parameter "bias", element 1`},
		{"skip", schema.ApplyUpdate, schema.ReduceShards, schema.NonfiniteSkip, 3e38, 0.1, `parameter "bias", element 1`},
		{"mean", schema.ApplyMean, schema.ReduceShards, "", 3e38, 0.1, `the mean gradient of parameter "bias", element 1`},
		{"step", schema.ApplyMean, schema.ReduceShards, "", 1e35, 1e9, `parameter "bias", element 1`},
		{"reduce", schema.ApplyMean, schema.ReduceTrainers, "", 3e38, 0.1, `the mean gradient of parameter "bias", element 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := toyJob("overflow-"+c.name, 2, 2, c.apply)
			job.Reduce, job.OnNonfinite = c.reduce, c.nonfinite
			job.Parameters[3].Optimizer = &schema.Optimizer{Kind: schema.OptimizerSGD, LR: c.lr}
			w := newToy(t, job)
			w.spoil = func(step *LaneStep, bias []float32) {
				if clear(bias); step.Batch == 1 {
					bias[1] = c.value
				}
			}
			sessions := joinAll(t, testConfig(t, server), job)
			errs := runAll(testContext(t), sessions, w, 6)
			for i, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "non_finite") || !strings.Contains(err.Error(), c.by) ||
					!strings.Contains(err.Error(), "batch 1") {
					t.Errorf("t%d: %v, want non_finite, %s and batch 1", i, err, c.by)
				}
				if lanes := "batch 1 of lanes [[0,1) [1,2)]"; c.name != "step" && !strings.Contains(err.Error(), lanes) {
					t.Errorf("t%d: %v, want %s", i, err, lanes)
				}
				for _, v := range sessions[i].compute.params.value(sessions[i].compute.params.index["bias"]) {
					if v-v != 0 {
						t.Errorf("t%d has a bias of %v", i, v)
					}
				}
			}
		})
	}
}

// An error that ends a job at a ps names the version of it that is on disk, and how to go on from there: to the trainer
// whose gradient is refused, and to the others.
func TestErrorNamesTheDurableVersion(t *testing.T) { testkit.Waits(t, errorNamesTheDurableVersion) }

func errorNamesTheDurableVersion(t *testing.T) {
	server := startServerWith(t, ps.Config{Shards: 2,
		Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 1, Every: time.Hour}})
	job := toyJob("durable-named", 2, 2, schema.ApplyUpdate)
	sessions := joinAll(t, testConfig(t, server), job)
	w := newToy(t, job)
	w.enter = func(schema.Batch, lane.Lane) { time.Sleep(10 * time.Millisecond) } // a version takes seconds
	w.spoil = func(step *LaneStep, bias []float32) {
		if step.Lane == 0 && sessions[0].durable.Load() > 0 && sessions[1].durable.Load() > 0 {
			bias[1] = float32(math.NaN())
		}
	}
	for i, err := range runAll(testContext(t), sessions, w, 1<<40) {
		named := regexp.MustCompile(`version (\d+) is durable: start the job again with --resume`).FindStringSubmatch(
			fmt.Sprint(err))
		if named == nil {
			t.Errorf("t%d: %v, want which version is durable", i, err)
			continue
		}
		// The counter may have risen since.
		if v, err := strconv.ParseUint(named[1], 10, 64); err != nil || v == 0 || v > sessions[i].durable.Load() {
			t.Errorf("t%d: version %s is said to be durable (%v), of %d", i, named[1], err, sessions[i].durable.Load())
		}
	}
}
