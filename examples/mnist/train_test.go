package mnist_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// patience bounds what ends in well under a second when it works.
const patience = 5 * time.Minute

// smallConfig is Config's shape with few of everything.
const smallConfig = `[{"conv2d":{"in":1,"out":4,"kernel":5,"stride":2}},{"relu":{}},{"max_pool2d":{"kernel":2}},{"dropout2d":{"p":0.1}},` +
	`{"flatten":{}},{"linear":{"in":144,"out":24}},{"relu":{}},{"dropout":{"p":0.1}},{"linear":{"in":24,"out":10}},{"log_softmax":{}}]`

func small(t testing.TB) nn.Module {
	t.Helper()
	m, err := nn.Build([]byte(smallConfig))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// outcome is what one trainer ends with.
type outcome struct {
	model          *trainer.Model
	digest         [32]byte
	accuracy, loss float64
	first          float64 // mean loss of the first batch
	params         [][]float32
	err            error
}

// train runs a whole job on a server of its own, its trainers as goroutines.
func train(t *testing.T, s mnist.Settings, data *mnist.Data, backendName string) []outcome {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: backendName})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	config := ps.Default()
	config.Deadline = 2 * patience
	config.Port, config.Shards = 0, 2
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := ps.Start(ctx, config, ps.Options{Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	outcomes := make([]outcome, s.Trainers)
	done := make(chan int)
	m := small(t)
	for i := range outcomes {
		go func() {
			outcomes[i] = trainOne(ctx, server.URL(), s, data, m, nn.Env{Backend: b})
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

func trainOne(ctx context.Context, url string, s mnist.Settings, data *mnist.Data, m nn.Module, e nn.Env) (o outcome) {
	session, err := trainer.Join(ctx, trainer.Config{Server: url, Backend: e.Backend, AnswerWithin: patience,
		ReconnectTimeout: patience, LeaveWithin: patience}, mnist.Job(s, data, m, "own"))
	if err != nil {
		return outcome{err: fmt.Errorf("join: %w", err)}
	}
	defer func() { o.err = errors.Join(o.err, session.Abort(o.err)) }()
	w, err := mnist.NewWorkload(s, data, m, e)
	if err != nil {
		return outcome{err: err}
	}
	o.err = session.Run(ctx, w, s.Run(data), func(p trainer.Progress) {
		if p.Batch == 0 {
			o.first = p.Loss
		}
	})
	if o.err != nil {
		return o
	}
	if o.digest, o.err = session.Digest(ctx); o.err != nil {
		return o
	}
	for _, p := range m.Parameters() {
		o.params = append(o.params, slices.Clone(session.Param(p.Name)))
	}
	if o.model, o.err = session.Weights(ctx); o.err != nil {
		return o
	}
	o.accuracy, o.loss, o.err = mnist.Evaluate(session, m, e, &data.Test)
	return o
}

func settings(trainers, lanes int) mnist.Settings {
	s := mnist.Defaults()
	s.Trainers, s.Lanes, s.Epochs, s.Batch, s.LR = trainers, lanes, 2, 10*lanes, 0.05
	return s
}

// One, two and three trainers give the same weights, bit for bit, in either way of applying.
func TestTrainersGiveTheSameBits(t *testing.T) {
	data := mnist.Synthetic(80, 20)
	one := train(t, settings(1, 4), data, "go")[0]
	mean := settings(2, 4)
	mean.Apply = "mean"
	grouped := settings(3, 4)
	grouped.Consistency = "grouped" // by groups of all
	for name, s := range map[string]mnist.Settings{"two": settings(2, 4), "three": settings(3, 4),
		"two that apply": mean, "three grouped": grouped} {
		for i, o := range train(t, s, data, "auto") {
			if o.digest != one.digest || o.accuracy != one.accuracy {
				t.Errorf("%s trainers: trainer %d has digest %x, accuracy %v, one trainer has %x, %v", name, i, o.digest[:4],
					o.accuracy, one.digest[:4], one.accuracy)
			}
		}
	}
}

// A job learns what is to be learned.
func TestLearns(t *testing.T) {
	s := settings(1, 1)
	s.Epochs = 6
	o := train(t, s, mnist.Synthetic(300, 100), "go")[0]
	if o.accuracy < 0.8 || o.loss > o.first/2 {
		t.Errorf("accuracy %.3f, loss from %.3f to %.3f", o.accuracy, o.first, o.loss)
	}
}

// What is saved and loaded is what was trained, and answers alike. A file that lacks something is no model.
func TestModelOfSession(t *testing.T) {
	data := mnist.Synthetic(80, 20)
	o := train(t, settings(1, 4), data, "go")[0]
	path := filepath.Join(t.TempDir(), "m.safetensors")
	load := func() (*mnist.Saved, error) {
		if err := o.model.Save(path); err != nil {
			t.Fatal(err)
		}
		return mnist.LoadModel(path)
	}
	o.model.Metadata = mnist.Metadata("fashion")
	saved, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range saved.Module.Parameters() {
		if !slices.Equal(saved.Param(p.Name), o.params[i]) {
			t.Errorf("%s differs from what was trained", p.Name)
		}
	}
	if saved.Data != "fashion" {
		t.Errorf("trained on %q", saved.Data)
	}
	for _, c := range []struct{ says, name, value string }{
		{"its parameters are not those of its module", "model", `[{"flatten":{}},{"linear":{"in":784,"out":10}}]`},
		{"want [10]", "model", `[{"relu":{}}]`}, {"its module: bad module", "model", "x"},
	} {
		o.model.Job().Settings[c.name] = c.value
		if _, err := load(); !errors.Is(err, mnist.ErrModel) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want it to say %s", err, c.says)
		}
	}
	o.model.Job().Workload = "other"
	if _, err := load(); !errors.Is(err, mnist.ErrModel) || !strings.Contains(err.Error(), `workload "other"`) {
		t.Errorf("another workload: %v", err)
	}
}

// A job's weights are those of the same steps computed here, without any session.
func TestAgainstOwnSteps(t *testing.T) {
	data := mnist.Synthetic(60, 10)
	s := settings(2, 2)
	s.Epochs, s.Momentum = 2, 0
	got := train(t, s, data, "go")
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	want := ownSteps(t, s, data, nn.Env{Backend: b})
	for i, o := range got {
		for p := range want {
			if !slices.Equal(o.params[p], want[p]) {
				t.Errorf("trainer %d: parameter %d differs", i, p)
			}
		}
	}
}

// ownSteps are SGD's steps over the sum of both lanes' gradients, divided once by the number of samples.
func ownSteps(t *testing.T, s mnist.Settings, data *mnist.Data, e nn.Env) [][]float32 {
	t.Helper()
	m := small(t)
	params, err := nn.Initial(m, s.Seed)
	if err != nil {
		t.Fatal(err)
	}
	net, err := nn.NewNet(m, mnist.Input(), e)
	if err != nil {
		t.Fatal(err)
	}
	feed, err := mnist.NewFeed(s.Seed, &data.Train, s.Batch, 2)
	if err != nil {
		t.Fatal(err)
	}
	for batch := range s.Run(data) {
		var sums [2][][]float32
		samples := 0
		for l := range sums {
			x, targets := feed.Fill(schema.Batch(batch), lane.Lane(l), nil, nil)
			samples += len(targets)
			y, err := net.Forward(params, x,
				nn.Mode{Train: true, Random: nn.Random{Seed: s.Seed, Batch: batch, Lane: uint64(l)}})
			if err != nil {
				t.Fatal(err)
			}
			gradY := make([]float32, len(y))
			if _, err := nn.NLL(y, mnist.Classes, targets, gradY); err != nil {
				t.Fatal(err)
			}
			for _, p := range params {
				sums[l] = append(sums[l], make([]float32, len(p)))
			}
			if _, err := net.Backward(params, gradY, func(i int) []float32 { return sums[l][i] }, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range params {
			for j := range p {
				p[j] -= float32(float32(s.LR) * ((sums[0][i][j] + sums[1][i][j]) / float32(samples)))
			}
		}
	}
	return params
}
