//go:build !wasip1 && !race

package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"gradbus/e2e/simulate/disk"
	"gradbus/internal/planted"
	"gradbus/internal/testkit"
)

// Jobs to which a seed's faults happen end, and their weights have the bits of one to which nothing has happened.
func TestSimulate(t *testing.T) {
	p := simulator(t)
	if *single >= 0 {
		text, err := p.simulate(uint64(*single))
		if t.Logf("\n%s", text); err != nil {
			t.Errorf("seed %d: %v", *single, err)
		}
		return
	}
	failed := p.run(*first, *first+*seeds, false)
	maps.Copy(failed, p.run(splitSeeds+*first, splitSeeds+*first+*seeds/4, false))
	for _, seed := range slices.Sorted(maps.Keys(failed)) {
		t.Errorf("seed %d:\n%s", seed, failed[seed])
	}
}

// A seed has one course, to the byte.
func TestSeedsAreReproducible(t *testing.T) {
	p := simulator(t)
	for seed := range uint64(4) {
		var wg sync.WaitGroup
		var text [2]string
		for i := range text {
			wg.Go(func() { text[i], _ = p.simulate(seed) })
		}
		wg.Wait()
		if text[0] != text[1] || len(text[0]) < 1000 {
			t.Errorf("seed %d has two courses, of %d and %d bytes", seed, len(text[0]), len(text[1]))
		}
	}
}

// simulator is the program as it is, until the test ends.
func simulator(t *testing.T) *program {
	if testing.Short() {
		t.Skip("compiles the program once more, for WebAssembly")
	}
	p, err := compile("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// program is this package's TestSeed, compiled for a machine that is simulated: it has one thread, and what it is told
// of time and chance follows from the seed.
type program struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	defect   planted.Defect // that it has; of one that is compiled with the tag planted
}

// compile compiles the program, with a build tag where one is named.
func compile(tag string) (*program, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	changes := map[string]string{}
	if err := addClocks(changes); err != nil {
		return nil, err
	}
	list, err := overlay(dir, changes)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "simulate.wasm")
	build := exec.Command("go", "test", "-c", "-ldflags", "-s -w", "-overlay", list, "-tags", tag, "-o", file,
		"./e2e/simulate")
	build.Dir = root
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ctx := experimental.WithCompilationWorkers(context.Background(), runtime.GOMAXPROCS(0))
	p := &program{runtime: wazero.NewRuntime(ctx)}
	if _, err = wasi_snapshot_preview1.Instantiate(ctx, p.runtime); err == nil {
		disks := p.runtime.NewHostModuleBuilder("disk")
		_, err = disks.NewFunctionBuilder().WithFunc(becomeOf).Export("control").Instantiate(ctx)
	}
	if err == nil {
		p.compiled, err = p.runtime.CompileModule(ctx, code)
	}
	if err != nil {
		p.close()
	}
	return p, err
}

func (p *program) close() { _ = p.runtime.Close(context.Background()) } // nothing is left of it but memory

