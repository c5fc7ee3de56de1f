package e2e

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gradbus/internal/report"
)

// A job in one process ends with the weights of a server's, and shows its page while it runs.
func TestLocalSameWeights(t *testing.T) {
	t.Parallel()
	data := index(t, 200)
	want := single(t, data)
	for _, trainers := range []int{1, 4} {
		p := start(t, "trainer",
			append([]string{"packages", "--input", data, "--lanes", "4", "--batch", "32", "--dim", "8", "--lr", "1", "--epochs",
				"1"}, "--local", "--shards", "2", "--http", "127.0.0.1:0", "--trainers", strconv.Itoa(trainers), "--json")...)
		p.succeeds(t)
		if got := p.result(t); got.WeightsSHA256 != want || got.Trainers != trainers || got.Shards != 2 {
			t.Errorf("%d trainers: weights %s of %d trainers and %d shards, want %s", trainers, got.WeightsSHA256, got.Trainers,
				got.Shards, want)
		}
		if !strings.Contains(p.stderr.String(), "The page:  http://127.0.0.1:") {
			t.Error("nobody is told where the page is")
		}
	}
}

// What contradicts --local is refused, in one line that says why.
func TestLocalRefusals(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"--local --server nats://a:1": "--local needs none",
		"--shards 2":                  "want --local",
		"--local --shards 65":         "shards 65: want 1 to 64",
		"--local --memory-mib 1":      "--memory-mib",
	} {
		for _, workload := range []string{"packages", "mnist", "movielens"} {
			p := start(t, "trainer", append([]string{workload, "--input", "synthetic"}, strings.Fields(flags)...)...)
			p.fails(t, want)
		}
	}
}

// A job begins with the weights of a saved model, on any number of trainers, in one process and at a server, in every
// workload; what does not fit is refused.
func TestLoadBeginsWithTheModel(t *testing.T) {
	t.Parallel()
	data := index(t, 200)
	_, url := server(t)
	for workload, flags := range map[string]string{
		"packages": "--input " + data + " --lanes 4 --batch 32 --dim 8 --epochs 1",
		"mnist":    "--input synthetic --lanes 4 --batch 16 --batches 3 --library own",
	} {
		model := filepath.Join(t.TempDir(), "model.safetensors")
		run := func(more ...string) report.Result {
			t.Helper()
			p := start(t, "trainer", append(append([]string{workload, "--json"}, strings.Fields(flags)...), more...)...)
			p.succeeds(t)
			return p.result(t)
		}
		first := run("--local", "--save", model).WeightsSHA256
		want := run("--local", "--load", model).WeightsSHA256
		if want == first {
			t.Errorf("%s: the job that begins with the model ends with the weights of one that draws them", workload)
		}
		if got := run("--local", "--load", model, "--trainers", "2").WeightsSHA256; got != want {
			t.Errorf("%s: two trainers end with %s, want %s", workload, got, want)
		}
		if got := run("--spawn", "--server", url, "--load", model, "--trainers", "2").WeightsSHA256; got != want {
			t.Errorf("%s: at a server %s, want %s", workload, got, want)
		}
		other := map[string]string{"packages": "mnist", "mnist": "movielens"}[workload]
		start(t, "trainer", other, "--local", "--input", "synthetic", "--load", model).fails(t, "no weights for job")
	}
}
