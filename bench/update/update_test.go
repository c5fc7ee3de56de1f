package update

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/bench/harness"
	"gradbus/bench/harness/harnesstest"
	"gradbus/cuda"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/safetensors"
	"gradbus/nn"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(Roles())
	fabrictest.Main(m)
}

func run(t *testing.T, change func(*Config)) (*Result, string) {
	t.Helper()
	c := DefaultConfig()
	c.InProcess, c.Batches, c.Warmup, c.In, c.Out, c.BatchSize = true, 8, 2, 12, 5, 6
	change(&c)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var people bytes.Buffer
	found, err := Run(ctx, c, &people, nil)
	if err != nil {
		t.Fatal(err)
	}
	return found, people.String()
}

// A run as processes and one as goroutines: the losses are those of a single process on the same data, in float64, to
// 1e-6; the last one is seen after nine steps, so that momentum shows.
func TestLossesOfASingleProcess(t *testing.T) {
	for _, inProcess := range []bool{true, false} {
		var c Config
		found, _ := run(t, func(of *Config) {
			of.InProcess, of.LR = inProcess, 0.05
			c = *of
		})
		want := linear(&c).losses(c.Seed)
		for _, x := range []struct{ have, want float64 }{{found.LossFirst, want[0]}, {found.LossLast, want[len(want)-1]}} {
			if math.Abs(x.have-x.want) > 1e-6 {
				t.Errorf("in process %v: loss %v, want %v", inProcess, x.have, x.want)
			}
		}
		c.Momentum = 0
		if without := linear(&c).losses(c.Seed); math.Abs(without[len(without)-1]-want[len(want)-1]) < 1e-3 {
			t.Error("momentum does not show in the last loss")
		}
		if found.Updates != 10 || found.UpdateSize != 3 || found.Parameters != 65 || !(found.RoundsPerSecond > 0) ||
			!(found.PushBytesPerSecond > 0) || !(found.Seconds > 0) {
			t.Errorf("result %+v", found)
		}
	}
}

// Rates are of the measured batches alone.
func TestRates(t *testing.T) {
	found, _ := run(t, func(c *Config) { c.Trainers = 1 })
	if updates := found.RoundsPerSecond * found.Seconds; math.Abs(updates-8) > 1e-6 {
		t.Errorf("%v updates in the time, want 8", updates)
	}
	if bytes := found.PushBytesPerSecond * found.Seconds; math.Abs(bytes-8*4*65) > 1e-3 {
		t.Errorf("%v bytes of gradients in the time, want those of 8 batches of 65 float32", bytes)
	}
}

// An update for fewer gradients than there are trainers: as many updates as that makes, the last ones of whoever is
// left.
func TestUpdateSizeBelowTrainers(t *testing.T) {
	for _, size := range []int{1, 2} {
		found, _ := run(t, func(c *Config) { c.UpdateSize = size })
		least, most := 30/size, 30
		if int(found.Updates) < least || int(found.Updates) > most || size == 1 && found.Updates != 30 {
			t.Errorf("size %d: %d updates of 30 gradients", size, found.Updates)
		}
	}
}

// The log has the original's lines, in the order of what happened: a trainer is parked after it has reported, an update
// follows its requests, and an answer its update. So it is in one process, in several, with groups of fewer than all,
// and where the server is another's.
func TestLog(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"goroutines":   func(*Config) {},
		"processes":    func(c *Config) { c.InProcess = false },
		"groups of 2":  func(c *Config) { c.UpdateSize = 2 },
		"groups of 1":  func(c *Config) { c.UpdateSize, c.InProcess = 1, false },
		"other server": func(c *Config) { c.Way.Server = startServer(t) },
	} {
		var c Config
		_, log := run(t, func(of *Config) {
			of.Log, of.Batches, of.Warmup = true, 3, 1
			change(of)
			c = *of
		})
		checkLog(t, name, log, c.Trainers, 4, c.job("log").Group)
		if t.Failed() {
			t.Log(log)
		}
	}
}