// run simulates seeds, several at a time, until one fails or to the end, and gives what those said that failed.
func (p *program) run(from, to uint64, untilOneFails bool) map[uint64]string {
	var (
		mu     sync.Mutex
		failed = map[uint64]string{}
		wg     sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := from
				if from++; seed >= to || untilOneFails && len(failed) > 0 {
					mu.Unlock()
					return
				}
				mu.Unlock()
				if text, err := p.simulate(seed); err != nil {
					mu.Lock()
					failed[seed] = fmt.Sprintf("%s%v", text, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// disks are those of a simulation, by the numbers that it knows.
type disks []*disk.Disk

type disksKey struct{}

// becomeOf is what a simulation calls to have something become of a disk.
func becomeOf(ctx context.Context, number, what uint32, arg int64) uint32 {
	d := ctx.Value(disksKey{}).(disks)[number]
	switch what {
	case diskFails:
		d.Fail(int(arg))
	case diskWorks:
		d.Fix()
		d.Empty()
		d.Lie(false)
	case diskLoses:
		d.CutPower()
	case diskIsFull:
		d.Fill(arg)
	case diskLies:
		d.Lie(true)
	case diskRots:
		d.Rot("") // of a disk with nothing on it nothing does
	case diskAsks:
		if d.Failed() {
			return 1
		}
	}
	return 0
}

// random are the random bytes of a seed.
type random struct{ *rand.Rand }

// Read implements io.Reader.
func (r random) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

// endless is for how long a simulation may take that takes a second or two.
const endless = 2 * time.Minute

// simulate runs one seed, and gives what it says. One that has no end is left to itself.
func (p *program) simulate(seed uint64) (string, error) {
	var out testkit.Text
	ended := make(chan error, 1)
	go func() { ended <- p.runTest(seed, &out, "^TestSeed$", "-seed", fmt.Sprint(seed)) }()
	select {
	case err := <-ended:
		return out.String(), err
	case <-time.After(endless):
		return out.String(), fmt.Errorf("no end after %v", endless)
	}
}

// runTest runs one test of the program, with these flags, on machines of a seed. The clocks move by a microsecond
// whenever one is read. There is memory for most of what a seed ever allocates, so garbage is seldom collected.
func (p *program) runTest(seed uint64, out io.Writer, test string, flags ...string) error {
	all, root := disks{}, disk.New(seed).FS()
	for _, folder := range []string{"tmp", "disk"} {
		if no := root.Mkdir(folder, 0o700); no != 0 {
			return no
		}
	}
	mounts := wazero.NewFSConfig().(sysfs.FSConfig).WithSysFSMount(root, "/")
	for i, id := range diskNames {
		all = append(all, disk.New(seed<<1|uint64(i)))
		path, _ := diskOf(id)
		mounts = mounts.(sysfs.FSConfig).WithSysFSMount(all[i].FS(), path)
	}
	if p.defect != 0 {
		flags = append(flags, "-defect", fmt.Sprint(uint8(p.defect)))
	}
	var now int64
	tick := func() int64 { now += 1000; return now }
	config := wazero.NewModuleConfig().WithName("").WithStdout(out).WithStderr(out).WithFSConfig(mounts).
		WithArgs(append([]string{"simulate", "-test.run", test, "-test.v", "-test.timeout", "0"}, flags...)...).
		WithEnv("PWD", "/").WithEnv("TMPDIR", "/tmp").WithEnv("GOTRACEBACK", "single").
		WithEnv("GOGC", "800").
		WithRandSource(random{rand.New(rand.NewPCG(seed, 1))}).
		WithNanotime(tick, 1).WithNanosleep(func(ns int64) { now += ns }).
		WithWalltime(func() (int64, int32) { at := tick(); return at / 1e9, int32(at % 1e9) }, 1)
	ctx := context.WithValue(context.Background(), disksKey{}, all)
	m, err := p.runtime.InstantiateModule(ctx, p.compiled, config)
	if m != nil {
		err = cmp.Or(err, m.Close(ctx))
	}
	if exit, ok := errors.AsType[*sys.ExitError](err); ok && exit.ExitCode() == 0 {
		err = nil
	}
	return err
}

// addClocks adds to changes that goroutines of simulated machines read dates by the clock of their machine (setClock),
// and that time passes for all alike, as on machines whose clocks are set. Within synctest Go has dates alone.
func addClocks(changes map[string]string) error {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(out)), "src", "runtime", "time.go")
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const from, to = "		return sec, nsec, 0\n", `		if off := (*int64)(getg().labels); off != nil {
			sec += *off
		}
		return sec, nsec, bubble.now
`
	// Labels are what goroutines inherit, and nothing here profiles.
	const set = `
//go:linkname simulatedClock simulate.setClock
func simulatedClock(off *int64) { getg().labels = unsafe.Pointer(off) }
`
	if n := strings.Count(string(source), from); n != 1 {
		return fmt.Errorf("%s has %q %d times: want it once", path, from, n)
	}
	changes[path] = strings.Replace(string(source), from, to, 1) + set
	return nil
}

// overlay writes files, and one for go build's -overlay by which they are read in place of others.
func overlay(dir string, changes map[string]string) (string, error) {
	replace := map[string]string{}
	for path, text := range changes {
		replace[path] = filepath.Join(dir, fmt.Sprintf("other%d.go", len(replace)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	names, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, names, 0o600)
}
