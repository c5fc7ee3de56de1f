package average

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/bench/harness"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

func testEnv(t testing.TB) nn.Env {
	t.Helper()
	e, end, err := openEnv(deviceCPU)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end() })
	return e
}

// Whoever averages, and when, the weights are those of one process that adds lanes along the tree, divides once by the
// samples and takes one step of SGD: at 2 trainers, and at 3 and 4, whose last step is uneven.
func TestEveryHookGivesTheReference(t *testing.T) {
	for _, of := range []struct {
		trainers int
		sparse   bool
	}{{2, true}, {3, false}, {4, true}} {
		want := referenceWeights(t, small(t, of.trainers, "rpc", of.sparse))
		for _, hook := range slices.Sorted(maps.Keys(hooks)) {
			t.Run(fmt.Sprintf("trainers=%d/sparse=%v/%s", of.trainers, of.sparse, hook), func(t *testing.T) {
				t.Parallel()
				if got := measure(t, small(t, of.trainers, hook, of.sparse)).WeightsSHA256; got != want {
					t.Errorf("weights %s, want %s", got, want)
				}
			})
		}
	}
}

// Several servers share the buckets, and servers that add at the end give what those that add at once give.
func TestServersGiveEqualWeights(t *testing.T) {
	want := map[bool]string{}
	for _, sparse := range []bool{false, true} {
		want[sparse] = referenceWeights(t, small(t, 3, "rpc", sparse))
	}
	for _, of := range []struct {
		server  string
		servers int
		hook    string
		sparse  bool
	}{{"average", 3, "rpc", true}, {"average-batch", 1, "rpc", true}, {"average-batch", 3, "sparse-rpc", true},
		{"average-batch", 2, "rpc", false},
		{"average-batch", 1, "allreduce", true}} {
		t.Run(fmt.Sprintf("%s/servers=%d/%s/sparse=%v", of.server, of.servers, of.hook, of.sparse), func(t *testing.T) {
			t.Parallel()
			c := small(t, 3, of.hook, of.sparse)
			c.Server, c.Servers, c.FirstBucketBytes, c.BucketBytes = of.server, of.servers, 4096, 4096
			if got := measure(t, c).WeightsSHA256; got != want[of.sparse] {
				t.Errorf("weights %s, want %s", got, want[of.sparse])
			}
		})
	}
}

// The knobs that do not change what is computed change no bit; those that do, do.
func TestKnobs(t *testing.T) {
	same := measure(t, small(t, 2, "rpc", true))
	if same.Batches != 6 || same.Samples != 22 || same.LossFirst <= 0 || same.BytesSent == 0 {
		t.Errorf("%d batches of %d samples, loss %v, %d bytes sent", same.Batches, same.Samples, same.LossFirst,
			same.BytesSent)
	}
	for name, c := range map[string]struct {
		change func(c *Config)
		equal  bool
	}{
		"iteration step": {func(c *Config) { c.IterationStep = "sequential_iteration_step" }, true},
		"buckets":        {func(c *Config) { c.FirstBucketBytes, c.BucketBytes = 4096, 4096 }, true},
		"runs":           {func(c *Config) { c.Runs = 2 }, true},
		"criterion":      {func(c *Config) { c.Criterion = "nll" }, false},
		"seed":           {func(c *Config) { c.Seed = 2 }, false},
		"epochs":         {func(c *Config) { c.Epochs = 2 }, false},
		"batch size":     {func(c *Config) { c.BatchSize = 3 }, false},
		"lr":             {func(c *Config) { c.LR = 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := small(t, 2, "rpc", true)
			c.change(&changed)
			if got := measure(t, changed).WeightsSHA256; (got == same.WeightsSHA256) != c.equal {
				t.Errorf("weights %s where they were %s: equal should be %v", got, same.WeightsSHA256, c.equal)
			}
		})
	}
}

// A mean over lanes is that of a single process that takes each lane's mean, and the mean of these; of batches of one
// size it is the mean over samples, bit for bit.
func TestMeanOverLanes(t *testing.T) {
	for _, of := range []struct {
		trainers, batchSize int
		even                bool
	}{{2, 4, false}, {3, 4, false}, {2, 11, true}} {
		config := func(mean, hook string) Config {
			c := small(t, of.trainers, hook, true)
			c.Mean, c.BatchSize = mean, of.batchSize
			return c
		}
		samples, want := referenceWeights(t, config("samples", "rpc")), referenceWeights(t, config("lanes", "rpc"))
		if (want == samples) != of.even {
			t.Errorf("%+v: the weights of both means are equal: %v", of, want == samples)
		}
		for _, hook := range []string{"rpc", "allreduce"} {
			if got := measure(t, config("lanes", hook)).WeightsSHA256; got != want {
				t.Errorf("%+v: %s: weights %s, want %s", of, hook, got, want)
			}
		}
	}
}

