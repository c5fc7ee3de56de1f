package health

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Topology is how the GPUs of a machine are connected, as the driver says it once.
type Topology struct {
	Driver string `json:"driver"`
	NVML   string `json:"nvml"`           // version of the library
	CUDA   string `json:"cuda,omitempty"` // newest version that the driver runs, as 12.8
	GPUs   []GPU  `json:"gpus"`
	// Links are what is between the GPU of a row and that of a column: words of LinkLegend.
	Links [][]string `json:"links"`
	// CPUs are the processors near each GPU, as 0-31,64-95; empty where the driver does not tell.
	CPUs []string `json:"cpus"`
}

// LinkLegend explains the words of Topology.Links.
const LinkLegend = "X itself; NVn n NVLinks; INT one board; PIX, PXB one or several PCIe switches; " +
	"PHB a PCIe host bridge; NODE, SYS within a NUMA node or between them; ? not told"

// String is the topology for people, in lines.
func (t *Topology) String() string {
	var s strings.Builder
	cuda := t.CUDA
	if cuda == "" {
		cuda = "not told"
	}
	fmt.Fprintf(&s, "NVIDIA driver %s, NVML %s, CUDA %s\n", t.Driver, t.NVML, cuda)
	for _, g := range t.GPUs {
		fmt.Fprintf(&s, "GPU%d %s at %s\n", g.Index, g.Name, g.PCI)
	}
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	for _, g := range t.GPUs {
		fmt.Fprintf(w, "\tGPU%d", g.Index)
	}
	fmt.Fprint(w, "\tprocessors\n")
	for i, g := range t.GPUs {
		cpus := t.CPUs[i]
		if cpus == "" {
			cpus = "?"
		}
		fmt.Fprintf(w, "GPU%d\t%s\t%s\n", g.Index, strings.Join(t.Links[i], "\t"), cpus)
	}
	_ = w.Flush() // into memory
	s.WriteString(LinkLegend)
	return s.String()
}

// valid reports whether a topology has a row for each GPU, and a word for each pair of them.
func (t *Topology) valid() bool {
	n := len(t.GPUs)
	ok := n <= GPUsMax && len(t.Links) == n && len(t.CPUs) == n
	for i := 0; ok && i < n; i++ {
		ok = len(t.Links[i]) == n
	}
	return ok
}
