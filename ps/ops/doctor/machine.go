package doctor

import (
	"io/fs"
	"math"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gradbus/internal/process"
)

// machine is what a process may take here. -1 is not known, math.MaxInt64 no limit.
type machine struct {
	files, locked     int64
	memory, available int64   // bytes; 0 is not known
	group             int64   // bytes that the control group may hold; 0 is no limit
	processors        int     // that may be run on
	quota             float64 // processors' worth of time that the control group grants; 0 is no limit
	huge              string  // always, madvise, never
}

// readMachine reads below a root what the kernel says of this process and machine.
func readMachine(root fs.FS) machine {
	m := machine{files: -1, locked: -1, processors: runtime.NumCPU()}
	if root == nil {
		return m
	}
	limits := read(root, "proc/self/limits")
	m.files, m.locked = limit(limits, "Max open files"), limit(limits, "Max locked memory")
	meminfo := read(root, "proc/meminfo")
	m.memory, m.available = process.MachineBytes(root), kilobytes(meminfo, "MemAvailable:")
	group := process.ReadGroup(root)
	m.group, m.quota = group.MemoryBytes, group.Processors
	for _, word := range strings.Fields(read(root, "sys/kernel/mm/transparent_hugepage/enabled")) {
		if inner, found := strings.CutPrefix(word, "["); found {
			m.huge = strings.TrimSuffix(inner, "]")
		}
	}
	return m
}

// read gives a file's text; empty where it cannot be read.
func read(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return string(data)
}

// limit is the soft limit of a row of /proc/self/limits.
func limit(text, row string) int64 {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, row)
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return -1
		}
		if fields[0] == "unlimited" {
			return math.MaxInt64
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			return n
		}
	}
	return -1
}

// kilobytes is a row of /proc/meminfo, in bytes.
func kilobytes(text, row string) int64 {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == row {
			if kb, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// listeners are the processes that listen at TCP ports, as far as this user may see them.
func listeners(root fs.FS) []listener {
	if root == nil {
		return nil
	}
	ports := map[string]int{} // by inode of the socket
	for _, table := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		for line := range strings.Lines(read(root, table)) {
			fields := strings.Fields(line)
			const listening = "0A"
			if len(fields) < 10 || fields[3] != listening {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			if port, err := strconv.ParseInt(hex, 16, 32); err == nil {
				ports[fields[9]] = int(port)
			}
		}
	}
	names := map[string]string{} // of processes, by inode
	processes, _ := fs.ReadDir(root, "proc")
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		open, err := fs.ReadDir(root, path.Join("proc", p.Name(), "fd"))
		if err != nil {
			continue
		}
		for _, f := range open {
			to, err := fs.ReadLink(root, path.Join("proc", p.Name(), "fd", f.Name()))
			inode, isSocket := strings.CutPrefix(to, "socket:[")
			if err != nil || !isSocket {
				continue
			}
			if inode = strings.TrimSuffix(inode, "]"); ports[inode] != 0 {
				names[inode] = strings.TrimSpace(read(root, path.Join("proc", p.Name(), "comm"))) + " (pid " + p.Name() + ")"
			}
		}
	}
	var all []listener
	for inode, port := range ports {
		all = append(all, listener{port, names[inode]})
	}
	slices.SortFunc(all, func(a, b listener) int { return a.port - b.port })
	return all
}
