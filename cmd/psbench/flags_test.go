package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/bench/harness/harnesstest"
	"gradbus/cuda"
	"gradbus/examples/mnist/mnisttest"
	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
	"gradbus/internal/testkit/flagwalk"
	"gradbus/ps"
)

func TestMain(m *testing.M) {
	harnesstest.ExitIfMember(roles())
	os.Exit(m.Run())
}

var walker = flagwalk.Walker{New: command, Root: "../..", Echoes: []string{"hook", "server", "servers", "trainers",
	"mode",
	"sync", "placement", "device", "server_device", "data", "model", "update_size"}}

const (
	started   = "servers are started here: want --server"
	alone     = "these trainers send to servers alone"
	eachHost  = "what is printed for --hosts says it for each host"
	reaches   = "internal/connect.TestEveryFlagReachesTheTrainer"
	noGPUPath = "its layers have no GPU path yet"
	run       = "the ps at --server run already"
)

// write writes a file of the test's folder.
// common are the flags of every system where servers are started, in one process, with one line of JSON.
func common(t *testing.T) flagwalk.Flags {
	folder := t.TempDir()
	file := testkit.File(t, folder, "settings.yaml", []byte("seed: 7\n"))
	return flagwalk.Flags{
		"seed": flagwalk.Set("7"), "json": flagwalk.Set("false"), "config": flagwalk.Set(file),
		"kernel-library": flagwalk.Held("e2e.TestKernelLibrary"),
		"profile":        flagwalk.Set("DIR"), "runs": flagwalk.Held("cmd/psbench.TestJoinedFlags"),
		"in-process": {Value: "false", With: "--profile DIR"},
		"job":        flagwalk.Held("cmd/psbench.TestJoinedFlags"),
		"hosts":      flagwalk.Refused("a,b", eachHost),
		"server":     flagwalk.Fails("nats://127.0.0.1:1", "127.0.0.1:1"),
		"here":       flagwalk.Refused("1", "only with --server"),
		"token-file": flagwalk.Refused("none", started), "nats-creds": flagwalk.Refused("none", started),
		"credentials": flagwalk.Refused("none", started),
		"tls-cert":    flagwalk.Refused("none", started), "tls-key": flagwalk.Refused("none", started),
		"tls-ca": flagwalk.Refused("none", started), "route": flagwalk.Refused("direct", started),
		"data-host": flagwalk.Refused("::1", started), "advertise": flagwalk.Refused("a", started),
	}
}

// onGPU is what becomes of a flag that asks for CUDA: a computation, where there is a GPU.
func onGPU(words string) flagwalk.Flag {
	if b, err := cuda.Open(cuda.Options{Name: "cuda"}); err == nil {
		_ = b.Close()
		return flagwalk.Set("cuda")
	}
	return flagwalk.Fails("cuda", words)
}

const updateBase = "update --trainers 2 --batches 3 --warmup 1 --trainer-batch 2"

func updateFlags(t *testing.T) flagwalk.Flags {
	return common(t).And(flagwalk.Flags{
		"trainers": flagwalk.Set("3"), "batches": flagwalk.Set("4"), "warmup": flagwalk.Set("2"),
		"in": flagwalk.Set("5"), "out": flagwalk.Set("6"), "trainer-batch": flagwalk.Set("3"), "lr": flagwalk.Set("0.5"),
		"momentum": flagwalk.Set("0.1"), "update-size": flagwalk.Set("1"), "model": flagwalk.Set("convnet"),
		"load": flagwalk.Fails("DIR/none", "none"), "log": flagwalk.Set("true"),
		"gpus": flagwalk.Refused("1", noGPUPath), "device": flagwalk.Refused("cuda", noGPUPath),
		"procs":           flagwalk.Held("bench/harness.TestLimitProcs"),
		"telemetry-every": flagwalk.Fails("2h", "want at most an hour"),
		"heartbeat-every": flagwalk.Fails("-1s", "want a positive time"),
	})
}

func TestUpdateFlags(t *testing.T) {
	base, flags := updateBase+" --in-process --json", updateFlags(t)
	walker.Walk(t, flagwalk.Setting{Line: base, Flags: flags})
	own := "the convolutional model has images and classes of its own"
	walker.Walk(t, flagwalk.Setting{Line: base + " --model convnet", Flags: flags.And(flagwalk.Flags{
		"in": flagwalk.Refused("100", own), "out": flagwalk.Refused("30", own), "model": flagwalk.Set("linear")})})
}

const averageBase = "average --trainers 2 --model Small --input Small"

