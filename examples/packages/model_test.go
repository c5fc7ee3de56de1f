package packages

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"gradbus/examples/packages/corpus"
	"gradbus/internal/safetensors"
	"gradbus/trainer"
)

// tiny is a model of dim 1 that one computes by hand: the token "d:up" is worth 2, all others 0; class b's score is
// twice the mean and class a's is 0, class c's bias makes it hopeless.
func tiny() *Model {
	w := byHand{embeddingName: make([]float32, corpus.Rows), weightName: {0, 2, 0}, biasName: {0, 0, -50}}
	w[embeddingName][corpus.Key([]byte("d:up"))] = 2
	return &Model{Weights: w, Classes: []string{"a", "b", "c"}, Dim: 1}
}

// byHand has tensors by name, and rows of one value.
type byHand map[string][]float32

func (w byHand) Param(name string) []float32 { return w[name] }

func (w byHand) Lookup(_ context.Context, asks []trainer.Query) ([][]float32, error) {
	var rows []float32
	for _, key := range asks[0].Keys {
		rows = append(rows, w[embeddingName][key])
	}
	return [][]float32{rows}, nil
}

func TestPredictByHand(t *testing.T) {
	all, err := tiny().Predict(testBackend(t), "UP, down", "")
	if err != nil {
		t.Fatal(err)
	}
	// The mean of 2 and 0 is 1, so the scores are 0, 2 and -50.
	want := math.Exp(2) / (1 + math.Exp(2))
	if len(all) != 3 || all[0].Section != "b" || math.Abs(all[0].Probability-want) > 1e-6 || all[1].Section != "a" ||
		all[2].Section != "c" {
		t.Errorf("predictions %v, want b first with %v", all, want)
	}
	// Without "up" a and b are equal: they come in the order of names.
	all, err = tiny().Predict(testBackend(t), "", "only-a-name")
	if err != nil || all[0] != (Prediction{"a", 0.5}) || all[1] != (Prediction{"b", 0.5}) {
		t.Errorf("predictions %v, %v", all, err)
	}
	if _, err := tiny().Predict(testBackend(t), " ?! ", "-"); !errors.Is(err, ErrNoWords) {
		t.Errorf("no words: %v", err)
	}
}

func TestEvaluateByHand(t *testing.T) {
	up, down := corpus.Key([]byte("d:up")), corpus.Key([]byte("d:down"))
	set := &corpus.Examples{Labels: []int32{1, 0, 1, 2}, Offsets: []int64{0, 1, 2, 3, 4},
		Keys: []uint64{up, down, down, up}}
	// up is class b; down makes a and b equal, and the first counts.
	got, err := Evaluate(t.Context(), tiny(), testBackend(t), 1, 3, set)
	if err != nil || got != 0.5 {
		t.Errorf("accuracy %v, %v; want 0.5", got, err)
	}
	if _, err := Evaluate(t.Context(), tiny(), testBackend(t), 1, 3, &corpus.Examples{}); err == nil {
		t.Error("no examples: no error")
	}
}

// More samples than are evaluated at once give the share of all, empty bags included.
func TestEvaluateInPieces(t *testing.T) {
	up := corpus.Key([]byte("d:up"))
	set := &corpus.Examples{Offsets: []int64{0}}
	const n = 2*evaluationSamples + 10
	for i := range n {
		for range i % 3 {
			set.Keys = append(set.Keys, up)
		}
		set.Offsets = append(set.Offsets, int64(len(set.Keys)))
		set.Labels = append(set.Labels, int32(min(i%3, 1))) // an empty bag is class a
	}
	set.Labels[n-1] = 2
	got, err := Evaluate(t.Context(), tiny(), testBackend(t), 1, 3, set)
	if want := float64(n-1) / n; err != nil || got != want {
		t.Errorf("accuracy %v, %v; want %v", got, err, want)
	}
}

type failing struct{ *Model }

func (failing) Lookup(context.Context, []trainer.Query) ([][]float32, error) {
	return nil, errors.New("shard on fire")
}

func TestEvaluateFails(t *testing.T) {
	set := &corpus.Examples{Labels: []int32{0}, Offsets: []int64{0, 1}, Keys: []uint64{1}}
	_, err := Evaluate(t.Context(), failing{tiny()}, testBackend(t), 1, 3, set)
	if err == nil || err.Error() != "evaluate examples 0 to 1: shard on fire" {
		t.Errorf("got %v", err)
	}
}

// Files of before the manifest are read as ever.
func TestLoadEarlierModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	w := tiny().Weights.(byHand)
	metadata := map[string]string{"format": earlierFormat, "tokenizer": corpus.Tokenizer, "classes": `["a","b","c"]`}
	for _, known := range []bool{true, false} {
		if !known {
			metadata["tokenizer"] = "words"
		}
		if err := safetensors.Save(path, metadata, []safetensors.Tensor{
			{Name: embeddingName, Shape: []int{corpus.Rows, 1}, Values: w[embeddingName]},
			{Name: biasName, Shape: []int{3}, Values: w[biasName]}, {Name: weightName, Shape: []int{3, 1}, Values: w[weightName]},
		}); err != nil {
			t.Fatal(err)
		}
		m, err := LoadModel(path)
		if !known {
			if !errors.Is(err, ErrModel) {
				t.Errorf("another tokenizer: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if all, err := m.Predict(testBackend(t), "UP, down", ""); err != nil || all[0].Section != "b" {
			t.Errorf("predictions %v, %v", all, err)
		}
	}
}
