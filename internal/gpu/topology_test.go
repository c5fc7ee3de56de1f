package gpu_test

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/nvml/fake"
)

func probeTopology(l *fake.Library) []string {
	return []string{os.Args[0], "gpu-probe", "--topology", "--library", l.Path}
}

// Four GPUs: two with two NVLinks between them and one to a switch each, one behind PCIe switches, and one at another
// processor; an NVLink that is down counts for nothing.
func TestTopology(t *testing.T) {
	t.Parallel()
	needProbe(t)
	l := fake.Build(t)
	l.Set("count 4\nset cuda * 12080")
	for gpu := range 4 {
		l.Set("set cpus %d %d", gpu, []int{0b1111, 0b1111, 0b10110000, 1 << 9}[gpu])
		for other := range 4 {
			l.Set("set ancestor_%d %d %d", other, gpu, map[bool]int{true: 50, false: 10}[gpu == 3 || other == 3])
		}
	}
	l.Set("set ancestor_2 1 30\nset ancestor_1 2 30\nset ancestor_2 0 20\nset ancestor_0 2 20")
	l.Set("set links 0 15\nset links 1 7\nset links 2 0\nset links 3 0")
	for gpu := range 2 {
		l.Set("set remote_0 %d %d\nset remote_1 %d %d\nset remote_2 %d -1", gpu, 1-gpu, gpu, 1-gpu, gpu)
	}
	l.Set("set remote_3 0 -1\nset remote_4 0 1")
	found, none := gpu.AskTopology(t.Context(), probeTopology(l), time.Minute)
	if none != "" {
		t.Fatal(none)
	}
	links := [][]string{{"X", "NV3", "PXB", "SYS"}, {"NV3", "X", "PHB", "SYS"}, {"PXB", "PHB", "X", "SYS"},
		{"SYS", "SYS", "SYS", "X"}}
	if !reflect.DeepEqual(found.Links, links) {
		t.Errorf("links %q, want %q", found.Links, links)
	}
	if cpus := []string{"0-3", "0-3", "4-5,7", "9"}; !reflect.DeepEqual(found.CPUs, cpus) {
		t.Errorf("processors %q, want %q", found.CPUs, cpus)
	}
	if found.Driver != "580.00.fake" || found.CUDA != "12.8" || len(found.GPUs) != 4 ||
		found.GPUs[3].PCI != "0000:3e:00.0" {
		t.Errorf("%+v", found)
	}
	for _, want := range []string{"NVIDIA driver 580.00.fake, NVML 13.580.00.fake, CUDA 12.8\n",
		"\nGPU1 Fake GPU at 0000:3c:00.0\n", "\nGPU1  NV3   X     PHB   SYS   0-3\n"} {
		if text := found.String(); !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// A driver that tells nothing, one that hangs and one that is not there are said, and none is waited for beyond the
// time.
func TestTopologyThatIsNotTold(t *testing.T) {
	t.Parallel()
	needProbe(t)
	l := fake.Build(t)
	l.Set("count 2")
	found, none := gpu.AskTopology(t.Context(), probeTopology(l), time.Minute)
	if none != "" || !reflect.DeepEqual(found.Links, [][]string{{"X", "?"}, {"?", "X"}}) || found.CUDA != "" {
		t.Errorf("%+v, %q", found, none)
	}
	l.Set("hang nvmlDeviceGetTopologyCommonAncestor 0")
	if _, none := gpu.AskTopology(t.Context(), probeTopology(l), 100*time.Millisecond); !strings.Contains(none,
		"has not answered within 100ms") {
		t.Errorf("it hangs: %q", none)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, none := gpu.AskTopology(ctx, probeTopology(l), time.Minute); none != context.Canceled.Error() {
		t.Errorf("given up: %q", none)
	}
	if _, none := gpu.AskTopology(t.Context(), []string{os.Args[0], "gpu-probe", "--topology", "--library",
		"/nonexistent/libnvidia-ml.so.1"}, time.Minute); !strings.Contains(none, "cannot be loaded") {
		t.Errorf("no driver: %q", none)
	}
	if _, none := gpu.AskTopology(t.Context(), nil, time.Minute); !strings.Contains(none, "cannot be started") {
		t.Errorf("no probe: %q", none)
	}
}
