package movielens

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/local"
	"gradbus/trainer"
)

// saved trains a model of the synthetic ratings in this process, and writes it to a file.
func saved(t *testing.T, s Settings, path string) {
	t.Helper()
	data, err := Load(InputSynthetic, SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	shards, err := local.Start(t.Context(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer shards.Close()
	session, err := trainer.Join(t.Context(), shards.Config(), Job(s, data))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	w, err := NewWorkload(session, s, data)
	if err == nil {
		err = session.Run(t.Context(), w, uint64(s.Epochs*s.BatchesPerEpoch(len(data.Train))), nil)
	}
	if err == nil {
		err = session.Save(t.Context(), path, trainer.Extra{Metadata: Metadata(data)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// constant is a model whose values are all the same.
type constant float32

func (c constant) Lookup(_ context.Context, asks []trainer.Query) (rows [][]float32, err error) {
	for _, ask := range asks {
		rows = append(rows, slices.Repeat([]float32{float32(c)}, 2*len(ask.Keys)))
	}
	return rows, nil
}

// A model that has diverged has no scores, and says so.
func TestEvaluateDiverged(t *testing.T) {
	s := Defaults()
	s.Factors = 1
	ratings := []Rating{{User: 1, Movie: 1, Stars: 4}, {User: 2, Movie: 1, Stars: 2}}
	if got, err := Evaluate(t.Context(), constant(0), s, 3, ratings); err != nil || got.RMSE != 1 {
		t.Errorf("a model of zeros: %+v, %v", got, err)
	}
	for _, value := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := Evaluate(t.Context(), constant(value), s, 3, ratings); !errors.Is(err, ErrDiverged) {
			t.Errorf("%v: %v, want %v", value, err, ErrDiverged)
		}
	}
}

// A file that is none of ours, or lacks something, is no model.
func TestLoadModelRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	s := Defaults()
	s.Rows, s.Factors, s.Epochs = 64, 2, 1
	saved(t, s, path)
	if _, err := LoadModel(path); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for says, text := range map[string][]byte{
		`workload "movielans"`: bytes.Replace(whole, []byte(`\"workload\":\"movielens`), []byte(`\"workload\":\"movielans`),
			1),
		"mean \"x":        bytes.Replace(whole, []byte(`"mean":"3`), []byte(`"mean":"x`), 1),
		"no list of them": bytes.Replace(whole, []byte(`"films":"[`), []byte(`"films":"{`), 1),
		"":                whole[:len(whole)-1],
		"digest":          append(whole[:len(whole)-1:len(whole)-1], whole[len(whole)-1]^1),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadModel(path); !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
