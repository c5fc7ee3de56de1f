package referencetest

import (
	"bytes"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
)

func small(t testing.TB, records int) *corpus.Data {
	t.Helper()
	var text bytes.Buffer
	if err := corpus.WriteSynthetic(&text, records, 3); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "Packages")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := corpus.Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func options() Options {
	return Options{Epochs: 1, Batch: 64, Dim: 4, Lanes: 4, LR: 5, Seed: 1, Partitions: 64}
}

func train(t testing.TB, o Options, d *corpus.Data) *Result {
	t.Helper()
	r, err := Train(o, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The digest of a small run, for ever: canonical order, initial values, permutation and digest rules all show in it. If
// this changes, runs of different builds no longer agree.
func TestGoldenDigest(t *testing.T) {
	d := small(t, 400)
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"plain": {func(*Options) {}, "c67d007f9f70143e6afbc95657683bd10883f77608fbab00fcd9c55676903bc6"},
		"momentum": {func(o *Options) { o.Momentum, o.LR = 0.9, 0.5 },
			"f7e6c5d642b5c0781dc77f2cbbbae3b099b4864afc4a1297799ae7e8627e756c"},
		"seven lanes": {func(o *Options) { o.Lanes = 7 }, "782a57f9692b316a4066a245e2f5899bd40fc061f251dfdd9047612bcb436ecb"},
	} {
		o := options()
		c.change(&o)
		r := train(t, o, d)
		if got := hex.EncodeToString(r.Digest[:]); got != c.want {
			t.Errorf("%s: digest %s, want %s", name, got, c.want)
		}
	}
}

// Everything that the result should depend on changes it; the backend does not.
func TestDigestDependsOn(t *testing.T) {
	d := small(t, 200)
	base := train(t, options(), d).Digest
	for name, change := range map[string]func(o *Options){
		"seed": func(o *Options) { o.Seed = 2 }, "lanes": func(o *Options) { o.Lanes = 3 },
		"batch": func(o *Options) { o.Batch = 32 },
		"lr":    func(o *Options) { o.LR = 4 }, "momentum": func(o *Options) { o.Momentum = 0.5 },
		"epochs":     func(o *Options) { o.Epochs = 2 },
		"partitions": func(o *Options) { o.Partitions = 32 },
	} {
		o := options()
		change(&o)
		if train(t, o, d).Digest == base {
			t.Errorf("another %s gives the same digest", name)
		}
	}
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	o := options()
	o.Backend = b
	if got := train(t, o, d).Digest; got != base {
		t.Errorf("backend %s: digest %x, want %x", b.Name(), got[:8], base[:8])
	}
}

// It learns: on generated text, whose sections have words of their own, the loss falls and most guesses are right.
func TestLearns(t *testing.T) {
	o := options()
	o.Epochs, o.Dim, o.Batch, o.LR = 6, 8, 32, 20
	r := train(t, o, small(t, 3000))
	t.Logf("accuracy %v, loss %v", r.Accuracy, r.Loss)
	if start := math.Log(16); r.Accuracy < 0.75 || r.Loss > start/2 || r.Loss <= 0 {
		t.Errorf("accuracy %v, loss %v; it began at %v", r.Accuracy, r.Loss, start)
	}
}
