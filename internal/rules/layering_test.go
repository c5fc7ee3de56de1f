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
	"schema":        {own: []string{"lane", "schema/crc32c", "schema/wire"}, others: []string{"github.com/go-json-experiment/json", "github.com/google/flatbuffers"}, noStd: noNetwork},
	// Files that appear whole or not at all.
	"internal/atomicfile": {noStd: noNetwork},
	// A certificate and its key in files, and what makes them for tests.
	"internal/certificate":          {noStd: noNetwork},
	"internal/certificate/certtest": {own: []string{"internal/atomicfile"}},
	// What a process takes of its machine, as pulses say it.
	"internal/process": {own: []string{"schema"}, others: []string{"golang.org/x/sys/unix"}, noStd: noNetwork},
	"fabric":           {others: nats, noStd: []string{"net/http", "os/exec"}},

	// How GPUs are: decisions, the probe that asks the driver, and who runs it.
	"cuda/health/verdict":   {own: []string{"schema"}, noStd: noNetwork},
	"cuda/health/nvml":      {own: []string{"cuda/health/verdict"}, others: []string{"github.com/NVIDIA/go-nvml/"}, noStd: noNetwork},
	"cuda/health/keep":      {own: []string{"internal/atomicfile", "cuda/health/verdict"}, noStd: noNetwork},
	"cuda/health/watch":     {own: []string{"cuda/health", "cuda/health/keep", "cuda/health/nvml", "cuda/health/verdict", "internal/process", "schema"}, others: []string{"github.com/spf13/"}, noStd: []string{"net", "net/http"}},
	"cuda/verification":     {own: []string{"cuda", "cuda/health", "internal/process", "schema"}, others: []string{"github.com/spf13/"}, noStd: []string{"net", "net/http"}},
	"cuda/health/nvml/fake": {noStd: []string{"net", "net/http"}}, // a stand-in for the driver's library, for tests
	"cuda/health":           {own: []string{"cuda/health/keep", "cuda/health/verdict", "schema"}, noStd: []string{"net", "net/http"}},

	// What operators see. ps knows none of it.
	"ps/ops":                 {own: []string{"docs/runbooks", "internal/certificate", "ps/ops/overview", "schema"}, noStd: []string{"os/exec"}},
	"ps/ops/overview":        {own: []string{"schema"}, noStd: noNetwork},
	"ps/ops/overview/sample": {own: []string{"ps/ops/overview", "schema"}, noStd: noNetwork},
	"ps/ops/metrics":         {own: []string{"ps/ops/overview", "schema"}, others: []string{"github.com/prometheus/"}, noStd: []string{"os/exec"}},
	// It looks at a machine, a NATS server and a ps from outside.
	"ps/ops/doctor": {
		own:    []string{"cuda", "fabric", "internal/process", "ps/ops/overview", "ps/ops/terminal", "schema"},
		others: []string{"golang.org/x/sys/unix"},
		noStd:  []string{"os/exec"},
	},
	// A client of a ps's page: it asks over HTTP and knows nothing else of the process it runs in.
	"ps/ops/terminal": {
		own:    []string{"ps/ops/overview", "schema"},
		others: []string{"charm.land/bubbletea/v2", "github.com/charmbracelet/x/ansi"},
		noStd:  []string{"os", "os/exec"},
	},
	// What a ps shows, put together for whoever runs one.
	"ps/ops/display": {
		own:   []string{"", "docs/runbooks", "internal/process", "ps", "ps/ops", "ps/ops/metrics", "ps/ops/overview", "ps/ops/page", "schema"},
		noStd: []string{"os/exec"},
	},
	"ps/ops/tap":    {own: []string{"fabric", "schema"}, noStd: noNetwork}, // it listens to frames, and says nothing
	"ps/ops/page":   {noStd: noNetwork},                                    // files for a browser
	"docs/runbooks": {noStd: noNetwork},                                    // files, too

	// Test support: a proxy that harms messages. It knows NATS's framing and nothing else.
	"fabric/fabrictest": {own: []string{"internal/testkit"}, others: []string{"go.uber.org/goleak"}},
	"internal/testkit":  {others: []string{"go.uber.org/goleak"}, noStd: noNetwork},
	"fabric/chaos":      {noStd: []string{"net/http", "os/exec"}},

	"round":        {own: []string{"cuda", "lane", "schema"}, noStd: noNetwork},
	"nn":           {own: []string{"cuda", "lane", "philox"}, noStd: noNetwork},
	"shard/state":  {own: []string{"cuda", "lane", "philox", "schema"}, noStd: noNetwork},
	"ps":           {own: []string{"cuda", "fabric", "lane", "nn", "internal/process", "round", "schema", "shard/state"}, noStd: []string{"net/http", "os/exec"}},
	"trainer":      {own: []string{"cuda", "fabric", "lane", "nn", "philox", "internal/process", "internal/safetensors", "round", "schema", "shard/state", "trainer/deal"}, noStd: []string{"net/http", "os/exec"}},
	"local":        {own: []string{"cuda", "fabric", "ps", "schema", "trainer"}, noStd: noNetwork},
	"capi":         {own: []string{"cuda", "fabric", "internal/certificate", "lane", "local", "schema", "trainer"}, noStd: []string{"net/http", "os/exec"}},
	"trainer/deal": {own: []string{"lane", "philox", "schema"}, noStd: noNetwork},
	"examples":     {}, // tests of all workloads
	"examples/packages": {
		own:   []string{"cuda", "lane", "nn", "philox", "schema", "trainer", "trainer/deal", "examples/packages/corpus", "internal/safetensors", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/mnist": {
		own:   []string{"cuda", "lane", "nn", "philox", "schema", "trainer", "trainer/deal", "internal/safetensors", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/movielens": {
		own:   []string{"nn", "philox", "schema", "trainer", "trainer/deal", "examples/movielens/rdata", "internal/settings"},
		noStd: []string{"net", "net/http"},
	},
	"examples/movielens/rdata": {noStd: noNetwork},
	"examples/packages/corpus": {
		own:    []string{"philox"},
		others: []string{"github.com/ulikunitz/xz", "github.com/pierrec/lz4/v4"},
		noStd:  []string{"net", "net/http"},
	},
	// The oracle of a whole job shares nothing with what it checks but the arithmetic.
	"examples/packages/reference": {own: []string{"cuda", "lane", "philox", "examples/packages/corpus"}, noStd: noNetwork},
	"internal/report":             {own: []string{"schema"}, noStd: noNetwork},
	"internal/safetensors":        {own: []string{"internal/atomicfile"}, noStd: noNetwork},
	"internal/settings":           {own: []string{"lane", "schema"}, noStd: noNetwork},
	"internal/tensorboard":        {own: []string{"schema/crc32c"}, others: []string{"google.golang.org/protobuf/encoding/protowire"}, noStd: noNetwork},
	"internal/spawn":              {noStd: []string{"net", "net/http"}},
	"e2e":                         {},             // tests of the commands as processes
	"e2e/commands":                {},             // runs commands for these tests
	"e2e/natsd":                   {others: nats}, // a NATS server as anybody runs it, for these tests
	"e2e/faults":                  {},             // the fault suite
	"e2e/prometheus":              {},             // what deploy/ has, with a real Prometheus
	"e2e/page":                    {},             // the page in a browser
	"e2e/cost":                    {},             // what observing a job costs
	"internal/rules":              {},             // tests over the whole repository
	"internal/config":             {own: []string{"", "internal/atomicfile", "internal/certificate", "internal/process", "schema"}, others: []string{"github.com/spf13/", "go.yaml.in/yaml/v3", "golang.org/x/term"}, noStd: noNetwork},
	// Processes of a measured system; what they do is not its business.
	"bench/crew": {
		own:    []string{"internal/atomicfile", "internal/config", "cuda", "ps", "schema", "internal/spawn"},
		others: []string{"github.com/schollz/progressbar/", "github.com/spf13/pflag", "golang.org/x/term"},
		noStd:  []string{"net/http", "os/exec"},
	},
	"bench/machine": {noStd: noNetwork},
	// The measured systems one after the other, as commands.
	"bench/suite": {own: []string{"internal/spawn"}, noStd: []string{"net", "net/http", "os/exec"}},
	// A benchmark uses everything as its users do.
	"bench/average": {
		own:    []string{"internal/atomicfile", "bench/crew", "cuda", "lane", "nn", "philox", "ps", "schema", "trainer"},
		others: []string{"github.com/spf13/pflag"},
		noStd:  []string{"net/http", "os/exec"},
	},
	"bench/hosted": {
		own:   []string{"bench/crew", "cuda", "lane", "nn", "schema", "trainer", "examples/mnist"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/hybrid": {
		own:   []string{"bench/crew", "bench/machine", "cuda", "lane", "nn", "philox", "schema", "trainer"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/update": {
		own:   []string{"bench/crew", "cuda", "lane", "nn", "philox", "ps", "schema", "trainer"},
		noStd: []string{"net", "net/http", "os/exec"},
	},
	"bench/exchange": {
		own:   []string{"internal/atomicfile", "bench/machine", "internal/config", "cuda", "fabric", "lane", "ps", "schema", "trainer", "internal/spawn"},
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
	out, err := exec.Command("go", append(append([]string{"list"}, flags...), "-json=ImportPath,Imports", "./...")...).Output()
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
			if path != "cuda" && path != "cuda/health/nvml" && path != "capi" {
				wrong = append(wrong, "only cuda, the probe below it, and the library for C may import C")
			}
		case isOwn && strings.HasPrefix(own, "cmd/"):
			wrong = append(wrong, "imports the command "+own)
		case own == "schema/wire" && path != "schema":
			wrong = append(wrong, "imports schema/wire: only schema touches generated accessors")
		case command && strings.HasPrefix(name, "github.com/nats-io/"):
			wrong = append(wrong, "imports NATS: only fabric does")
		case own == "cuda/health/nvml" && path != "cuda/health/watch":
			wrong = append(wrong, "imports the probe: what calls the driver runs in its own process, which cuda/health/watch has a command for")
		case command && strings.HasPrefix(name, "github.com/NVIDIA/"):
			wrong = append(wrong, "imports NVML: only cuda/health/nvml does")
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

// The check itself finds what it is for.
func TestLayeringFinds(t *testing.T) {
	for _, c := range []struct {
		path, name string
		ok         bool
	}{
		{"ps", "gradbus/schema", true},
		{"ps", "gradbus/trainer", false},
		{"trainer", "gradbus/ps", false},
		{"trainer", "gradbus/schema/wire", false},
		{"ps", "net/http", false},
		{"ps", "C", false},
		{"cuda", "C", true},
		{"cuda/health/nvml", "C", true},
		{"cuda/health", "C", false},
		{"local", "C", false},
		{"fabric", "gradbus/schema", false},
		{"fabric", "github.com/nats-io/nats.go", true},
		{"ps", "github.com/nats-io/nats.go", false},
		{"cmd/ps", "github.com/nats-io/nats.go", false},
		{"cmd/ps", "github.com/NVIDIA/go-nvml/pkg/nvml", false},
		{"cuda/health", "github.com/NVIDIA/go-nvml/pkg/nvml", false},
		{"cmd/ps", "gradbus/cuda/health/nvml", false},
		{"cuda/health", "gradbus/cuda/health/nvml", false},
		{"cuda/health/nvml", "github.com/NVIDIA/go-nvml/pkg/nvml", true},
		{"cmd/ps", "github.com/spf13/cobra", true},
		{"trainer", "github.com/spf13/cobra", false},
		{"internal/config", "gradbus/cmd/ps", false},
		{"somewhere/new", "fmt", false},
	} {
		if wrong := check(c.path, []string{c.name}); (len(wrong) == 0) != c.ok {
			t.Errorf("%s importing %s: found %q", c.path, c.name, wrong)
		}
	}
}
