package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layer is what one package may import besides the standard library: packages of this module by their path below it,
// and other modules by a prefix.
type layer struct {
	own, others []string
	// noStd lists what it must not know of the standard library.
	noStd []string
}

var (
	// pure packages hold arithmetic and decisions: no clock is read and nothing is sent by accident of an import.
	noNetwork = []string{"net", "net/http", "os/exec"}
	noTime    = []string{"net", "net/http", "os", "os/exec", "time"}
	nats      = []string{"github.com/nats-io/"}
)

// layers is the picture of the repository: every package is here, and arrows that are not here do not exist.
var layers = map[string]layer{
	"":              {noStd: noNetwork},
	"lane":          {noStd: noNetwork},
	"philox":        {noStd: noNetwork},
	"cuda":          {own: []string{"lane"}, noStd: noNetwork},
	"cuda/bench":    {own: []string{"cuda", "philox"}, noStd: noNetwork},
	"schema/crc32c": {others: []string{"golang.org/x/sys/cpu"}, noStd: noNetwork},
	"schema/wire":   {others: []string{"github.com/google/flatbuffers"}, noStd: noNetwork},
	"schema": {own: []string{"", "lane", "schema/crc32c", "schema/wire"},
		others: []string{"github.com/go-json-experiment/json", "github.com/google/flatbuffers"}, noStd: noNetwork},
	// Files that appear whole or not at all.
	"internal/atomicfile": {own: []string{"internal/planted"}, noStd: noNetwork},
	// Logs in which no message repeats without bound.
	"internal/loglimit": {others: []string{"golang.org/x/time/rate"}, noStd: noNetwork},

	"internal/temporary": {noStd: noNetwork},
	// Files that a user or a message names, opened without waiting.
	"internal/regular": {noStd: noNetwork},
	// A certificate and its key in files, and what makes them for tests.
	"internal/certificate":          {own: []string{"internal/regular"}, noStd: noNetwork},
	"internal/certificate/certtest": {own: []string{"internal/atomicfile"}},
	// Who was silent for too long: decisions alone.
	"internal/liveness": {own: []string{"internal/planted"}, noStd: noNetwork},
	"internal/planted":  {noStd: []string{"net", "net/http", "os", "os/exec", "time"}}, // defects, for tests
	// What a process takes of its machine, as reports say it.
	"internal/process": {own: []string{"schema"}, others: []string{"golang.org/x/sys/unix"}, noStd: noNetwork},
	// How late the kernel may wake the threads of a program.
	"internal/timerslack": {others: []string{"golang.org/x/sys/unix"}, noStd: noNetwork},
	"fabric": {own: []string{"internal/loglimit", "internal/regular", "internal/temporary"}, others: nats,
		noStd: []string{"net/http", "os/exec"}},

	// How GPUs are: decisions, the probe that asks the driver, and who runs it.
	"internal/gpu": {own: []string{"internal/atomicfile", "internal/process", "internal/regular", "schema"},
		others: []string{"github.com/NVIDIA/go-nvml/", "github.com/gofrs/flock", "github.com/spf13/"}, noStd: []string{"net", "net/http"}},
	"internal/verification": {own: []string{"cuda", "internal/gpu", "internal/process", "schema"},
		others: []string{"github.com/spf13/"}, noStd: []string{"net", "net/http"}},
	// The flag of a kernel library, of whatever computes.
	"internal/kernelflag": {own: []string{"cuda"}, others: []string{"github.com/spf13/pflag"}, noStd: noNetwork},
	"internal/gpu/fake":   {noStd: []string{"net", "net/http"}}, // a stand-in for the driver's library, for tests

	// What operators see. ps knows none of it.
	"ps/ops": {own: []string{"internal/certificate", "internal/loglimit", "ps/ops/status", "schema"},
		noStd: []string{"os/exec"}},
	"ps/ops/status":            {own: []string{"internal/liveness", "schema"}, noStd: noNetwork},
	"ps/ops/status/statustest": {own: []string{"ps/ops/status", "schema"}, noStd: noNetwork},
	"ps/ops/metrics": {own: []string{"ps/ops/status", "schema"}, others: []string{"github.com/prometheus/"},
		noStd: []string{"os/exec"}},
	// It looks at a machine.
	"ps/ops/doctor": {
		own:   []string{"cuda", "internal/process", "ps/ops/status", "ps/ops/terminal", "schema"},
		noStd: []string{"os/exec"},
	},
	// A client of a ps's page: it asks over HTTP and knows nothing else of the process it runs in.
	"ps/ops/terminal": {own: []string{"ps/ops/status", "schema"}, noStd: []string{"os", "os/exec"}},
	// What a ps shows, put together for whoever runs one.
	"ps/ops/display": {
		own: []string{"", "docs", "fabric", "internal/process", "ps", "ps/ops", "ps/ops/metrics", "ps/ops/status",
			"ps/ops/page", "schema"},
		noStd: []string{"os/exec"},
	},
	"ps/ops/tap":  {own: []string{"fabric", "schema"}, noStd: noNetwork}, // it listens to frames, and says nothing
	"ps/ops/page": {noStd: noNetwork},                                    // files for a browser
	"docs":        {noStd: noNetwork},                                    // files, too

	// Test support: a proxy that harms messages. It knows NATS's framing and nothing else.
	"fabric/fabrictest": {own: []string{"internal/testkit"}, others: []string{"go.uber.org/goleak"}},
	"internal/testkit":  {others: []string{"go.uber.org/goleak"}, noStd: noNetwork},
	"fabric/chaos":      {noStd: []string{"net/http", "os/exec"}},

	"nn": {own: []string{"cuda", "lane", "philox"}, noStd: noNetwork},
	// The owner of parameters, pure: frames in, frames out.
	"shard": {own: []string{"cuda", "internal/planted", "lane", "schema", "shard/round", "shard/state"}, noStd: noTime},
	// Files of versions of a job, and what is read of them.
	"checkpoint": {own: []string{"internal/atomicfile", "internal/regular", "internal/safetensors", "nn", "schema",
		"schema/crc32c", "shard/state"},
		noStd: noNetwork},
	// A shard behind the windows of its contributors, for who has connections.
	"shard/endpoint":  {own: []string{"fabric", "schema", "shard", "shard/round"}, noStd: noNetwork},
	"shard/round":     {own: []string{"cuda", "internal/planted", "lane", "schema"}, noStd: noTime},
	"shard/state":     {own: []string{"cuda", "internal/planted", "lane", "philox", "schema"}, noStd: noTime},
	"shard/shardtest": {own: []string{"cuda", "lane", "philox", "schema"}, noStd: noNetwork}, // jobs and frames, for tests
	"ps": {own: []string{"checkpoint", "cuda", "fabric", "lane", "internal/liveness", "internal/loglimit",
		"internal/planted", "internal/process", "ps/coordinator", "ps/members", "ps/module", "schema", "shard", "shard/endpoint", "shard/round",
		"shard/state"}, others: []string{"golang.org/x/time/rate"},
		noStd: []string{"net/http", "os/exec"}},
	// Who may connect, and what each may publish and hear.
	"ps/members": {own: []string{"fabric", "internal/regular", "schema"}, noStd: []string{"net", "net/http", "os", "os/exec"}},
	// What a job's coordinator decides, pure: events and time in, decisions out.
	"ps/coordinator": {own: []string{"checkpoint", "internal/liveness", "internal/planted", "lane", "schema"},
		noStd: []string{"context", "net", "net/http", "os", "os/exec", "sync", "sync/atomic"}},
	"ps/module": {own: []string{"cuda", "fabric", "nn", "schema", "shard", "shard/round", "shard/state"},
		others: []string{"golang.org/x/time/rate"}, noStd: []string{"net", "net/http", "os", "os/exec"}},
	"trainer": {own: []string{"checkpoint", "cuda", "fabric", "lane", "nn", "philox", "internal/client", "internal/liveness",
		"internal/loglimit", "internal/planted", "internal/process", "internal/safetensors", "schema", "shard",
		"shard/endpoint", "shard/round", "shard/state",
		"trainer/shuffle", "trainer/internal/exchange"}, others: []string{"golang.org/x/time/rate"},
		noStd: []string{"net/http", "os/exec"}},
	// What a trainer asks for again, pure: events and time in, actions out.
	"trainer/internal/exchange": {own: []string{"fabric", "schema"},
		noStd: []string{"context", "net", "net/http", "os", "os/exec", "sync"}},
	"local": {own: []string{"cuda", "fabric", "ps", "schema", "trainer"}, noStd: noNetwork},
	"capi": {own: []string{"cuda", "fabric", "internal/certificate", "internal/regular", "lane", "local", "schema",
		"trainer"},
		noStd: []string{"net/http", "os/exec"}},
	"trainer/shuffle": {own: []string{"lane", "philox", "schema"}, noStd: noNetwork},
	"examples":        {}, // tests of all workloads
	"examples/packages": {
		own: []string{"cuda", "lane", "nn", "philox", "schema", "trainer", "trainer/shuffle", "examples/packages/corpus",
			"internal/safetensors", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/mnist": {
		own: []string{"cuda", "lane", "nn", "philox", "schema", "trainer", "trainer/shuffle", "internal/regular",
			"internal/safetensors", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/mnist/mnisttest": {own: []string{"examples/mnist", "internal/testkit"}}, // a small data set, for tests
	"examples/movielens": {
		own: []string{"nn", "philox", "schema", "trainer", "trainer/shuffle", "examples/movielens/rdata",
			"internal/regular", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/movielens/rdata": {own: []string{"internal/regular"}, noStd: noNetwork},
	"examples/packages/corpus": {
		own:    []string{"internal/regular", "philox"},
		others: []string{"github.com/ulikunitz/xz", "github.com/pierrec/lz4/v4"},
		noStd:  []string{"net", "net/http"},
	},
	// The oracle of a whole job shares nothing with what it checks but the arithmetic.
	"examples/packages/referencetest": {own: []string{"cuda", "lane", "philox", "examples/packages/corpus"}, noStd: noNetwork},
	"internal/report":                 {own: []string{"schema"}, noStd: noNetwork},
	"internal/safetensors": {own: []string{"internal/atomicfile", "internal/process", "internal/regular"},
		noStd: noNetwork},
	"internal/settings": {own: []string{"lane", "schema"}, noStd: noNetwork},
	"internal/tensorboard": {own: []string{"schema/crc32c"},
		others: []string{"google.golang.org/protobuf/encoding/protowire"}, noStd: noNetwork},
	"internal/spawn":    {noStd: []string{"net", "net/http"}},
	"e2e":               {},                                                  // tests of the commands as processes
	"e2e/commands":      {},                                                  // runs commands for these tests
	"e2e/natsd":         {others: nats},                                      // a NATS server, as anybody runs it
	"e2e/faults":        {},                                                  // the fault suite
	"e2e/prometheus":    {},                                                  // what deploy/ has, with a real Prometheus
	"e2e/plants":        {},                                                  // changes that tests have to find
	"e2e/page":          {},                                                  // the page in a browser
	"e2e/simulate":      {},                                                  // whole jobs in virtual time
	"e2e/simulate/disk": {others: []string{"github.com/tetratelabs/wazero"}}, // of simulated machines
	"internal/rules":    {},                                                  // tests over the whole repository
	"internal/config": {own: []string{"", "internal/atomicfile", "internal/certificate", "internal/loglimit",
		"internal/process", "internal/regular", "schema"},
		others: []string{"github.com/spf13/", "go.yaml.in/yaml/v3", "golang.org/x/term"}, noStd: noNetwork},
	// The way to the servers of a job, as flags.
	"internal/connect": {own: []string{"fabric", "internal/config", "internal/regular", "schema", "trainer"},
		others: []string{"github.com/spf13/"},
		noStd:  []string{"net/http", "os/exec"}},
	// What a process that is no member asks a ps.
	"internal/client": {own: []string{"fabric", "schema"}, noStd: []string{"net", "net/http", "os/exec"}},
	// The walk of all flags of a command, for tests.
	"internal/testkit/flagwalk": {others: []string{"github.com/spf13/"}, noStd: noNetwork},
	"bench/harness/harnesstest": {own: []string{"bench/harness", "internal/config"}, noStd: noNetwork},
	// Processes of a measured system; what they do is not its business.
	"bench/harness": {
		own: []string{"internal/atomicfile", "internal/config", "internal/connect", "internal/process", "cuda", "ps",
			"schema", "internal/spawn"},
		others: []string{"github.com/schollz/progressbar/", "github.com/spf13/pflag", "golang.org/x/term"},
		noStd:  []string{"net/http", "os/exec"},
	},
	"bench/machine": {noStd: noNetwork},
	// What was measured on GPUs, kept and written into a document.
	"bench/gpu": {own: []string{"internal/atomicfile", "internal/regular"}, noStd: noNetwork},
	// The oracle of the measured systems shares nothing with them but random numbers.
	"bench/referencetest": {own: []string{"philox"}, noStd: noNetwork},
	// The measured systems one after the other, as commands.
	"bench/suite": {own: []string{"internal/spawn"}, noStd: []string{"net", "net/http", "os/exec"}},
	// A benchmark uses everything as its users do.
	"bench/average": {
		own: []string{"internal/atomicfile", "internal/config", "internal/connect", "internal/regular", "bench/harness",
			"cuda", "fabric", "lane", "nn", "philox", "ps", "schema", "trainer"},
		others: []string{"github.com/spf13/pflag"},
		noStd:  []string{"net/http", "os/exec"},
	},
	// It kills real processes, and restarts the NATS server between them.
	"bench/faults": {
		own: []string{"bench/harness", "checkpoint", "internal/regular", "cuda", "examples/packages",
			"examples/packages/corpus", "fabric", "fabric/chaos", "internal/temporary", "schema", "trainer"},
		noStd: []string{"net", "net/http"},
	},
	"bench/hosted": {
		own: []string{"bench/harness", "internal/config", "internal/connect", "cuda", "lane", "nn", "schema", "trainer",
			"examples/mnist"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/hybrid": {
		own: []string{"bench/harness", "bench/machine", "internal/config", "internal/connect", "cuda", "lane", "nn", "philox",
			"schema", "trainer"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/update": {
		own: []string{"bench/harness", "internal/config", "internal/connect", "cuda", "lane", "nn", "philox", "ps", "schema",
			"trainer"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/exchange": {
		own: []string{"bench/harness", "bench/machine", "internal/config", "cuda", "fabric", "lane", "ps",
			"schema", "trainer"},
		noStd: []string{"net/http", "os/exec"},
	},
}

const module = "gradbus"

type listed struct {
	ImportPath string
	Imports    []string
}

// list is `go list` over the module, with the given flags.
func list(t *testing.T, flags ...string) []listed {
	t.Helper()
	atRoot(t)
	out, err := exec.Command("go", append(append([]string{"list"}, flags...), "-json=ImportPath,Imports",
		"./...")...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestLayering(t *testing.T) {
	for _, flags := range [][]string{nil, {"-tags", "native"}, {"-tags", "native,emu"}} {
		packages := list(t, flags...)
		if len(packages) < 8 {
			t.Fatalf("go list %v found %d packages only", flags, len(packages))
		}
		for _, p := range packages {
			for _, wrong := range check(strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/"), p.Imports) {
				t.Errorf("go list %v: %s: %s", flags, p.ImportPath, wrong)
			}
		}
	}
}

// check lists what is wrong with the imports of the package at path below the module.
func check(path string, imports []string) []string {
	var wrong []string
	rule, known := layers[path]
	command := strings.HasPrefix(path, "cmd/")
	if !known && !command {
		return []string{"not in the table of layers: say there what it may import"}
	}
	for _, name := range imports {
		own, isOwn := strings.CutPrefix(name, module+"/")
		switch {
		case name == "C":
			if !slices.Contains([]string{"cuda", "internal/gpu", "internal/timerslack", "capi"}, path) {
				wrong = append(wrong, "only cuda, the probe of GPUs, timerslack and the library for C may import C")
			}
		case isOwn && strings.HasPrefix(own, "cmd/"):
			wrong = append(wrong, "imports the command "+own)
		case own == "schema/wire" && path != "schema":
			wrong = append(wrong, "imports schema/wire: only schema touches generated accessors")
		case command && strings.HasPrefix(name, "github.com/nats-io/"):
			wrong = append(wrong, "imports NATS: only fabric does")
		case command && strings.HasPrefix(name, "github.com/NVIDIA/"):
			wrong = append(wrong, "imports NVML: only internal/gpu does")
		case command || name == module:
		case isOwn:
			if !slices.Contains(rule.own, own) {
				wrong = append(wrong, "may not import "+name)
			}
		case strings.Contains(strings.Split(name, "/")[0], "."):
			if !slices.ContainsFunc(rule.others, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				wrong = append(wrong, "may not import "+name)
			}
		case slices.Contains(rule.noStd, name):
			wrong = append(wrong, "may not import "+name)
		}
	}
	return wrong
}
