package hybrid

import (
	"bytes"
	"context"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/bench/harness"
	"gradbus/bench/harness/harnesstest"
	"gradbus/bench/machine"
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(Roles())
	os.Exit(m.Run())
}

// small is a configuration that takes a moment, with products whose bits do not depend on a library.
func small(trainers, servers, dim int, mode, placement string) Config {
	c := DefaultConfig()
	c.Trainers, c.Servers, c.Dim, c.Mode, c.Placement = trainers, servers, dim, mode, placement
	c.Embeddings, c.Epochs, c.Warmup, c.Batches, c.InProcess, c.Dense = 40, 3, 1, 3, true, "own"
	return c
}

func run(t *testing.T, c Config) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	r, err := Run(ctx, c, &out, &errs)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	return r
}

// Rows or columns on the servers: the same weights, also where servers times dim is not 512 and as many trainers as
// servers there are not.
func TestSyncIsTheSameAtAnyPlacement(t *testing.T) {
	want := ""
	for _, placement := range []string{schema.PlacementColumns, schema.PlacementRows} {
		r := run(t, small(2, 3, 5, modeSync, placement))
		if want == "" {
			want = r.WeightsSHA256
		}
		if r.WeightsSHA256 != want {
			t.Errorf("%s gives %s, want %s", placement, r.WeightsSHA256, want)
		}
		if len(r.rows) != 2 || len(r.all.epochs) != 6 || r.Loss <= 0 || r.P50 <= 0 || r.P95 < r.P50 {
			t.Errorf("%+v", r)
		}
	}
	if again := run(t, small(2, 3, 5, modeSync, schema.PlacementColumns)); again.WeightsSHA256 != want {
		t.Errorf("once more gives %s, want %s", again.WeightsSHA256, want)
	}
}

// A mean over lanes gives other weights than one over samples, since batches differ in size, and the same ones at any
// placement; with one trainer there is nothing to choose.
func TestMeanOverLanes(t *testing.T) {
	lanes := func(c Config) Config { c.Mean = harness.MeanLanes; return c }
	want := run(t, lanes(small(2, 3, 5, modeSync, schema.PlacementColumns))).WeightsSHA256
	if got := run(t, lanes(small(2, 3, 5, modeSync, schema.PlacementRows))).WeightsSHA256; got != want {
		t.Errorf("by rows %s, by columns %s", got, want)
	}
	if run(t, small(2, 3, 5, modeSync, schema.PlacementColumns)).WeightsSHA256 == want {
		t.Error("both means give the same weights")
	}
	one := small(1, 2, 4, modeAsync, schema.PlacementColumns)
	if run(t, one).WeightsSHA256 != run(t, lanes(one)).WeightsSHA256 {
		t.Error("with one trainer the means differ")
	}
}

// Of lanes of 2 and more samples, each one's gradient is scaled so that its mean counts as one of all lanes; what async
// tables get is not, as they take no mean.
func TestLanesAreScaled(t *testing.T) {
	for _, mode := range []string{modeSync, modeAsync} {
		c := small(3, 1, 4, mode, schema.PlacementColumns)
		c.Mean = harness.MeanLanes
		w := newTestWorkload(t, &c)
		sizes := make([]int, 3)
		for l := range sizes {
			sizes[l], _ = w.Keys(1, lane.Lane(l), [][]uint64{nil})
		}
		if slices.Min(sizes) == slices.Max(sizes) {
			t.Fatalf("lanes of %v samples show nothing", sizes)
		}
		for l, n := range sizes {
			step := &trainer.LaneStep{Batch: 1, Lane: lane.Lane(l), Samples: n}
			y, plain, scaled := make([]float32, n*classes), make([]float32, n*classes), make([]float32, n*classes)
			for i := range y {
				y[i] = float32(i % 5)
			}
			if _, err := w.Loss(step, y, scaled); err != nil {
				t.Fatal(err)
			}
			w.config.Mean = harness.MeanSamples
			if _, err := w.Loss(step, y, plain); err != nil {
				t.Fatal(err)
			}
			w.config.Mean = harness.MeanLanes
			by := harness.LaneScale(sizes, l)
			for i := range plain {
				if scaled[i] != by*plain[i] {
					t.Fatalf("lane %d: gradient %v, want %v times %v", l, scaled[i], by, plain[i])
				}
			}
			want := float32(1)
			if mode == modeSync {
				want = by
			}
			if got := w.tableGrad(step, []float32{by})[0]; math.Abs(float64(got-want)) > 1e-6 {
				t.Errorf("%s, lane %d: tables get %v of the gradient, want %v", mode, l, got, want)
			}
		}
	}
}

func newTestWorkload(t *testing.T, c *Config) *workload {
	t.Helper()
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{Library: c.Dense})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dense.Close() })
	w, err := newWorkload(c, backend, dense)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A trainer's rows have all of its own updates also where nobody waits for others: alone, it ends with the weights of
// sync, in which every batch is computed on those of the one before.
func TestOwnUpdatesAreSeen(t *testing.T) {
	for _, placement := range []string{schema.PlacementColumns, schema.PlacementRows, schema.PlacementTables} {
		sync, async := run(t, small(1, 2, 4, modeSync, placement)), run(t, small(1, 2, 4, modeAsync, placement))
		if sync.WeightsSHA256 != async.WeightsSHA256 {
			t.Errorf("%s: weights %.12s, want %.12s", placement, async.WeightsSHA256, sync.WeightsSHA256)
		}
	}
}

