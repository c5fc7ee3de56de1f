package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/examples/mnist/mnisttest"
	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
	"gradbus/internal/testkit/flagwalk"
	"gradbus/ps"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "packages" || os.Args[1] == "mnist" || os.Args[1] == "movielens") {
		main() // a trainer that one of these tests has started
	}
	os.Exit(m.Run())
}

var walker = flagwalk.Walker{Root: "../..", New: func() *cobra.Command {
	c := command()
	c.SetErr(os.Stderr)
	return c
}, Run: stdout, Echoes: []string{"trainers", "shards", "lanes", "job", "saved", "input", "epochs", "test_samples"}}

// stdout runs a command; what it prints goes where the test looks.
func stdout(ctx context.Context, c *cobra.Command, _ string) error { return c.ExecuteContext(ctx) }

// server is a ps that asks for a token.
func server(t *testing.T) string {
	t.Helper()
	const secret = "0123456789abcdef"
	token := testkit.File(t, t.TempDir(), "token", []byte(secret+"\n"))
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := ps.Default()
	c.Port, c.Shards, c.Token = 0, 2, secret
	server, err := ps.Start(t.Context(), c, ps.Options{Backend: backend, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return " --server " + server.URL() + " --token-file " + token
}

const (
	withLocal = "want --local with it"
	training  = "give one of the two"
	alone     = "want --reduce trainers with it"
	reaches   = "internal/connect.TestEveryFlagReachesTheTrainer"
)

// shared are the flags of all workloads, of a job of one trainer at a ps, which prints one line of JSON.
func shared(t *testing.T) flagwalk.Flags {
	folder := t.TempDir()
	wrong := testkit.File(t, folder, "wrong", []byte("fedcba9876543210\n"))
	authority := certtest.NewAuthority(t)
	manifest := func(value string) flagwalk.Flag { return flagwalk.Flag{Value: value, With: "--tensorboard DIR"} }
	return flagwalk.Flags{
		"server": flagwalk.Fails("nats://127.0.0.1:1", "127.0.0.1:1"), "token-file": flagwalk.Fails(wrong, "token"),
		"credentials": flagwalk.Fails(folder+"/none", "none"),
		"nats-creds":  flagwalk.Fails(folder+"/none", "none"), "tls-ca": flagwalk.Fails(authority.File, "speaks no TLS"),
		"tls-cert": flagwalk.Refused("none", "want both or neither"),
		"tls-key":  flagwalk.Refused("none", "want both or neither"),
		"route":    flagwalk.Held(reaches), "data-host": flagwalk.Refused("::1", alone),
		"advertise":         flagwalk.Refused("a", alone),
		"reconnect-timeout": flagwalk.Fails("-1s", "want a positive time"),
		"window-mib":        flagwalk.Fails("65", "window bytes"),
		"job":               manifest("other"), "trainers": {Value: "2", With: "--spawn --tensorboard DIR"},
		"lanes": flagwalk.Set("3"),
		"id":    flagwalk.Held("e2e.TestSeveralHosts"), "resume": flagwalk.Fails("true", "checkpoint"),
		"spawn": flagwalk.Held("e2e.TestSeveralHosts"), "local": flagwalk.Refused("true", training),
		"shards": flagwalk.Refused("2", withLocal), "memory-mib": flagwalk.Refused("64", withLocal),
		"http": flagwalk.Refused("127.0.0.1:0", withLocal), "epochs": flagwalk.Set("2"), "batch": flagwalk.Set("8"),
		"lr": flagwalk.Set("0.01"), "optimizer": flagwalk.Set("adam"), "schedule": flagwalk.Set("cosine:total=4"),
		"clip": flagwalk.Set("value:0.0001"), "momentum": flagwalk.Set("0.25"), "seed": flagwalk.Set("7"),
		"reduce": {Value: "trainers", With: "--apply mean --tensorboard DIR"}, "apply": manifest("mean"),
		"consistency":    manifest("async"),
		"staleness":      flagwalk.Refused("1", "consistency"),
		"gpu-library":    flagwalk.Refused("none", "no GPU is used here"),
		"failure-policy": manifest("wait"), "on-nonfinite": manifest("skip"), "wire": flagwalk.Set("bfloat16"),
		"error-feedback": {Value: "true", With: "--wire bfloat16"}, "backend": flagwalk.Set("go"),
		"isa": flagwalk.Set("baseline"), "threads": flagwalk.Held("cuda.TestThreads"),
		"kernel-library": flagwalk.Held("e2e.TestKernelLibrary"),
		"verify":         flagwalk.Held("e2e.TestWrongBitOnTrainer"), "gpu": flagwalk.Held("e2e.TestGPUFlags"),
		"gpu-expected": flagwalk.Refused("1", "no GPU is used here"),
		"gpu-state":    flagwalk.Refused("off", "no GPU is used here"),
		"gpu-use":      flagwalk.Held("e2e.TestTrainerGPUFault"), "inject": flagwalk.Fails("xid", "inject"),
		"json": flagwalk.Set("false"), "save": flagwalk.Set("DIR/model.safetensors"),
		"save-every": flagwalk.Refused("1", alone),
		"load":       flagwalk.Fails(folder+"/none", "none"), "tensorboard": flagwalk.Set("DIR"),
		"log-format": flagwalk.Fails("xml", "xml"), "log-level": flagwalk.Fails("loud", "loud"),
		"events": flagwalk.Set("all"), "predict": flagwalk.Refused("x", "needs a model"),
		"config": flagwalk.Set(testkit.File(t, folder, "settings.yaml", []byte("seed: 7\n"))),
		"group":  flagwalk.Refused("1", "consistency"),
	}
}

// index is a small package index.
func index(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, section := range []string{"admin", "devel", "games", "math"} {
		for _, word := range strings.Fields("one two three four five six seven eight nine ten") {
			fmt.Fprintf(&b, "Package: %s-%s\nVersion: 1\nSection: %[1]s\nDescription: %[1]sword %[2]s\n\n", section, word)
		}
	}
	return testkit.File(t, t.TempDir(), "Packages", []byte(b.String()))
}

func TestPackagesFlags(t *testing.T) {
	flags := shared(t).And(flagwalk.Flags{
		"input": flagwalk.Fails("none", "none"), "dim": flagwalk.Set("4"),
		"placement": {Value: "rows", With: "--tensorboard DIR"},
		"dump":      flagwalk.Refused("DIR/dump", training),
	})
	line := "packages --json --epochs 1 --batch 16 --dim 8 --lr 1 --input " + index(t)
	walker.Walk(t, flagwalk.Setting{Line: line + server(t), Flags: flags})
	walkLocal(t, line, flags)
	walker.Walk(t, flagwalk.Setting{Line: line + " --apply mean --reduce trainers" + server(t),
		Flags: flags.And(flagwalk.Flags{"data-host": flagwalk.Fails("192.0.2.1", "192.0.2.1"),
			"apply": flagwalk.Fails("update", "apply"), "consistency": flagwalk.Fails("async", "apply"),
			"reduce":     {Value: "shards", With: "--tensorboard DIR"},
			"save-every": flagwalk.Refused("1", "want --save with it"),
			"wire":       flagwalk.Fails("bfloat16", "want \"float32\""), "error-feedback": flagwalk.Fails("true", "wire"),
			"failure-policy": flagwalk.Fails("wait", "policy"),
			"advertise":      flagwalk.Held(reaches)})})
}

// walkLocal walks a workload's flags in one process.
func walkLocal(t *testing.T, line string, flags flagwalk.Flags) {
	t.Helper()
	none := flagwalk.Flags{}
	for _, name := range strings.Fields("server token-file nats-creds tls-cert tls-key tls-ca route data-host advertise " +
		"reconnect-timeout id spawn resume") {
		none[name] = flagwalk.Refused(valid(flags[name]), training)
	}
	walker.Walk(t, flagwalk.Setting{Line: line + " --local", Flags: flags.And(none).And(flagwalk.Flags{
		"local": flagwalk.Held("e2e.TestLocalSameWeights"), "shards": flagwalk.Held("e2e.TestLocalSameWeights"),
		"http": flagwalk.Held("e2e.TestLocalSameWeights"), "memory-mib": flagwalk.Fails("1", "memory-mib"),
		"trainers": {Value: "2", With: "--tensorboard DIR"}, "events": flagwalk.Set("all")})})
}

// valid is a value that the flag takes.
func valid(f flagwalk.Flag) string { return cmp.Or(f.Value, "1") }

func TestMnistFlags(t *testing.T) {
	flags := shared(t).And(flagwalk.Flags{
		"input": flagwalk.Refused("synthetic", "--input mnist or fashion"), "data-dir": flagwalk.Fails("none", "none"),
		"batches": flagwalk.Set("3"), "epochs": flagwalk.Refused("1", "--batches says how long"),
		"lr": flagwalk.Set("0.02"), "library": flagwalk.Set("own"), "group": flagwalk.Refused("1", "consistency"),
	})
	walker.Walk(t, flagwalk.Setting{Flags: flags,
		Line: "mnist --json --batches 2 --batch 12 --lr 0.01 --data-dir " + mnisttest.Folder(t) + server(t)})
}

func TestMovielensFlags(t *testing.T) {
	var b strings.Builder
	b.WriteString("userId,movieId,rating,timestamp\n")
	for i := range 120 {
		fmt.Fprintf(&b, "%d,%d,%d.0,%d\n", i%10+1, i%17+1, i%5+1, 1000+(i*37)%120)
	}
	ratings := testkit.File(t, t.TempDir(), "ratings.csv", []byte(b.String()))
	flags := shared(t).And(flagwalk.Flags{
		"input": flagwalk.Fails("none", "none"), "split": flagwalk.Set("time"), "factors": flagwalk.Set("3"),
		"rows": flagwalk.Set("32"), "decay": flagwalk.Set("0.5"),
		"momentum": flagwalk.Refused("0.25", "it is of sgd"), "error-feedback": flagwalk.Refused("true", "rows of tables"),
		"dump": flagwalk.Refused("DIR/dump", training),
	})
	walker.Walk(t, flagwalk.Setting{Flags: flags,
		Line: "movielens --json --epochs 1 --batch 32 --factors 4 --rows 64 --input " + ratings + server(t)})
}

// Where a saved model is asked, or data is written to a file, every flag is refused that is of training.
func TestAsideFlags(t *testing.T) {
	own := flagwalk.Flags{"input": {}, "dim": {}, "placement": {}, "dump": {}, "data-dir": {}, "batches": {},
		"library": {}, "split": {}, "factors": {}, "rows": {}, "decay": {}}
	flags := shared(t).And(own)
	for line, takes := range map[string]string{
		"packages --load none --predict x":   "backend isa threads json",
		"mnist --load none --predict x":      "backend isa threads json library",
		"movielens --load none --predict 15": "json",
		"packages --dump none/dump":          "input",
		"movielens --dump none/dump":         "input split",
	} {
		leaf, _, err := command().Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		leaf.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if slices.Contains(append(strings.Fields(takes), always...), f.Name) || strings.Contains(line, "--"+f.Name+" ") {
				return
			}
			c := command()
			c.SetArgs(append(strings.Fields(line), "--"+f.Name+"="+valid(flags[f.Name])))
			if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--"+f.Name+" ") ||
				!strings.Contains(err.Error(), training) && !strings.Contains(err.Error(), "needs a model") {
				t.Errorf("%s --%s: %v, want it refused", line, f.Name, err)
			}
		})
	}
}

func TestEmptyValues(t *testing.T) { walker.Empty(t) }
