package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Processors is the layout of the processors of a machine, according to the kernel. Unknown values are 0 or empty.
type Processors struct {
	Online  string // as 0-63
	Sockets int
	Cores   int
	Threads int    // of all cores
	Nodes   []Node // of memory, by number
}

// Node is a NUMA node.
type Node struct {
	Number int
	CPUs   string // as 0-15,32-47
}

// TheseProcessors are those of this machine.
func TheseProcessors() Processors { return processorsAt("/sys/devices/system") }

func processorsAt(root string) Processors {
	p := Processors{Online: read(root, "cpu/online")}
	sockets, cores := map[string]bool{}, map[string]bool{}
	found, _ := filepath.Glob(filepath.Join(root, "cpu/cpu[0-9]*")) // the pattern is well formed
	for _, cpu := range found {
		siblings := cmp.Or(read(cpu, "topology/core_cpus_list"), read(cpu, "topology/thread_siblings_list"))
		if siblings == "" {
			continue // it is offline
		}
		p.Threads++
		sockets[read(cpu, "topology/physical_package_id")], cores[siblings] = true, true
	}
	p.Sockets, p.Cores = len(sockets), len(cores)
	found, _ = filepath.Glob(filepath.Join(root, "node/node[0-9]*"))
	for _, node := range found {
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(node), "node"))
		if cpus := read(node, "cpulist"); err == nil && cpus != "" {
			p.Nodes = append(p.Nodes, Node{number, cpus})
		}
	}
	slices.SortFunc(p.Nodes, func(a, b Node) int { return a.Number - b.Number })
	return p
}

// read is the line that a file holds; empty where it cannot be read.
func read(folder, name string) string {
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// String is a line for people.
func (p Processors) String() string {
	if p.Threads == 0 {
		return "processors: the kernel does not say how they lie"
	}
	text := fmt.Sprintf("processors %s: %s, %s, %s", p.Online, count(p.Sockets, "socket"), count(p.Cores, "core"),
		count(p.Threads, "thread"))
	for _, n := range p.Nodes {
		text += fmt.Sprintf("; NUMA node %d: %s", n.Number, n.CPUs)
	}
	return text
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
