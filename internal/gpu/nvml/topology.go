//go:build cgo && linux

package nvml

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gradbus/internal/gpu"
)

// cpusMax bounds the processors of a machine whose affinity is asked.
const cpusMax = 4096

// topology asks how the GPUs are connected.
func (p *probe) topology() *gpu.Topology {
	hello := p.hello()
	t := &gpu.Topology{Driver: hello.Driver, NVML: hello.NVML, GPUs: append([]gpu.GPU{}, hello.GPUs...)}
	cuda, ok := ask(p, nil, p.api.SystemGetCudaDriverVersion_v2, "nvmlSystemGetCudaDriverVersion_v2")
	if !ok {
		cuda, ok = ask(p, nil, p.api.SystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion")
	}
	if ok {
		t.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	links := make([]nvlinks, len(p.devices))
	for i, d := range p.devices {
		links[i] = p.nvlinksOf(d)
	}
	for i, d := range p.devices {
		row := make([]string, len(p.devices))
		for j, other := range p.devices {
			row[j] = p.between(d, other, links[i], links[j])
		}
		t.Links = append(t.Links, row)
		t.CPUs = append(t.CPUs, p.cpusOf(d))
	}
	return t
}

// nvlinks counts the active NVLinks of a GPU by where they lead: to a GPU, by its PCI address, or to switches, which
// lead to all GPUs that have links to them.
type nvlinks struct {
	to       map[string]int
	switches int
}

func (p *probe) nvlinksOf(d *device) nvlinks {
	found := nvlinks{to: map[string]int{}}
	if d.handle == nil {
		return found
	}
	for link := range linksMax {
		state, ok := ask(p, nil, func() (nvml.EnableState, nvml.Return) { return d.handle.GetNvLinkState(link) },
			"nvmlDeviceGetNvLinkState")
		if !ok {
			break
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		kind, ok := ask(p, nil, func() (nvml.IntNvLinkDeviceType, nvml.Return) {
			return d.handle.GetNvLinkRemoteDeviceType(link)
		}, "nvmlDeviceGetNvLinkRemoteDeviceType")
		if ok && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
			found.switches++
			continue
		}
		pci, ok := ask(p, nil, func() (nvml.PciInfo, nvml.Return) { return d.handle.GetNvLinkRemotePciInfo(link) },
			"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo")
		if ok {
			found.to[address(pci)]++
		}
	}
	return found
}

// between is what is between two GPUs.
func (p *probe) between(a, b *device, of, others nvlinks) string {
	if a == b {
		return "X"
	}
	if n := of.to[b.id.PCI] + min(of.switches, others.switches); n > 0 {
		return fmt.Sprintf("NV%d", n)
	}
	if a.handle == nil || b.handle == nil {
		return "?"
	}
	level, ok := ask(p, nil, func() (nvml.GpuTopologyLevel, nvml.Return) {
		return a.handle.GetTopologyCommonAncestor(b.handle)
	}, "nvmlDeviceGetTopologyCommonAncestor")
	word, known := map[nvml.GpuTopologyLevel]string{nvml.TOPOLOGY_INTERNAL: "INT", nvml.TOPOLOGY_SINGLE: "PIX",
		nvml.TOPOLOGY_MULTIPLE: "PXB", nvml.TOPOLOGY_HOSTBRIDGE: "PHB", nvml.TOPOLOGY_NODE: "NODE",
		nvml.TOPOLOGY_SYSTEM: "SYS"}[level]
	if !ok || !known {
		return "?"
	}
	return word
}

// cpusOf are the processors near a GPU.
func (p *probe) cpusOf(d *device) string {
	if d.handle == nil {
		return ""
	}
	set, ok := ask(p, nil, func() ([]uint, nvml.Return) { return d.handle.GetCpuAffinity(cpusMax) },
		"nvmlDeviceGetCpuAffinity")
	if !ok {
		return ""
	}
	has := func(i int) bool { return i/bits.UintSize < len(set) && set[i/bits.UintSize]>>(i%bits.UintSize)&1 != 0 }
	var parts []string
	for i := 0; i < cpusMax; i++ {
		if !has(i) {
			continue
		}
		first := i
		for has(i + 1) {
			i++
		}
		if part := fmt.Sprint(first); i > first {
			parts = append(parts, fmt.Sprintf("%s-%d", part, i))
		} else {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ",")
}

// address is how a GPU is called by its bus.
func address(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}
