package packages_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/examples/packages/referencetest"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// patience bounds what ends in well under a second when it works.
const patience = 5 * time.Minute

func backend(t testing.TB, name string) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// small is a generated corpus of so many records.
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

// outcome is what one trainer ends with.
type outcome struct {
	digest   [32]byte
	accuracy float64
	model    *trainer.Model
	stats    schema.TrainerReport // of the training alone
	err      error
}

// train runs a whole job on a server of its own, its trainers as goroutines.
func train(t *testing.T, s packages.Settings, data *corpus.Data, shards int, backendName string) []outcome {
	t.Helper()
	b := backend(t, backendName)
	config := ps.Default()
	config.Deadline = 2 * patience
	config.Port, config.Shards = 0, shards
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := ps.Start(ctx, config, ps.Options{Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	outcomes := make([]outcome, s.Trainers)
	done := make(chan int)
	for i := range outcomes {
		go func() {
			outcomes[i] = trainOne(ctx, trainer.Config{Server: server.URL(), Backend: b}, s, data, b)
			done <- i
		}()
	}
	for range outcomes {
		i := <-done
		if outcomes[i].err != nil {
			cancel() // the others would wait for it
			t.Errorf("trainer %d: %v", i, outcomes[i].err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return outcomes
}

func trainOne(ctx context.Context, c trainer.Config, s packages.Settings, data *corpus.Data,
	b cuda.Backend) (o outcome) {
	c.AnswerWithin, c.ReconnectTimeout, c.LeaveWithin, c.TelemetryEvery = patience, patience, patience, time.Hour
	session, err := trainer.Join(ctx, c, packages.Job(s, data))
	if err != nil {
		return outcome{err: fmt.Errorf("join: %w", err)}
	}
	defer func() { o.err = errors.Join(o.err, session.Abort(o.err)) }()
	workload, err := packages.NewWorkload(s, data, b)
	if err != nil {
		return outcome{err: err}
	}
	if o.err = session.Run(ctx, workload, s.Batches(data), nil); o.err != nil {
		return o
	}
	o.stats = session.Stats()
	if o.digest, o.err = session.Digest(ctx); o.err != nil {
		return o
	}
	if o.accuracy, o.err = packages.Evaluate(ctx, session, b, s.Dim, len(data.Classes), &data.Test); o.err != nil {
		return o
	}
	o.model, o.err = session.Weights(ctx)
	return o
}

func settings(trainers, lanes int) packages.Settings {
	s := packages.Defaults()
	s.Trainers, s.Lanes, s.Epochs, s.Batch, s.Dim, s.LR = trainers, lanes, 2, 64, 8, 5
	return s
}

func referenceOf(t *testing.T, s packages.Settings, data *corpus.Data) *referencetest.Result {
	t.Helper()
	r, err := referencetest.Train(referencetest.Options{Epochs: s.Epochs, Batch: s.Batch, Dim: s.Dim, Lanes: s.Lanes,
		LR: float32(s.LR), Momentum: float32(s.Momentum), Seed: s.Seed, Partitions: 64}, data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// However a job is cut into trainers and shards, whoever applies the gradients and on whichever backend, it ends with
// the weights of the single process, bit for bit.
func TestSameAsSingleProcess(t *testing.T) {
	data := small(t, 700)
	want := referenceOf(t, settings(1, 4), data)
	for _, c := range []struct {
		trainers, shards int
		apply, backend   string
	}{
		{1, 1, schema.ApplyUpdate, "go"},
		{2, 2, schema.ApplyUpdate, "auto"},
		{4, 3, schema.ApplyUpdate, "go"},
		{3, 2, schema.ApplyMean, "auto"},
	} {
		t.Run(fmt.Sprintf("%d trainers %d shards %s %s", c.trainers, c.shards, c.apply, c.backend), func(t *testing.T) {
			s := settings(c.trainers, 4)
			s.Apply = c.apply
			for i, o := range train(t, s, data, c.shards, c.backend) {
				if o.digest != want.Digest {
					t.Errorf("trainer %d: weights %s, want %s", i, hex.EncodeToString(o.digest[:8]),
						hex.EncodeToString(want.Digest[:8]))
				}
				if o.accuracy != want.Accuracy {
					t.Errorf("trainer %d: accuracy %v, want %v", i, o.accuracy, want.Accuracy)
				}
			}
		})
	}
}

// What is saved and loaded is what was trained, and answers alike. A file that lacks something is no model.
func TestModelOfSession(t *testing.T) {
	data := small(t, 300)
	s := settings(1, 1)
	o := train(t, s, data, 2, "go")[0]
	want := referenceOf(t, s, data)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	load := func() (*packages.Model, error) {
		if err := o.model.Save(path); err != nil {
			t.Fatal(err)
		}
		return packages.LoadModel(path)
	}
	o.model.Metadata = packages.Metadata(data)
	m, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2][]float32{
		"embedding": {m.File.Table("embedding.weight"), want.Embedding}, "weight": {m.Param("linear.weight"), want.Weight},
		"bias": {m.Param("linear.bias"), want.Bias},
	} {
		if !equalBits(c[0], c[1]) {
			t.Errorf("%s differs from what was trained", name)
		}
	}
	accuracy, err := packages.Evaluate(t.Context(), m, backend(t, "go"), m.Dim, len(m.Classes), &data.Test)
	if err != nil || accuracy != o.accuracy {
		t.Errorf("accuracy %v of the loaded model, %v of the session (%v)", accuracy, o.accuracy, err)
	}
	for _, c := range []struct {
		says   string
		change func()
	}{
		{"do not fit its 1 classes", func() { o.model.Metadata = map[string]string{"classes": `["a"]`} }},
		{"its classes are no list", func() { o.model.Metadata = map[string]string{"classes": "a,b"} }},
		{`tokenizer "words"`, func() { o.model.Job().Settings["tokenizer"] = "words" }},
		{`workload "other"`, func() { o.model.Job().Workload = "other" }},
	} {
		c.change()
		if _, err := load(); !errors.Is(err, packages.ErrModel) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want it to say %s", err, c.says)
		}
	}
	if err := os.WriteFile(path, []byte("Package: 0ad"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := packages.LoadModel(path); !errors.Is(err, packages.ErrModel) {
		t.Errorf("text: %v", err)
	}
	if _, err := packages.LoadModel(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

// A trainer whose data differ is refused, and told so with both digests.
func TestOtherDataIsRefused(t *testing.T) {
	b := backend(t, "go")
	config := ps.Default()
	config.Deadline = 2 * patience
	config.Port = 0
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := ps.Start(ctx, config, ps.Options{Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := settings(2, 2)
	mine, other := small(t, 300), small(t, 299)
	waiting := make(chan int, 1)
	first := make(chan error, 1)
	firstCtx, stopFirst := context.WithCancel(ctx)
	go func() {
		_, err := trainer.Join(firstCtx, trainer.Config{Server: server.URL(), Backend: b, OnWaiting: func(n int) {
			select {
			case waiting <- n:
			default:
			}
		}}, packages.Job(s, mine))
		first <- err
	}()
	<-waiting
	_, err = trainer.Join(ctx, trainer.Config{Server: server.URL(), Backend: b}, packages.Job(s, other))
	if !errors.Is(err, &trainer.Refused{}) || !bytes.Contains([]byte(err.Error()), []byte("settings.data")) ||
		!bytes.Contains([]byte(err.Error()), []byte(hex.EncodeToString(mine.Digest[:]))) {
		t.Errorf("other data: %v", err)
	}
	stopFirst()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first trainer: %v", err)
	}
}
