package e2e

import (
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/examples/mnist"
	"gradbus/internal/report"
)

// Two trainer processes train the model of images for a few batches, save it, and the file answers without a server.
func TestMNIST(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	model := filepath.Join(t.TempDir(), "m.safetensors")
	p := start(t, "trainer", "mnist", "--server", url, "--input", "synthetic", "--spawn", "--trainers", "2",
		"--batches", "12",
		"--batch", "16", "--json", "--save", model)
	p.succeeds(t)
	var r report.Result
	if err := json.Unmarshal([]byte(p.stdout.String()), &r); err != nil || strings.Count(p.stdout.String(), "\n") != 1 {
		t.Fatalf("printed %q: %v", p.stdout.String(), err)
	}
	if r.Workload != mnist.Name || r.Batches != 12 || r.Samples != 12*16 || !r.Synthetic || r.Accuracy < 0.2 ||
		len(r.WeightsSHA256) != 64 {
		t.Errorf("got %+v, want 12 batches of 16 and more right than by chance", r)
	}
	picture := filepath.Join(t.TempDir(), "sample.png")
	drawSample(t, picture)
	ask := start(t, "trainer", "mnist", "--load", model, "--predict", picture, "--json")
	ask.succeeds(t)
	var answer struct {
		Answer      string
		Predictions []mnist.Prediction
	}
	if err := json.Unmarshal([]byte(ask.stdout.String()), &answer); err != nil ||
		len(answer.Predictions) != mnist.Classes ||
		answer.Answer != answer.Predictions[0].Name || answer.Predictions[0].Probability < 0.1 {
		t.Errorf("answered %q: %v", ask.stdout.String(), err)
	}
	people := start(t, "trainer", "mnist", "--load", model, "--predict", picture)
	people.succeeds(t)
	if out := people.stdout.String(); !strings.HasPrefix(out, answer.Answer+" ") || strings.Count(out, "\n") != 3 {
		t.Errorf("printed %q, want three classes, %s first", out, answer.Answer)
	}
}

// drawSample writes a synthetic image as a PNG.
func drawSample(t *testing.T, path string) {
	t.Helper()
	pixels := mnist.Synthetic(1, 1).Test.Images
	m := image.NewGray(image.Rect(0, 0, mnist.Side, mnist.Side))
	for i, v := range pixels {
		m.Set(i%mnist.Side, i/mnist.Side, color.Gray{Y: v})
	}
	f, err := os.Create(path)
	if err == nil {
		err = png.Encode(f, m)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
