package average

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/trainer"
)

// What is counted is the run behind the one that warms up: each batch of each trainer once, each bucket of each batch
// once on its server; all in one unit, the parts within the whole.
func TestWarmUpIsNotCounted(t *testing.T) {
	c := small(t, 2, "rpc", true)
	c.Servers, c.FirstBucketBytes, c.BucketBytes = 2, 4096, 4096
	r := measure(t, c)
	const steps = 3 // 6 batches of 2 trainers
	for _, rank := range r.trainers {
		for _, name := range []string{metricBatch, metricForward, metricBackward} {
			if n := len(rank.metrics[name]); n != steps {
				t.Errorf("trainer %d has %d samples of %s, want %d", rank.rank, n, name, steps)
			}
		}
		for i, whole := range rank.metrics[metricBatch] {
			if parts := rank.metrics[metricForward][i] + rank.metrics[metricBackward][i]; parts > whole*1.001 {
				t.Errorf("trainer %d batch %d: forward and backward are %v ms of %v", rank.rank, i, parts, whole)
			}
		}
	}
	dense := len(allOf(r.trainers)[hookFuture+"rpc_dense"]) / 2
	sparse := len(allOf(r.trainers)[hookFuture+"rpc_sparse"]) / 2
	if sparse != 2*steps || dense == 0 || dense%steps != 0 {
		t.Errorf("%d dense and %d sparse buckets in %d steps, want 2 sparse ones in each", dense, sparse, steps)
	}
	for _, name := range []string{metricStraggler, metricAnswered, metricAverage} {
		if n := len(allOf(r.servers)[name]); n != dense+sparse {
			t.Errorf("%d samples of %s, want %d", n, name, dense+sparse)
		}
	}
}

// The parts of a batch: the forward pass ends with the loss, and what follows until the new version is the backward's.
func TestPartsOfABatch(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*int64(time.Millisecond)) }
	r := &recorder{workload: &workload{times: passTimes{begun: at(12), forward: at(20), backward: at(50)}},
		hook: hookMetrics("rpc"), spans: true}
	r.found.Metrics = metrics{}
	r.record(&trainer.Progress{Samples: 3, Loss: 2, Began: at(10), BatchTime: 90 * time.Millisecond,
		Buckets: []trainer.BucketTimes{{Begun: at(30), Sent: at(40), Complete: at(95)}}})
	for name, want := range map[string]float64{metricBatch: 90, metricForward: 8, metricBackward: 80,
		hookFuture + "rpc_dense": 65} {
		if got := r.found.Metrics[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v ms, want %v", name, got, want)
		}
	}
	if len(r.found.Metrics) != 4 || r.found.Batches != 1 || r.found.Samples != 3 || r.found.LossFirst != 2 {
		t.Errorf("%+v", r.found)
	}
	r.record(&trainer.Progress{BatchTime: time.Second}) // of another trainer
	if r.found.Batches != 1 || len(r.found.Metrics[metricBatch]) != 1 {
		t.Errorf("a batch without samples counts: %+v", r.found)
	}
}

// A gradient that comes alone has no straggler. A server of kind average adds before the last gradient is there if it
// has more than two; one of kind average-batch adds nothing before. Both have something to do then.
func TestServersDiffer(t *testing.T) {
	for _, trainers := range []int{1, 2, 4} {
		for _, kind := range slices.Sorted(maps.Keys(servers)) {
			t.Run(fmt.Sprintf("%s/trainers=%d", kind, trainers), func(t *testing.T) {
				t.Parallel()
				c := small(t, trainers, "rpc", true)
				c.Server = kind
				r := measure(t, c)
				for _, v := range allOf(r.servers)[metricStraggler] {
					if (v == 0) != (trainers == 1) {
						t.Errorf("straggler of %v ms with %d trainers", v, trainers)
					}
				}
				if adds := kind == "average" && trainers > 2; *r.AverageMS <= 0 || (*r.ArrivalMS > 0) != adds {
					t.Errorf("%v ms of average computation, %v ms of sums on arrival, want some of these: %v", *r.AverageMS,
						*r.ArrivalMS, adds)
				}
			})
		}
	}
}

// All-reduce needs no server: none is told of, and the weights are the same.
func TestNoServers(t *testing.T) {
	want := referenceWeights(t, small(t, 2, "rpc", true))
	for _, hook := range []string{"allreduce", "hybrid"} {
		c := small(t, 2, hook, true)
		c.Servers = 0
		if r := measure(t, c); r.WeightsSHA256 != want || r.Servers != 0 || len(r.servers) != 0 || r.BatchMS != nil {
			t.Errorf("%s: weights %s, want %s; %d servers", hook, r.WeightsSHA256, want, len(r.servers))
		}
	}
}

