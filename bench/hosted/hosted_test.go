package hosted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/bench/harness"
	"gradbus/bench/harness/harnesstest"
	"gradbus/examples/mnist/mnisttest"
	"gradbus/fabric/fabrictest"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(Roles())
	fabrictest.Main(m)
}

// guard bounds what a test waits for; nothing here depends on how fast it is.
const guard = 5 * time.Minute

// small is a run over a few images of a folder of its own, that takes seconds wherever it runs.
func small(t *testing.T) Config {
	t.Helper()
	c := DefaultConfig()
	c.DataDir, c.BatchSize, c.Warmup, c.InProcess = mnisttest.Folder(t), 3, 1, true
	return c
}

func run(t *testing.T, c Config) (*Result, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	var people bytes.Buffer
	found, err := Run(ctx, c, &people, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return found, people.String()
}

// Both modes go through two epochs of four batches each, say the loss, and look at the whole test set. Trainers of one
// job begin with the same weights in both, and one trainer alone ends with the same, up to how a library groups what it
// adds: here, bit for bit.
func TestBothModes(t *testing.T) {
	c := small(t)
	c.Epochs = 2
	for _, mode := range []string{remote, pull} {
		c.Mode = mode
		found, said := run(t, c)
		if found.Seconds <= 0 || found.ImagesPerSecond <= 0 || found.Mode != mode || len(found.WeightsSHA256) != 64 ||
			found.Loss <= 0 {
			t.Errorf("%s: %+v", mode, found)
		}
		if rest := found.Accuracy * 6; rest != float64(int(rest)) || found.TestImages != 6 {
			t.Errorf("%s: accuracy %v of %d images, want six", mode, found.Accuracy, found.TestImages)
		}
		// two epochs of 24 images, less the first batch of two trainers
		if images := found.ImagesPerSecond * found.Seconds; math.Abs(images-(2*24-2*3)) > 1e-6 {
			t.Errorf("%s: %v images in the time", mode, images)
		}
		if strings.Contains(said, "accuracy") {
			t.Errorf("%s: trainers said %q: want one accuracy, in the result", mode, said)
		}
		for _, trainer := range []string{"t0", "t1"} {
			var losses []string
			for line := range strings.Lines(said) {
				if rest, is := strings.CutPrefix(line, trainer+" training batch "); is {
					losses = append(losses, strings.Fields(rest)[0])
				}
			}
			if !slices.Equal(losses, []string{"0", "5"}) {
				t.Errorf("%s: %s tells the loss of batches %v, want those of 0 and 5", mode, trainer, losses)
			}
		}
		text, err := json.Marshal(found)
		for _, field := range []string{"images_per_second", "accuracy", "test_images", "loss", "seconds"} {
			if err != nil || !strings.Contains(string(text), `"`+field+`":`) {
				t.Errorf("JSON %s, %v: no %s", text, err, field)
			}
		}
	}
	c.Trainers, c.BatchSize = 1, 6
	var weights [2]string
	for i, mode := range []string{remote, pull} {
		c.Mode = mode
		found, _ := run(t, c)
		weights[i] = found.WeightsSHA256
	}
	if weights[0] != weights[1] {
		t.Errorf("one trainer: weights %.12s remotely, %.12s pulled", weights[0], weights[1])
	}
}

// Where other hosts run trainers of the job, the accuracy of each host is still that of the whole test set.
func TestAccuracyOfEachHost(t *testing.T) {
	c := small(t)
	servers := c.Flags.Harness("servers", Roles(), nil, nil)
	defer func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	}()
	handles, url, err := servers.StartServers(t.Context(), 1, harness.ServerSettings{})
	if err != nil {
		t.Fatal(err)
	}
	c.Way.Server, c.Mode, c.Sync, c.Here = url, pull, Sync, 1
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	var results [2]*Result
	var errs [2]error
	var hosts sync.WaitGroup
	for i := range results {
		hosts.Go(func() { results[i], errs[i] = Run(ctx, c, io.Discard, io.Discard) })
	}
	hosts.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	one, other := results[0], results[1]
	if one.TestImages != 6 || other.TestImages != 6 || one.Accuracy != other.Accuracy || one.Loss != other.Loss {
		t.Errorf("%+v and %+v: want one accuracy of six images", one, other)
	}
	if err := servers.StopServers(ctx, handles...); err != nil {
		t.Error(err)
	}
}

func TestConfigRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`mode "both": want remote or pull`:                     func(c *Config) { c.Mode = "both" },
		"trainers 0: want 1 to 64":                             func(c *Config) { c.Trainers = 0 },
		"gpus 1: want 0: its layers have no GPU path yet":      func(c *Config) { c.GPUs = 1 },
		"gpus -1: want 0":                                      func(c *Config) { c.GPUs = -1 },
		`device "cuda": want cpu: its layers have no GPU path`: func(c *Config) { c.Device.Device = "cuda" },
		"gpus 2: want 0: its layers": func(c *Config) {
			c.GPUs, c.Mode, c.Way.Server = 2, pull, "nats://127.0.0.1:4222"
		},
		`input "emnist": want mnist or fashion or synthetic`:    func(c *Config) { c.Data = "emnist" },
		`sync "never": want async or sync or bounded or reduce`: func(c *Config) { c.Sync = "never" },
		"momentum 1: want": func(c *Config) { c.Momentum = 1 },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := Run(t.Context(), c, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c := DefaultConfig()
	c.DataDir = t.TempDir()
	if _, err := Run(t.Context(), c, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "train-images-idx3-ubyte") {
		t.Errorf("no data: %v", err)
	}
}
