package process

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Group is the limits of the control group of a process and of the groups around it: the least of each. 0: no limit.
type Group struct {
	MemoryBytes int64
	Processors  float64 // processors' worth of time
}

// unlimitedMin is the least memory limit of a version 1 group that stands for none: the kernel has a number for that,
// which depends on the size of its pages.
const unlimitedMin = 1 << 60

// ReadGroup reads the limits of this process's control group and of all groups around it that the process can see,
// below root, which is os.DirFS("/"). A service manager, a container and a batch system each limit a group of their
// own, with the process some levels below it; in version 1 the kernel also says what holds above the groups that a
// container sees.
func ReadGroup(root fs.FS) (g Group) {
	within := map[string]string{} // the process's group by controller; "" is version 2
	for line := range strings.Lines(readText(root, "proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			within[controller] = fields[2]
		}
	}
	for line := range strings.Lines(readText(root, "proc/self/mountinfo")) {
		// 35 31 0:32 ROOT MOUNT rw,relatime shared:9 - cgroup cgroup rw,memory
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			g.walk(root, fields[4], groupBelow(root, fields[4], fields[3], within[""]))
		case "cgroup":
			if slices.Contains(strings.Split(kind[2], ","), "memory") {
				g.walk(root, fields[4], groupBelow(root, fields[4], fields[3], within["memory"]))
			}
		}
	}
	return g
}

// groupBelow is the folder of a group below a mount that shows the hierarchy from the group top on; the mount itself
// where the group is not below that, as in a container that shows its own group alone.
func groupBelow(root fs.FS, mount, top, group string) string {
	rest, below := strings.CutPrefix(group, strings.TrimSuffix(top, "/"))
	folder := path.Join(mount, rest)
	if info, err := fs.Stat(root, fsPath(folder)); !below || strings.Contains(group, "..") || err != nil || !info.IsDir() {
		return mount
	}
	return folder
}

// walk takes the limits of a group and of those around it, up to the mount.
func (g *Group) walk(root fs.FS, mount, folder string) {
	for ; ; folder = path.Dir(folder) {
		text := func(name string) string { return strings.TrimSpace(readText(root, fsPath(path.Join(folder, name)))) }
		g.limitMemory(text("memory.max"))
		g.limitMemory(text("memory.limit_in_bytes"))
		for line := range strings.Lines(text("memory.stat")) {
			if rest, found := strings.CutPrefix(line, "hierarchical_memory_limit "); found {
				g.limitMemory(strings.TrimSpace(rest))
			}
		}
		if fields := strings.Fields(text("cpu.max")); len(fields) == 2 {
			quota, err := strconv.ParseFloat(fields[0], 64)
			period, other := strconv.ParseFloat(fields[1], 64)
			if err == nil && other == nil && period > 0 && (g.Processors == 0 || quota/period < g.Processors) {
				g.Processors = quota / period
			}
		}
		if len(folder) <= len(mount) {
			return
		}
	}
}

func (g *Group) limitMemory(text string) {
	n, err := strconv.ParseInt(text, 10, 64) // "max" is no number
	if err == nil && n > 0 && n < unlimitedMin && (g.MemoryBytes == 0 || n < g.MemoryBytes) {
		g.MemoryBytes = n
	}
}

// MachineBytes is the memory of the machine, and what of it is available; 0 where that is not known.
func MachineBytes(root fs.FS) (all, available int64) {
	for line := range strings.Lines(readText(root, "proc/meminfo")) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kb, _ := strconv.ParseInt(fields[1], 10, 64) // 0 where it is no number
		switch fields[0] {
		case "MemTotal:":
			all = kb << 10
		case "MemAvailable:":
			available = kb << 10
		}
	}
	return all, available
}

// MemoryBytes returns the memory that this process may use: the least of that of the machine, of its control group and
// the groups around it, and of GOMEMLIMIT; 0 if none is known.
func MemoryBytes() int64 { return leastOf(RoomBytes(), debug.SetMemoryLimit(-1)) }

// RoomBytes is MemoryBytes without GOMEMLIMIT, which only controls garbage collection.
func RoomBytes() int64 {
	root := os.DirFS("/")
	all, _ := MachineBytes(root)
	return leastOf(all, ReadGroup(root).MemoryBytes)
}

// leastOf is the least of numbers of bytes, of which 0 and the largest are none.
func leastOf(all ...int64) (least int64) {
	for _, n := range all {
		if n > 0 && n < math.MaxInt64 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// fsPath is an absolute path as fs.FS wants it.
func fsPath(absolute string) string {
	return strings.TrimPrefix(path.Clean(absolute), "/")
}

// readText gives a file's text; empty where it cannot be read.
func readText(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(data)
}
