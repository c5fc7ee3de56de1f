package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/examples/movielens"
)

// Two trainer processes of a server and one process alone learn the same from a file of ratings; the saved model
// recommends films.
func TestMovielens(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	folder := t.TempDir()
	ratings, model := filepath.Join(folder, "ratings.csv"), filepath.Join(folder, "m.safetensors")
	start(t, "trainer", "movielens", "--input", "synthetic", "--dump", ratings).succeeds(t)
	text, err := os.ReadFile(ratings)
	if err != nil || !strings.HasPrefix(string(text), "userId,movieId,rating,timestamp\n") {
		t.Fatalf("dumped %.60q (%v)", text, err)
	}
	flags := []string{"movielens", "--input", ratings, "--epochs", "2", "--rows", "4096", "--json"}
	p := start(t, "trainer", append(flags, "--server", url, "--spawn", "--trainers", "2", "--save", model)...)
	p.succeeds(t)
	r := p.result(t)
	if r.Workload != movielens.Name || r.Trainers != 2 || r.RMSE <= 0 || r.RMSE > 1.2 || r.AUC < 0.5 ||
		r.TestSamples != 1200 {
		t.Errorf("got %+v", r)
	}
	if out := p.stderr.String(); !strings.Contains(out, "epoch 1 of 2  RMSE ") ||
		!strings.Contains(out, "epoch 2 of 2  RMSE ") {
		t.Errorf("nothing after each epoch in %q", out)
	}
	alone := start(t, "trainer", append(flags, "--local", "--shards", "2")...)
	alone.succeeds(t)
	if got := alone.result(t); got.WeightsSHA256 != r.WeightsSHA256 || got.RMSE != r.RMSE {
		t.Errorf("weights %s and RMSE %v of one process, %s and %v of two trainers", got.WeightsSHA256, got.RMSE,
			r.WeightsSHA256, r.RMSE)
	}
	ask := start(t, "trainer", "movielens", "--load", model, "--predict", "7", "--json")
	ask.succeeds(t)
	var answer struct {
		User  uint64
		Films []movielens.Recommendation
	}
	if err := json.Unmarshal([]byte(ask.stdout.String()), &answer); err != nil || answer.User != 7 ||
		len(answer.Films) != 10 {
		t.Errorf("answered %q: %v", ask.stdout.String(), err)
	}
	for wrong, want := range map[string]string{
		"--input " + model:                          "not ratings of MovieLens",
		"--input " + filepath.Join(folder, "none"):  "no such file",
		"--split film":                              `split "film": want "user" or "time"`,
		"--load " + ratings + " --predict 7":        "not a model",
		"--load " + model + " --predict Alien":      "the number of a user",
		"--predict 7":                               "--load",
		"--input synthetic --dump /nowhere/ratings": "/nowhere",
	} {
		start(t, "trainer", append([]string{"movielens"}, strings.Fields(wrong)...)...).fails(t, want)
	}
}