func averageFlags(t *testing.T) flagwalk.Flags {
	folder := t.TempDir()
	model := testkit.File(t, folder, "model.json", []byte(`{"num_embeddings": 64, "embedding_dim": 64, "dense_input_size": 64,
		"dense_output_size": 64, "dense_layers_count": 2, "sparse": true}`))
	data := testkit.File(t, folder, "data.json", []byte(`{"max_val": 64, "sample_count": 90, "sample_length": 100,
		"sparsity_percentage": 10}`))
	return common(t).And(flagwalk.Flags{
		"trainers": flagwalk.Set("3"), "servers": {Value: "2", With: "--in-process=false --profile DIR"},
		"server-kind": flagwalk.Held("bench/average.TestServersDiffer"),
		"hook":        flagwalk.Held("bench/average.TestHookMetrics"),
		"epochs":      flagwalk.Set("2"), "trainer-batch": flagwalk.Set("16"), "input": flagwalk.Set(data),
		"model": flagwalk.Set(model), "sparse": flagwalk.Held("bench/average.TestRowsTravelCoalesced"),
		"first-bucket-bytes": flagwalk.Held("bench/average.TestTraceShowsOverlap"),
		"bucket-bytes":       flagwalk.Held("bench/average.TestTraceShowsOverlap"),
		"lr":                 flagwalk.Set("0.5"), "mean": flagwalk.Set("lanes"),
		"rpc-timeout": flagwalk.Held("bench/average.TestStrayTrainerIsNamed"),
		"criterion":   flagwalk.Set("nll"),
		// which changes rounding alone
		"preprocess":     {Value: "sort_ids", With: "--lr=1 --input=" + data},
		"iteration-step": flagwalk.Held("bench/average.TestTraceShowsOverlap"),
		"backend":        onGPU("backend cuda"), "server-backend": onGPU("server-backend cuda"),
		"csv": flagwalk.Set("DIR/tables"), "trace": flagwalk.Set("DIR/trace.json"),
	})
}

func TestAverageFlags(t *testing.T) {
	flags := averageFlags(t)
	noServer := "no server adds anything up"
	for hook, changed := range map[string]flagwalk.Flags{
		"rpc":    {},
		"hybrid": {"server-kind": flagwalk.Refused("average", noServer)},
	} {
		walker.Walk(t, flagwalk.Setting{Flags: flags.And(changed),
			Line: averageBase + " --in-process --json --hook " + hook})
	}
}

const hybridBase = "hybrid --trainers 1 --servers 2 --embeddings 30 --dim 4 --epochs 1 --warmup 1 --batches 2"

func TestHybridFlags(t *testing.T) {
	for _, c := range []struct {
		mode, placement string
		mean            flagwalk.Flag
	}{
		{"async", "rows", flagwalk.Held("bench/hybrid.TestMeanOverLanes")}, // of several trainers, who come as they come
		{"sync", "tables", flagwalk.Flag{Value: "lanes", With: "--trainers 2"}},
	} {
		walker.Walk(t, flagwalk.Setting{
			Line:  hybridBase + " --in-process --json --mode " + c.mode + " --placement " + c.placement,
			Flags: common(t).And(hybridFlags()).And(flagwalk.Flags{"mean": c.mean})})
	}
}

func hybridFlags() flagwalk.Flags {
	return flagwalk.Flags{
		"trainers": flagwalk.Set("2"), "servers": flagwalk.Set("3"),
		"embeddings": flagwalk.Set("40"), "dim": flagwalk.Set("5"), "epochs": flagwalk.Set("2"), "warmup": flagwalk.Set("2"),
		"batches": flagwalk.Set("3"), "lr": flagwalk.Set("0.5"), "library": flagwalk.Set("own"),
		"mode":      flagwalk.Held("bench/hybrid.TestAsyncAsProcesses"),
		"placement": flagwalk.Held("cmd/psbench.TestJoinedFlags"), "chunk": flagwalk.Held("cmd/psbench.TestJoinedFlags"),
		"gpus": flagwalk.Refused("1", noGPUPath), "device": flagwalk.Refused("cuda", noGPUPath),
	}
}

func hostedFlags(t *testing.T) (base string, flags flagwalk.Flags) {
	base = "hosted --trainers 1 --trainer-batch 3 --warmup 1 --data-dir " + mnisttest.Folder(t)
	return base, common(t).And(flagwalk.Flags{
		"trainers": flagwalk.Set("2"), "epochs": flagwalk.Set("2"),
		"batches": flagwalk.Set("2"), "warmup": {Value: "2", With: "--batches 1"},
		"mode": flagwalk.Held("bench/hosted.TestBothModes"), "sync": flagwalk.Held("bench/hosted.TestBothModes"),
		"gpus": flagwalk.Refused("1", noGPUPath), "device": flagwalk.Refused("cuda", noGPUPath),
		"input":         flagwalk.Refused("synthetic", "--input mnist or fashion"),
		"data-dir":      flagwalk.Fails(t.TempDir(), "train-images-idx3-ubyte"),
		"trainer-batch": flagwalk.Set("4"), "lr": flagwalk.Set("0.01"), "momentum": flagwalk.Set("0.5"),
		"local-step": flagwalk.Refused("true", "--local-step is one process"),
	})
}