// It learns: the loss on the same samples falls.
func TestLearns(t *testing.T) {
	c := small(t, 2, "rpc", true)
	c.DataFile = file(t, "data.json", `{"max_val": 8, "sample_count": 8, "sample_length": 5, "sparsity_percentage": 0}`)
	c.Epochs, c.LR, c.Criterion = 40, 1, "nll"
	if r := measure(t, c); !(r.LossLast < 0.8*r.LossFirst) {
		t.Errorf("loss %v, then %v", r.LossFirst, r.LossLast)
	}
}

// As processes, with tables, a timeline and a progress of its own, it is the same run.
func TestProcesses(t *testing.T) {
	c := small(t, 2, "rpc", true)
	want := measure(t, c).WeightsSHA256
	c.InProcess, c.Servers = false, 2
	if got := measure(t, c).WeightsSHA256; got != want {
		t.Errorf("weights %s, want %s", got, want)
	}
}

// referenceWeights is the digest of the weights after a run of c in one process.
func referenceWeights(t *testing.T, c Config) string {
	t.Helper()
	s, err := c.system()
	if err != nil {
		t.Fatal(err)
	}
	m, err := newModel(s.Model, s.Criterion, testEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	data, d := newData(s.Data, s.Seed), s.dealt()
	weights := map[string][]float32{}
	for _, p := range m.net.Parameters() {
		w := make([]float32, p.Elements())
		if err := philox.FillTensor(w, p.Kind, p.Scale, s.Seed, named(p.Name)); err != nil {
			t.Fatal(err)
		}
		weights[named(p.Name)] = w
	}
	if dim := s.Model.EmbeddingDim; s.Model.Sparse {
		w := make([]float32, s.Model.NumEmbeddings*dim)
		for key := range s.Model.NumEmbeddings {
			if err := philox.FillRow(w[key*dim:(key+1)*dim], philox.Normal, 1, s.Seed, embeddingName, uint64(key)); err != nil {
				t.Fatal(err)
			}
		}
		weights[embeddingName] = w
	}
	for step := range s.steps() {
		gradients, samples, sizes := make([]map[string][]float32, s.Trainers), 0, make([]int, s.Trainers)
		for l := range s.Trainers {
			lo, hi := d.of(step, l)
			sizes[l], samples = hi-lo, samples+hi-lo
		}
		for l := range s.Trainers {
			if lo, hi := d.of(step, l); hi > lo {
				scale := float32(1)
				if s.Mean == "lanes" {
					scale = harness.LaneScale(sizes, l)
				}
				gradients[l] = laneGradient(t, m, &s.Model, data, weights, lo, hi, scale)
			}
		}
		for name, sum := range alongTree(gradients, lane.Root(s.Trainers)) {
			for i, g := range sum {
				weights[name][i] -= float32(s.LR * float32(g/float32(samples)))
			}
		}
	}
	return digestOf(t, &s, weights)
}

// laneGradient is the gradient of the sum of the losses of samples [lo, hi), times scale, with all rows of the
// embedding, whether it is sparse or not.
func laneGradient(t *testing.T, m *model, c *modelConfig, data *data, weights map[string][]float32,
	lo, hi int, scale float32) map[string][]float32 {
	t.Helper()
	bags := nn.Bags{Offsets: []int64{0}}
	for _, id := range data.IDs[lo*data.Length : hi*data.Length] {
		bags.IDs = append(bags.IDs, int64(id))
	}
	for i := range hi - lo {
		bags.Offsets = append(bags.Offsets, int64((i+1)*data.Length))
	}
	if c.Sparse {
		bags.Rows = weights[embeddingName]
	}
	var params [][]float32
	out := map[string][]float32{}
	for _, name := range m.names {
		params = append(params, weights[name])
		out[name] = make([]float32, len(weights[name]))
	}
	if _, err := m.forward(params, bags, data.Targets[lo:hi]); err != nil {
		t.Fatal(err)
	}
	for i := range m.gradY {
		m.gradY[i] *= scale
	}
	pooled, err := m.backward(params, func(i int) []float32 { return out[m.names[i]] }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Sparse {
		return out
	}
	dim := c.EmbeddingDim
	rows := make([]float32, len(weights[embeddingName]))
	// bags of 5 ids lie within one block of the canonical order, as do all positions of a key here
	for i, id := range bags.IDs {
		for j := range dim {
			rows[int(id)*dim+j] += pooled[i/data.Length*dim+j] / float32(data.Length)
		}
	}
	out[embeddingName] = rows
	return out
}

// alongTree adds the lanes' gradients along the tree; lanes without samples are nil.
func alongTree(lanes []map[string][]float32, n lane.Node) map[string][]float32 {
	if n.Count == 1 {
		return lanes[n.First]
	}
	l, r := n.Split()
	left, right := alongTree(lanes, l), alongTree(lanes, r)
	if left == nil || right == nil {
		if left == nil {
			return right
		}
		return left
	}
	for name := range left {
		for i := range left[name] {
			left[name][i] += right[name][i]
		}
	}
	return left
}

func digestOf(t *testing.T, s *system, weights map[string][]float32) string {
	t.Helper()
	job, err := s.job("reference", "")
	if err != nil {
		t.Fatal(err)
	}
	d := schema.NewWeightsDigest(job)
	for at, ok := d.Next(); ok; at, ok = d.Next() {
		if at.IsTable {
			err = d.Table(weights[at.Name])
		} else {
			err = d.Values(weights[at.Name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sum, err := d.Sum()
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum[:])
}

// testRoles has two trainers more: one that hangs in its second batch, one that is gone in it.
func testRoles() map[string]harness.Role {
	roles := Roles()
	roles["test-hangs"] = func(ctx context.Context, m *harness.Member) (any, error) {
		return nil, strayTrainer(ctx, m, func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
	}
	roles["test-dies"] = func(ctx context.Context, m *harness.Member) (any, error) {
		return nil, strayTrainer(ctx, m, func(context.Context) error { os.Exit(7); return nil })
	}
	return roles
}

// stray is a workload that comes to grief in batch 1.
type stray struct {
	*workload
	ctx   context.Context
	grief func(context.Context) error
}

func (s stray) Lane(step *trainer.LaneStep) (float64, error) {
	if step.Batch == 1 {
		return 0, s.grief(s.ctx)
	}
	return s.workload.Lane(step)
}

func strayTrainer(ctx context.Context, m *harness.Member, grief func(context.Context) error) error {
	var s trainerSettings
	if err := m.Settings(&s); err != nil {
		return err
	}
	e, end, err := openEnv(s.Device)
	if err != nil {
		return err
	}
	defer end()
	w, err := newWorkload(&s.System, e)
	if err != nil {
		return err
	}
	job, err := s.System.job(s.Jobs[0], e.Dense.Name())
	if err != nil {
		return err
	}
	session, err := trainer.Join(ctx, trainer.Config{Server: s.Way.Server, Member: s.Member, Backend: e.Backend},
		job)
	if err != nil {
		return err
	}
	defer session.Abort(errors.New("stray"))
	return session.Run(ctx, stray{w, ctx, grief}, s.System.steps(), nil)
}

// A trainer that dies, or lives and sends nothing, ends the run in time, and the error names it.
func TestStrayTrainerIsNamed(t *testing.T) {
	for _, c := range []struct {
		role, hook string
		inProcess  bool
		want       []string
	}{
		{"test-dies", "rpc", false, []string{"t1"}},
		{"test-dies", "allreduce", false, []string{"t1"}},
		{"test-hangs", "rpc", true, []string{"t1", "12s"}},
	} {
		t.Run(c.role+"/"+c.hook, func(t *testing.T) {
			t.Parallel()
			config := small(t, 2, c.hook, true)
			config.InProcess = c.inProcess
			if c.role == "test-hangs" {
				config.Timeout = 12 * time.Second
			}
			members := config.Flags.Harness("average", testRoles(), io.Discard, io.Discard)
			defer members.Close()
			s, err := config.system()
			if err != nil {
				t.Fatal(err)
			}
			ctx := testContext(t)
			d := &driver{config: &config, system: s, members: members}
			_, url, err := d.startServers(ctx)
			if err != nil {
				t.Fatal(err)
			}
			specs := d.trainerSpecs(url)
			specs[1].Role = c.role
			began := time.Now()
			trainers, err := members.Start(ctx, specs...)
			if err != nil {
				t.Fatal(err)
			}
			err = trainers[0].Result(ctx, nil)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not hold %q", err, want)
				}
			}
			if took := time.Since(began); took > 4*time.Minute { // the timeout of those that die is longer
				t.Errorf("took %v", took)
			}
		})
	}
}