// Training starts when all trainers have joined, and its time with it: where one cannot join, nothing has started.
func TestTrainingStartsWhenAllHaveJoined(t *testing.T) {
	c := DefaultConfig()
	c.InProcess, c.Log, c.Way.Server = true, true, "nats://127.0.0.1:1" // where nothing listens
	var log bytes.Buffer
	if _, err := Run(t.Context(), c, &log, nil); err == nil || log.Len() > 0 {
		t.Errorf("error %v, and said %q", err, log.String())
	}
}

func isClock(text string) bool {
	_, err := time.Parse("15:04:05", text)
	return err == nil
}

// startServer starts a server for the test, and gives its address.
func startServer(t *testing.T) string {
	t.Helper()
	c := DefaultConfig()
	c.InProcess = true
	servers := c.Harness("server", Roles(), nil, nil)
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	})
	_, url, err := servers.StartServers(context.Background(), 1, harness.ServerSettings{})
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// checkLog follows a log of trainers that do so many batches each, in groups of a size.
func checkLog(t *testing.T, name, log string, trainers, batches, size int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	last := len(lines) - 1
	if last < 2 || !strings.HasSuffix(lines[0], " Start training") ||
		!strings.HasSuffix(lines[last-1], " Finish training") || !strings.Contains(lines[last], " Time spent training: ") {
		t.Errorf("%s: the log begins with %q and ends with %q", name, lines[0], lines[last])
		return
	}
	at := make([]int, trainers) // of each: how many lines it has said
	parked, answered, answers := 0, 0, 0
	var open []int // groups: requests of each
	for _, line := range lines {
		if clock, _, _ := strings.Cut(line, " "); !isClock(clock) {
			t.Errorf("%s: line %q begins with no time of day", name, line)
		}
	}
	for _, line := range lines[1 : last-1] {
		_, text, _ := strings.Cut(line, " ")
		reported := 0
		for _, n := range at {
			reported += (n + 1) / 3
		}
		var trainer, i, n int
		var what string
		if k, _ := fmt.Sscanf(text, "PS got %d/%d updates", &i, &n); k == 2 {
			if parked++; i == 1 {
				open = append(open, 0)
			}
			if len(open) == 0 {
				t.Errorf("%s: %q is of no group", name, line)
				continue
			}
			if open[len(open)-1]++; i != open[len(open)-1] || n != size || parked > reported {
				t.Errorf("%s: %q is request %d, with %d reported; groups %v", name, line, parked, reported, open)
			}
			continue
		}
		if text == "PS updated model" {
			if len(open) == 0 || open[0] < size && !slices.Contains(at, 3*batches) { // those who are done leave remainders
				t.Errorf("%s: an update of groups %v", name, open)
				continue
			}
			answered, open = answered+open[0], open[1:]
			continue
		}
		before, after, _ := strings.Cut(text, " ")
		if _, err := fmt.Sscanf(before, "trainer%d", &trainer); err != nil || trainer < 0 || trainer >= trainers {
			t.Errorf("%s: %q is of nobody", name, line)
			continue
		}
		what = []string{"processing one batch", "reporting grads", "got updated model"}[at[trainer]%3]
		if at[trainer]++; after != what {
			t.Errorf("%s: %q, want %q", name, line, what)
		}
		if what == "got updated model" {
			if answers++; answers > answered {
				t.Errorf("%s: %q is answer %d of %d requests in updates", name, line, answers, answered)
			}
		}
	}
	if parked != trainers*batches || answers != parked || answered != parked {
		t.Errorf("%s: %d requests, %d in updates and %d answers of %d batches", name, parked, answered, answers,
			trainers*batches)
	}
}