// As processes, in the way that does not wait, with one table for each server.
func TestAsyncAsProcesses(t *testing.T) {
	c := small(3, 2, 4, modeAsync, schema.PlacementTables)
	c.InProcess = false
	r := run(t, c)
	samples := 0
	for lane := range uint64(c.Trainers) {
		for b := c.Warmup * c.Batches; b < (c.Warmup+c.Epochs)*c.Batches; b++ {
			var x batch
			x.draw(c.Seed, uint64(b), lane, c.Embeddings)
			samples += len(x.targets)
		}
	}
	if r.all.samples != samples {
		t.Errorf("%d samples were counted, want %d: those of all trainers", r.all.samples, samples)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "p95 s") ||
		!strings.Contains(out.String(), "All") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// The rate of all is that of all trainers together, also where one has fewer samples than another.
func TestRates(t *testing.T) {
	r := newResult(DefaultConfig())
	if err := r.add([]measured{
		{Member: "t0", Epochs: []float64{1, 1}, Samples: []int{10, 10}, Loss: 2, Digest: "d"},
		{Member: "t1", Epochs: []float64{2, 2}, Samples: []int{30, 30}, Loss: 4, Digest: "d"},
	}); err != nil {
		t.Fatal(err)
	}
	if r.SamplesPerSecond != 80/4.0 || r.Loss != 3 || r.P50 != 1.5 || r.P95 != 2 {
		t.Errorf("%+v", r)
	}
	for i, want := range []string{"1.0000\t10\t", "2.0000\t15\t"} {
		if cells := r.rows[i].cells(2); !strings.HasPrefix(cells, want) {
			t.Errorf("%s: %q, want %q first", r.rows[i].name, cells, want)
		}
	}
	if cells := r.all.cells(2); !strings.HasPrefix(cells, "1.5000\t27\t") { // 20 of each trainer in an epoch
		t.Errorf("all: %q", cells)
	}
	if err := r.add([]measured{{Member: "t0", Epochs: []float64{1}, Samples: []int{1}, Digest: "d"},
		{Member: "t1", Epochs: []float64{1}, Samples: []int{1}, Digest: "e"}}); err == nil {
		t.Error("trainers with different weights give a result")
	}
}

// A server that runs already: trainers join there.
func TestJoin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := small(1, 2, 4, modeSync, schema.PlacementColumns)
	servers := c.Flags.Harness("servers", Roles(), nil, nil)
	defer func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	}()
	handles, url, err := servers.StartServers(ctx, 2, harness.ServerSettings{})
	if err != nil {
		t.Fatal(err)
	}
	want := run(t, c).WeightsSHA256
	c.Way.Server = url
	if got := run(t, c).WeightsSHA256; got != want {
		t.Errorf("joined: %s, want %s", got, want)
	}
	if err := servers.StopServers(ctx, handles...); err != nil {
		t.Error(err)
	}
}

// 20 to 50 ids below the number of embeddings, bags of 1 to 10, classes below 8; the same for the same numbers.
func TestBatches(t *testing.T) {
	sizes := map[int64]int{}
	var x, again batch
	for number := range uint64(200) {
		x.draw(7, number, number%3, 300)
		again.draw(7, number, number%3, 300)
		if !slices.Equal(x.ids, again.ids) || !slices.Equal(x.offsets, again.offsets) ||
			!slices.Equal(x.targets, again.targets) {
			t.Fatalf("batch %d is not what it was", number)
		}
		if n := len(x.ids); n < 20 || n > 50 || slices.Max(x.ids) >= 300 || len(x.offsets) != len(x.targets)+1 ||
			x.offsets[len(x.targets)] != int64(n) {
			t.Fatalf("batch %d: %d ids, offsets %v", number, n, x.offsets)
		}
		for i := range x.targets {
			sizes[x.offsets[i+1]-x.offsets[i]]++
			if x.targets[i] < 0 || x.targets[i] >= classes {
				t.Fatalf("class %d", x.targets[i])
			}
		}
	}
	for n := range int64(10) {
		if sizes[n+1] == 0 {
			t.Errorf("no bag of %d", n+1)
		}
	}
	if len(sizes) != 10 {
		t.Errorf("bags of sizes %v", sizes)
	}
}

func TestConfigsRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Trainers = 0 }, "trainers 0: want 1 to 64"},
		{func(c *Config) { c.Servers = 65 }, "servers 65: want 1 to 64"},
		{func(c *Config) { c.Dim = 0 }, "dim 0: want 1 to"},
		{func(c *Config) { c.Epochs = 0 }, "epochs 0: want 1 to"},
		{func(c *Config) { c.Mode = "eventual" }, `mode "eventual": want async or sync`},
		{func(c *Config) { c.Mean = "trainers" }, `mean "trainers": want samples or lanes`},
		{func(c *Config) { c.Placement = "diagonals" }, `placement "diagonals": want columns or rows or tables`},
		{func(c *Config) { c.GPUs = 1 }, "gpus 1: want 0: its layers have no GPU path"},
		{func(c *Config) { c.Device.Device = "gpu" }, `device "gpu": want cpu`},
		{func(c *Config) { c.LR = -1 }, "lr -1: want 0 to 3.4e38"},
		{func(c *Config) { c.Job = "A" }, "job"},
	} {
		config := DefaultConfig()
		c.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want %q", err, c.want)
		}
	}
	if err := (&Config{}).Validate(); err == nil {
		t.Error("nothing at all is a configuration")
	}
}

// The banner says how the processors lie, and what is measured.
func TestBanner(t *testing.T) {
	c := DefaultConfig()
	var out bytes.Buffer
	if err := Banner(&out, &c); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gradbus ", machine.TheseProcessors().String() + "\n",
		"8 trainers, 8 servers, embeddings 300 x 512 by columns"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