// Who averages names a bucket's metric.
func TestHookMetrics(t *testing.T) {
	for _, c := range []struct{ hook, want string }{
		{"allreduce", "hook_future_metric,nats_dense_allreduce hook_future_metric,nats_sparse_allreduce"},
		{"hybrid", "hook_c10d_metric,nats_sparse_allreduce hook_future_metric,nats_dense_allreduce"},
		{"rpc", "hook_future_metric,rpc_dense hook_future_metric,rpc_sparse"},
		{"sparse-rpc", "hook_future_metric,nats_dense_allreduce hook_future_metric,rpc_sparse"},
	} {
		r := measure(t, small(t, 2, c.hook, true))
		var got []string
		for name := range allOf(r.trainers) {
			if strings.HasPrefix(name, "hook_") {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", c.hook, text, c.want)
		}
		if served := r.StragglerMS != nil && r.BatchMS != nil &&
			r.AverageMS != nil; served != strings.HasSuffix(c.hook, "rpc") {
			t.Errorf("%s: figures of servers are there: %v", c.hook, served)
		}
	}
}

// A bag of 500 ids of 12 rows sends no row twice: at most 12 rows and the ids, where each id's own row would be 512 KB.
func TestRowsTravelCoalesced(t *testing.T) {
	c := small(t, 2, "rpc", true)
	c.Trace = filepath.Join(t.TempDir(), "trace.json")
	c.ModelFile = file(t, "m.json",
		`{"num_embeddings": 12, "embedding_dim": 64, "dense_input_size": 64, "dense_output_size": 64, "dense_layers_count": 1, "sparse": true}`)
	c.DataFile = file(t, "d.json", `{"max_val": 12, "sample_count": 8, "sample_length": 500, "sparsity_percentage": 0}`)
	found := 0
	for _, p := range measure(t, c).processes {
		for _, s := range p.spans {
			if s.Name == hookFuture+"rpc_sparse" {
				if found++; s.Bytes > 16<<10 {
					t.Errorf("%s batch %d: %d bytes of rows, want less than 16 KiB", p.name, s.Batch, s.Bytes)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no sparse bucket")
	}
}

// What is printed and saved: tables for each rank and for all, or one line of JSON with the fields that are promised.
func TestOutput(t *testing.T) {
	c := small(t, 2, "rpc", true)
	c.CSV, c.Trace = filepath.Join(t.TempDir(), "tables"), filepath.Join(t.TempDir(), "trace.json")
	var out bytes.Buffer
	if err := Run(testContext(t), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"metrics for trainer=0 (ms)", "metrics for trainer=1 (ms)",
		"metrics for all trainers (ms)", "metrics for server=0 (ms)",
		"metrics for all servers (ms)", "| name ", "| batch_level_metric,batch_all ", "weights    sha256 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, name := range []string{"trainer_0.csv", "trainer_1.csv", "trainer_all.csv", "server_0.csv", "server_all.csv"} {
		if table, err := loadTable(filepath.Join(c.CSV, name)); err != nil || len(table) < 3 {
			t.Errorf("%s: %d rows, %v", name, len(table), err)
		}
	}
	if _, err := os.Stat(c.Trace); err != nil {
		t.Error(err)
	}
	c.JSON = true
	out.Reset()
	if err := Run(testContext(t), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Fatalf("%v: %s", err, out.String())
	}
	for _, name := range []string{"batch_all_ms", "forward_ms", "backward_ms", "straggler_ms", "batch_ms", "average_ms",
		"bytes_sent"} {
		if v, ok := fields[name].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v, want a number above 0", name, fields[name])
		}
	}
	if v, ok := fields["arrival_ms"].(float64); !ok || v != 0 { // the only sum of two trainers is made at the end
		t.Errorf("arrival_ms is %v, want 0", fields["arrival_ms"])
	}
	if s, _ := fields["weights_sha256"].(string); len(s) != 64 {
		t.Errorf("weights_sha256 is %v", fields["weights_sha256"])
	}
}

// Two drivers with a trainer each join one server that runs already, as those of two hosts do.
func TestJoin(t *testing.T) {
	want := measure(t, small(t, 2, "rpc", true)).WeightsSHA256
	ctx := testContext(t)
	c := small(t, 2, "rpc", true)
	s, err := c.system()
	if err != nil {
		t.Fatal(err)
	}
	members := c.Flags.Harness("average", Roles(), io.Discard, io.Discard)
	defer members.Close()
	_, url, err := (&driver{config: &c, system: s, members: members}).startServers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c.Way.Server, c.Here = url, 1
	type outcome struct {
		r   *Result
		err error
	}
	outcomes := make(chan outcome, 2)
	for range 2 {
		go func() {
			r, err := Measure(ctx, c, io.Discard, io.Discard)
			outcomes <- outcome{r, err}
		}()
	}
	for range 2 {
		o := <-outcomes
		if o.err != nil {
			t.Fatal(o.err)
		}
		if o.r.WeightsSHA256 != want || o.r.Batches != 3 || o.r.StragglerMS == nil || len(o.r.trainers) != 1 {
			t.Errorf("weights %s after %d batches of %d trainers, want %s, 3 and 1; figures of servers %v", o.r.WeightsSHA256,
				o.r.Batches, len(o.r.trainers), want, o.r.StragglerMS)
		}
	}
}
