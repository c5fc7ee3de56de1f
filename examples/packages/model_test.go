package packages

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/examples/packages/corpus"
	"gradbus/internal/regular"
	"gradbus/internal/safetensors"
	"gradbus/trainer"
)

// tiny is a model of dim 1 that one computes by hand: the token "d:up" is worth 2, all others 0; class b's score is
// twice the mean and class a's is 0, class c's bias makes it hopeless.
func tiny() *Model {
	m := &Model{Classes: []string{"a", "b", "c"}, Dim: 1, Settings: map[string]string{"lr": "20"},
		Embedding: make([]float32, corpus.Rows), Weight: []float32{0, 2, 0}, Bias: []float32{0, 0, -50}}
	m.Embedding[corpus.Key([]byte("d:up"))] = 2
	return m
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

func (failing) Lookup(context.Context, []trainer.TableKeys) ([][]float32, error) {
	return nil, errors.New("shard on fire")
}

func TestEvaluateFails(t *testing.T) {
	set := &corpus.Examples{Labels: []int32{0}, Offsets: []int64{0, 1}, Keys: []uint64{1}}
	_, err := Evaluate(t.Context(), failing{tiny()}, testBackend(t), 1, 3, set)
	if err == nil || err.Error() != "evaluate examples 0 to 1: shard on fire" {
		t.Errorf("got %v", err)
	}
	if _, err := tiny().Lookup(t.Context(), []trainer.TableKeys{{Table: 0, Keys: []uint64{corpus.Rows}}}); err == nil {
		t.Error("a key beyond the table: no error")
	}
}

func TestModelRoundTrip(t *testing.T) {
	m := tiny()
	m.Suspect = "Memory of GPU 0 was wrong meanwhile."
	m.Synthetic, m.Embedding[7] = true, float32(math.Copysign(0, -1))
	path := filepath.Join(t.TempDir(), "model.safetensors")
	for range 2 { // the second replaces the first
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LoadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	bits := func(v []float32) []uint32 {
		out := make([]uint32, len(v))
		for i := range v {
			out[i] = math.Float32bits(v[i])
		}
		return out
	}
	if !slices.Equal(bits(got.Embedding), bits(m.Embedding)) || !slices.Equal(got.Weight, m.Weight) ||
		!slices.Equal(got.Bias, m.Bias) {
		t.Error("tensors changed")
	}
	if !slices.Equal(got.Classes, m.Classes) || got.Dim != 1 || !got.Synthetic || got.Suspect != m.Suspect ||
		!maps.Equal(got.Settings, m.Settings) {
		t.Errorf("classes %q dim %d synthetic %v settings %v", got.Classes, got.Dim, got.Synthetic, got.Settings)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestSaveFails(t *testing.T) {
	folder := t.TempDir()
	for _, path := range []string{filepath.Join(folder, "not there", "m"), folder} {
		if err := tiny().Save(path); err == nil {
			t.Errorf("saved to %s", path)
		}
		if err := safetensors.CheckSave(path); err == nil {
			t.Errorf("could save to %s", path)
		}
	}
	if err := safetensors.CheckSave(filepath.Join(folder, "m")); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestModelOfRefuses(t *testing.T) {
	for want, change := range map[string]func(metadata map[string]string, tensors map[string]safetensors.Tensor){
		`format "" in its metadata, want "gradbus packages 1"`: func(m map[string]string,
			_ map[string]safetensors.Tensor) {
			delete(m, "format")
		},
		`tokenizer "words", want "` + corpus.Tokenizer + `"`: func(m map[string]string,
			_ map[string]safetensors.Tensor) {
			m["tokenizer"] = "words"
		},
		`its classes are no list of names`: func(m map[string]string,
			_ map[string]safetensors.Tensor) {
			m["classes"] = "a,b"
		},
		`no such tensor: "embedding.weight"; the file has ["linear.bias" "linear.weight"]`: func(_ map[string]string,
			t map[string]safetensors.Tensor) {
			delete(t, embeddingName)
		},
		`embedding.weight has shape [10 1], want [262144, dim]`: func(_ map[string]string, t map[string]safetensors.Tensor) {
			t[embeddingName] = safetensors.Tensor{Name: embeddingName, Shape: []int{10, 1}, Values: make([]float32, 10)}
		},
		`linear.weight has shape [2 1], want [3 1]`: func(_ map[string]string, t map[string]safetensors.Tensor) {
			t[weightName] = safetensors.Tensor{Name: weightName, Shape: []int{2, 1}, Values: []float32{1, 2}}
		},
		`no such tensor: "linear.bias"; the file has ["embedding.weight" "linear.weight"]`: func(_ map[string]string,
			t map[string]safetensors.Tensor) {
			delete(t, biasName)
		},
		`linear.bias has NaN at element 1, want finite values`: func(_ map[string]string, t map[string]safetensors.Tensor) {
			t[biasName].Values[1] = float32(math.NaN())
		},
		`4 tensors, want embedding.weight, linear.weight and linear.bias alone`: func(_ map[string]string,
			t map[string]safetensors.Tensor) {
			t["x"] = safetensors.Tensor{}
		},
	} {
		m := tiny()
		metadata := map[string]string{"format": format, "tokenizer": corpus.Tokenizer, "classes": `["a","b","c"]`}
		tensors := map[string]safetensors.Tensor{
			embeddingName: {Name: embeddingName, Shape: []int{corpus.Rows, 1}, Values: m.Embedding},
			weightName:    {Name: weightName, Shape: []int{3, 1}, Values: m.Weight},
			biasName:      {Name: biasName, Shape: []int{3}, Values: m.Bias},
		}
		if _, err := modelOf(metadata, tensors); err != nil {
			t.Fatal(err)
		}
		change(metadata, tensors)
		_, err := modelOf(metadata, tensors)
		if !errors.Is(err, ErrModel) || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestLoadModelRefuses(t *testing.T) {
	folder := t.TempDir()
	whole := filepath.Join(folder, "whole")
	if err := tiny().Save(whole); err != nil {
		t.Fatal(err)
	}
	bytes, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"empty":    {"", ErrModel, "0 bytes, too short for a safetensors file"},
		"text":     {"Package: 0ad\nSection: games\n", ErrModel, "no safetensors file: its header would have"},
		"cut":      {string(bytes[:len(bytes)/2]), ErrModel, "cut short"},
		"cut head": {string(bytes[:100]), ErrModel, "cut short"},
		"longer":   {string(bytes) + "x", ErrModel, "1 more than its tensors have"},
	} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadModel(path)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadModel(filepath.Join(folder, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := LoadModel(folder); !errors.Is(err, regular.ErrNotRegular) {
		t.Errorf("a folder: %v", err)
	}
}
