package e2e

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gradbus/examples/packages/corpus"
	"gradbus/examples/packages/referencetest"
	"gradbus/internal/report"
	"gradbus/lane"
)

// One line of JSON, nothing else there.
func TestSpawnJSON(t *testing.T) {
	_, url := server(t)
	p := start(t, "trainer", short(url, index(t, 200), "--spawn", "--trainers", "2", "--json")...)
	p.succeeds(t)
	r := p.result(t)
	if r.Accuracy < 0 || r.TestSamples == 0 || r.SamplesPerSecond <= 0 || r.BytesSent == 0 || r.BytesReceived == 0 ||
		len(r.WeightsSHA256) != 64 {
		t.Errorf("got %+v", r)
	}
	if r.Trainers != 2 || r.Shards != 2 || r.Lanes != 4 || r.Batches == 0 || r.Loss <= 0 || r.Seconds <= 0 ||
		r.Backend == "" {
		t.Errorf("got %+v", r)
	}
}

// The weights do not depend on how many trainers and shards there are, nor on the backend of either: they are those of
// a single process that knows neither frames nor shards.
func TestSameWeightsEverywhere(t *testing.T) {
	t.Parallel()
	data := index(t, 200)
	want := single(t, data)
	for _, backend := range backends {
		for _, shards := range []int{1, 2, 3} {
			_, url := server(t, "--shards", strconv.Itoa(shards), "--backend", backend)
			for _, trainers := range []int{1, 2, 4} {
				p := start(t, "trainer", short(url, data, "--spawn", "--trainers", strconv.Itoa(trainers), "--json", "--backend",
					backend)...)
				p.succeeds(t)
				got := p.result(t)
				if got.WeightsSHA256 != want || got.Trainers != trainers || got.Shards != shards || got.Lanes != 4 {
					t.Errorf("backend %s, %d shards, %d trainers: weights %s, want %s", backend, shards, trainers,
						got.WeightsSHA256, want)
				}
			}
		}
	}
}

// Without a flag for it, the weights are the same however many trainers there are.
func TestSameWeightsByDefault(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	sameByDefault(t, "packages", "--server", url, "--input", index(t, 200), "--epochs", "1", "--dim", "8", "--lr", "1")
}

// sameByDefault trains with different numbers of trainers.
func sameByDefault(t *testing.T, workload string, flags ...string) {
	t.Helper()
	want := ""
	for _, trainers := range []int{1, 2, 4, 8} {
		args := append([]string{workload, "--spawn", "--trainers", strconv.Itoa(trainers), "--json"}, flags...)
		p := start(t, "trainer", args...)
		p.succeeds(t)
		got := p.result(t)
		if want == "" {
			want = got.WeightsSHA256
		}
		if got.WeightsSHA256 != want || got.Trainers != trainers || got.Lanes != lane.DefaultMin {
			t.Errorf("%s of %d trainers and %d lanes: weights %s, one trainer has %s", workload, got.Trainers, got.Lanes,
				got.WeightsSHA256, want)
		}
	}
}

// single is the digest of the weights that the job of short has when one process trains it on the portable backend.
func single(t *testing.T, path string) string {
	t.Helper()
	data, err := corpus.Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := referencetest.Train(referencetest.Options{Epochs: 1, Batch: 32, Dim: 8, Lanes: 4, LR: 1, Seed: 1,
		Partitions: 64}, data)
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(r.Digest[:])
}

// A trainer whose job differs is turned away with the field and both values; one that wants a taken id likewise. The
// job that they wanted to join is not disturbed.
func TestTurnedAway(t *testing.T) {
	_, url := server(t)
	data := index(t, 200)
	first := start(t, "trainer", short(url, data, "--trainers", "2", "--id", "t0", "--lr", "3")...)
	first.says(t, "waiting")
	start(t, "trainer", short(url, data, "--trainers", "2", "--lr", "4")...).fails(t, "lr", "3", "4")
	start(t, "trainer", short(url, data, "--trainers", "2", "--lr", "3", "--id", "t0")...).fails(t, "t0")
	start(t, "trainer", short(url, index(t, 150), "--trainers", "2", "--lr", "3")...).fails(t, "differs")
	second := start(t, "trainer", short(url, data, "--trainers", "2", "--lr", "3")...)
	first.succeeds(t)
	second.succeeds(t)
}

// Without --json a person is told the result; the server says on which backend it runs before anything else.
func TestResultForPeople(t *testing.T) {
	ps, url := server(t)
	p := start(t, "trainer", short(url, index(t, 200))...)
	p.succeeds(t)
	for _, word := range []string{"accuracy", "samples/s", "sent", "received", "sha256"} {
		if !strings.Contains(p.stdout.String(), word) {
			t.Errorf("no %q in %q", word, p.stdout.String())
		}
	}
	for _, of := range []*process{ps, p} {
		if line, _, _ := strings.Cut(of.stderr.String(), "\n"); !strings.Contains(line, "backend") {
			t.Errorf("the first log line of %s is %q, want the backend", of.name, line)
		}
	}
	if !strings.Contains(ps.stdout.String(), url) ||
		!strings.Contains(ps.stdout.String(), filepath.Join(binaries, "trainer")+" packages") {
		t.Errorf("ps printed %q, want its address and what to do next", ps.stdout.String())
	}
}

// A saved model answers without a server.
func TestSaveAndPredict(t *testing.T) {
	t.Parallel()
	ps, url := server(t)
	model := filepath.Join(t.TempDir(), "m.safetensors")
	p := start(t, "trainer", short(url, index(t, 400), "--spawn", "--trainers", "2", "--epochs", "20", "--save", model)...)
	p.succeeds(t)
	if !strings.Contains(p.stdout.String(), model) {
		t.Errorf("no file name in %q", p.stdout.String())
	}
	ps.signal(t, 2)
	ps.succeeds(t)
	for _, section := range []string{"games", "math"} {
		text := fmt.Sprintf("%sword1 %sword2", section, section)
		predict := start(t, "trainer", "packages", "--load", model, "--predict", text)
		predict.succeeds(t)
		first, _, _ := strings.Cut(predict.stdout.String(), "\n")
		if !strings.HasPrefix(first, section+" ") {
			t.Errorf("%q: first answer %q, want %s", text, first, section)
		}
	}
}

// The benchmark starts its own server and ends it; without PyTorch it says what gradbus does alone.
func TestBenchmark(t *testing.T) {
	t.Parallel()
	p := start(t, "psbench", "packages", "--input", index(t, 200), "--python", "none", "--runs", "2", "--epochs",
		"1", "--json")
	p.succeeds(t)
	var c report.Comparison
	if err := json.Unmarshal([]byte(p.stdout.String()), &c); err != nil || strings.Count(p.stdout.String(), "\n") != 1 {
		t.Fatalf("printed %q: %v", p.stdout.String(), err)
	}
	if len(c.Gradbus.Rates) != 2 || c.Gradbus.Median() <= 0 || c.Baseline != nil || c.Last.Trainers != 2 ||
		c.Last.Time.Compute <= 0 {
		t.Errorf("got %+v", c)
	}
}
