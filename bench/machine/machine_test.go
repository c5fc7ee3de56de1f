package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestThis(t *testing.T) {
	m := This()
	if m.CPU == "" || m.Cores != runtime.NumCPU() || m.Kernel == "" || m.Go != runtime.Version() {
		t.Errorf("%+v", m)
	}
}

// Two sockets of two cores, of which one has a second thread and one processor is offline, and a node for each.
func TestProcessors(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := processorsAt(root).String(), "processors: the kernel does not say how they lie"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	write("cpu/online", "0-4")
	for cpu, at := range [][2]string{{"0", "0,4"}, {"0", "1"}, {"1", "2"}, {"1", "3"}, {"0", "0,4"}} {
		write(fmt.Sprintf("cpu/cpu%d/topology/physical_package_id", cpu), at[0])
		write(fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", cpu), at[1])
	}
	write("cpu/cpu5/uevent", "")
	write("cpu/cpufreq/x", "")
	write("node/node10/cpulist", "2-3")
	write("node/node0/cpulist", "0-1,4")
	write("node/node1/cpulist", "") // of memory alone
	const want = "processors 0-4: 2 sockets, 4 cores, 5 threads; NUMA node 0: 0-1,4; NUMA node 10: 2-3"
	if got := processorsAt(root).String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if here := TheseProcessors(); runtime.GOOS == "linux" && here.Threads < 1 {
		t.Errorf("this machine: %+v", here)
	}
}