func TestHostedFlags(t *testing.T) {
	base, flags := hostedFlags(t)
	base += " --in-process --json"
	stepping := "in mode remote the server steps for each gradient"
	walker.Walk(t, flagwalk.Setting{Line: base, Flags: flags.And(flagwalk.Flags{
		"sync": flagwalk.Refused("async", stepping)})})
	walker.Walk(t, flagwalk.Setting{Line: base + " --mode pull --sync reduce", Flags: flags})
	// of two batches, the second is of one version or of another
	walker.Walk(t, flagwalk.Setting{Line: base + " --mode pull --sync bounded --warmup 0 --batches 1",
		Flags: flags.And(flagwalk.Flags{"epochs": flagwalk.Refused("1", "--batches says how long"),
			"momentum": flagwalk.Held("examples/mnist.TestAgainstOwnSteps")})})
}

// observed is a ps that asks for a token, and what its log says of jobs since it was last asked.
func observed(t *testing.T) (line string, sees func() string) {
	t.Helper()
	token := testkit.File(t, t.TempDir(), "token", []byte("0123456789abcdef\n"))
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var log jobs
	c := ps.Default()
	c.Port, c.Shards, c.Token = 0, 2, "0123456789abcdef"
	server, err := ps.Start(t.Context(), c, ps.Options{Backend: backend, Log: slog.New(slog.NewJSONHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return "--server " + server.URL() + " --token-file " + token, log.take
}

// jobs keeps what is logged of jobs: their names, trainers, and the memory that they had on shards, if any.
type jobs struct {
	mu    sync.Mutex
	lines []string
	held  int // jobs that have memory
}

func (j *jobs) Write(line []byte) (int, error) {
	var said struct {
		Msg, Job                string
		Trainers, Shards, Bytes int
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch said.Msg {
	case "job registered":
		j.held += min(said.Shards, 1)
	case "job freed":
		j.held--
	default:
		return len(line), nil
	}
	j.lines = append(j.lines, fmt.Sprintf("%s %s trainers %d bytes %d", said.Msg, said.Job, said.Trainers, said.Bytes))
	return len(line), nil
}

// take gives what was logged when no job has memory any more.
func (j *jobs) take() string {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		j.mu.Lock()
		if j.held == 0 || time.Now().After(deadline) {
			defer j.mu.Unlock()
			slices.Sort(j.lines)
			text := strings.Join(j.lines, "\n") + "\n"
			j.lines = nil
			return text
		}
		j.mu.Unlock()
	}
}

// joined are the flags of every system at servers that run.
func joined(t *testing.T) flagwalk.Flags {
	folder := t.TempDir()
	wrong := testkit.File(t, folder, "wrong", []byte("fedcba9876543210\n"))
	authority := certtest.NewAuthority(t)
	return flagwalk.Flags{
		"job": flagwalk.Set("other"), "here": {Value: "3", Refused: "want 1 to 2, the number of trainers"},
		"server": flagwalk.Fails("nats://127.0.0.1:1", "127.0.0.1:1"), "token-file": flagwalk.Fails(wrong, "token"),
		"credentials": flagwalk.Fails(folder+"/none", "none"),
		"nats-creds":  flagwalk.Fails(folder+"/none", "none"), "tls-ca": flagwalk.Fails(authority.File, "speaks no TLS"),
		"tls-cert":  flagwalk.Refused("none", "want both or neither"),
		"tls-key":   flagwalk.Refused("none", "want both or neither"),
		"route":     flagwalk.Held("internal/connect.TestEveryFlagReachesTheTrainer"),
		"data-host": flagwalk.Fails("192.0.2.1", "192.0.2.1"), // an address that no machine has
		"advertise": flagwalk.Fails("127.0.0.1:1", "announces its data server at nats://127.0.0.1:"),
		"hosts":     flagwalk.Refused("a,b", eachHost),
	}
}

// known are flags whose effect a test of this package shows without a running server.
func known(test string, flags flagwalk.Flags) flagwalk.Flags {
	all := flagwalk.Flags{}
	for name := range flags {
		all[name] = flagwalk.Held("cmd/psbench." + test)
	}
	return all
}

// At servers that run, the flags of the way to them are walked; the others say what they say elsewhere.
func TestJoinedFlags(t *testing.T) {
	alone := flagwalk.Flags{"data-host": flagwalk.Refused("::1", alone), "advertise": flagwalk.Refused("a", alone)}
	walk := func(line string, flags flagwalk.Flags) {
		t.Helper()
		at, sees := observed(t)
		walker.Walk(t, flagwalk.Setting{Line: line + " --in-process --json " + at, Flags: flags, Sees: sees})
	}
	walk(updateBase, known("TestUpdateFlags", updateFlags(t)).And(joined(t)).And(alone))
	average := known("TestAverageFlags", averageFlags(t)).And(joined(t)).And(flagwalk.Flags{
		"runs": flagwalk.Set("2"), "servers": flagwalk.Refused("1", run), "server-backend": flagwalk.Refused("cpu", run)})
	walk(averageBase, average.And(alone))
	walk(averageBase+" --hook allreduce", average.And(flagwalk.Flags{
		"server-kind": flagwalk.Refused("average", "no server adds anything up")}))
	walk(hybridBase+" --trainers 2 --mode sync --placement rows", known("TestHybridFlags", hybridFlags().And(common(t))).And(
		joined(t)).And(flagwalk.Flags{"trainers": flagwalk.Set("1"), "placement": flagwalk.Set("columns"),
		"chunk": flagwalk.Set("4096"), "mean": flagwalk.Set("lanes")}))
	base, hosted := hostedFlags(t)
	hosted = known("TestHostedFlags", hosted).And(joined(t))
	walk(base, hosted.And(alone).And(flagwalk.Flags{
		"sync": flagwalk.Refused("async", "in mode remote"), "here": flagwalk.Refused("2", "want 1 to 1")}))
	walk(base+" --mode pull --sync reduce --trainers 2", hosted.And(flagwalk.Flags{"trainers": flagwalk.Set("1")}))
}

// With --hosts every flag goes into what is printed, but for those that say there what each host is told.
func TestHostsFlags(t *testing.T) {
	printed := func(flags flagwalk.Flags) flagwalk.Flags {
		all := flagwalk.Flags{}
		for name, f := range flags {
			if f.Test != "" || f.With != "" || f.Fails != "" {
				continue // below
			}
			all[name] = f
		}
		return all.And(flagwalk.Flags{
			"kernel-library": flagwalk.Held("e2e.TestKernelLibrary"),
			"config":         all["config"], "profile": flagwalk.Set("p"),
			"runs": flagwalk.Set("2"), "job": flagwalk.Set("other"),
			"in-process": flagwalk.Refused("true", eachHost), "hosts": flagwalk.Set("c"),
			"server": flagwalk.Set("nats://n:4222"), "here": flagwalk.Refused("1", "only with --server"),
			"data-host": flagwalk.Refused("::1", "leave it out"), "advertise": flagwalk.Refused("a", "leave it out"),
			"token-file": flagwalk.Set("t"), "nats-creds": flagwalk.Set("c"), "tls-cert": flagwalk.Set("c"),
			"credentials": flagwalk.Set("k"),
			"tls-key":     flagwalk.Set("k"), "tls-ca": flagwalk.Set("a"), "route": flagwalk.Set("cluster"),
			"json": flagwalk.Set("true"),
		})
	}
	walk := func(line string, flags, more flagwalk.Flags) {
		t.Helper()
		walker.Walk(t, flagwalk.Setting{Line: line + " --hosts a,b:4300", Flags: printed(flags).And(more)})
	}
	walk(updateBase, updateFlags(t), flagwalk.Flags{"load": flagwalk.Fails("none", "none"), "procs": flagwalk.Set("2"),
		"telemetry-every": flagwalk.Set("2s"), "heartbeat-every": flagwalk.Set("2s")})
	walk(averageBase, averageFlags(t), flagwalk.Flags{"servers": flagwalk.Set("2"),
		"server-kind": flagwalk.Set("average-batch"),
		"hook":        flagwalk.Set("allreduce"), "sparse": flagwalk.Set("false"), "first-bucket-bytes": flagwalk.Set("8192"),
		"bucket-bytes": flagwalk.Set("8192"), "rpc-timeout": flagwalk.Set("9"), "preprocess": flagwalk.Set("sort_ids"),
		"iteration-step": flagwalk.Set("sequential_iteration_step"), "backend": flagwalk.Set("cuda"),
		"server-backend": flagwalk.Set("cuda")})
	walk(hybridBase, hybridFlags().And(common(t)), flagwalk.Flags{"mean": flagwalk.Set("lanes"),
		"mode":      flagwalk.Set("sync"),
		"placement": flagwalk.Set("rows"), "chunk": flagwalk.Set("4096")})
	base, hosted := hostedFlags(t)
	walk(base, hosted, flagwalk.Flags{"sync": flagwalk.Refused("async", "in mode remote"), "mode": flagwalk.Set("pull"),
		"warmup": flagwalk.Set("2"), "data-dir": flagwalk.Set("d")})
}

func TestEmptyValues(t *testing.T) { walker.Empty(t) }