// A run that begins with given weights goes on from these, in groups of any size, and files that do not fit are refused
// before anything is started.
func TestGivenWeights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "begin.safetensors")
	save := func(name string, shape ...int) {
		t.Helper()
		weight, bias := make([]float32, 60), make([]float32, shape[0])
		for i := range weight {
			weight[i] = float32(i%7)/8 - 0.25
		}
		for i := range bias {
			bias[i] = float32(i) / 4
		}
		if err := safetensors.Save(path, nil, []safetensors.Tensor{{Name: "weight", Shape: []int{5, 12}, Values: weight},
			{Name: name, Shape: shape, Values: bias}}); err != nil {
			t.Fatal(err)
		}
	}
	save("bias", 5)
	for _, size := range []int{1, 2, 3} {
		var c Config
		found, _ := run(t, func(of *Config) {
			of.Load, of.UpdateSize, of.LR, of.InProcess = path, size, 0.05, size != 3
			c = *of
		})
		_, tensors, err := safetensors.Load(path, func(map[string]string, map[string]safetensors.Tensor) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		given := linear(&c)
		given.from = [][]float32{tensors["weight"].Values, tensors["bias"].Values}
		want := given.losses(c.Seed)
		if size == 3 && math.Abs(found.LossLast-want[len(want)-1]) > 1e-6 {
			t.Errorf("last loss %v, want %v", found.LossLast, want[len(want)-1])
		}
		if math.Abs(found.LossFirst-want[0]) > 1e-6 {
			t.Errorf("groups of %d: first loss %v, want %v", size, found.LossFirst, want[0])
		}
		if least := 30 / size; int(found.Updates) < least || size != 2 && int(found.Updates) != least {
			t.Errorf("groups of %d: %d updates, want %d", size, found.Updates, least)
		}
	}
	for _, x := range []struct {
		want  string
		spoil func(c *Config)
	}{
		{`parameter "bias": the model's has the shape [4]: want [5]`, func(*Config) { save("bias", 4) }},
		{`parameter "bias": the model has none of that name`, func(*Config) { save("biases", 5) }},
		{"the model has a parameter biases of shape [5]: the job has none", func(*Config) { save("biases", 5) }},
		{`parameter "weight": the model's has the shape [5 12]: want [5 13]`, func(c *Config) { save("bias", 5); c.In = 13 }},
		{"no such file", func(c *Config) { c.Load += ".lost" }},
		{`dtype "I32", want F32`, func(*Config) {
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(data, []byte(`"F32"`), []byte(`"I32"`), 1), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		save("bias", 5)
		c := DefaultConfig()
		c.In, c.Out, c.Load = 12, 5, path
		x.spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %s, in one line", err, x.want)
		}
	}
}

// Every batch of every lane has inputs of its own, which the seed gives again.
func TestInputsAreFreshInEveryBatch(t *testing.T) {
	c := DefaultConfig()
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorkload(&c, nn.Env{Backend: backend}, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := map[float32][2]uint64{} // the first of its values
	sum, squares := 0.0, 0.0
	for b := range uint64(300) {
		for l := range uint64(3) {
			w.draw(b, l)
			if other, is := of[w.x[0]]; is {
				t.Errorf("batch and lane %v have the inputs of %v", [2]uint64{b, l}, other)
			}
			of[w.x[0]] = [2]uint64{b, l}
			for _, v := range w.x {
				sum, squares = sum+float64(v), squares+float64(v)*float64(v)
			}
		}
	}
	n := 900 * float64(len(w.x))
	if mean, variance := sum/n, squares/n; math.Abs(mean) > 0.01 || math.Abs(variance-1) > 0.01 {
		t.Errorf("mean %v and variance %v: want 0 and 1", mean, variance)
	}
	w.draw(7, 1)
	if of[w.x[0]] != [2]uint64{7, 1} {
		t.Error("batch 7 of lane 1 is not what it was")
	}
}

func TestBadFlags(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"update-size 4: want 1 to 3":                  func(c *Config) { c.UpdateSize = 4 },
		"update-size -1: want 1 to 3":                 func(c *Config) { c.UpdateSize = -1 },
		"trainers 0: want 1 to 256":                   func(c *Config) { c.Trainers = 0 },
		"batches 0: want 1":                           func(c *Config) { c.Batches = 0 },
		"in 0: want 1 to 65536":                       func(c *Config) { c.In = 0 },
		`model "resnet": want linear or convnet`:      func(c *Config) { c.Model = "resnet" },
		"lr NaN: want 0 to 1e30":                      func(c *Config) { c.LR = math.NaN() },
		"momentum -1: want 0 to 1e30":                 func(c *Config) { c.Momentum = -1 },
		"gpus 1: want 0: its layers have no GPU path": func(c *Config) { c.GPUs = 1 },
		`device "cuda:0": want cpu`:                   func(c *Config) { c.Device.Device = "cuda:0" },
		"runs 0: want 1 to 1000":                      func(c *Config) { c.Runs = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
