package process

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

// What a process may take is the least limit of its control group and of those around it, as the kernel says it in each
// of the ways in which services, containers and batch systems run.
func TestReadGroup(t *testing.T) {
	const (
		v2       = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		v1       = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
		v1cpu    = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		unified  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		none     = "9223372036854771712\n"
		noneOf64 = "9223372036854710272\n" // with pages of 64 KiB
		mountOf  = "sys/fs/cgroup/memory/"
	)
	for _, c := range []struct {
		name           string
		mounts, groups string
		files          map[string]string
		want           Group
	}{
		{name: "no groups"},
		{"no limit", v2, "0::/user.slice/session-1.scope\n", map[string]string{
			"sys/fs/cgroup/user.slice/session-1.scope/memory.max": "max\n", "sys/fs/cgroup/user.slice/memory.max": "max\n"},
			Group{}},
		{"MemoryMax of a service", v2, "0::/system.slice/gradbus.service\n", map[string]string{
			"sys/fs/cgroup/system.slice/gradbus.service/memory.max": "314572800\n",
			"sys/fs/cgroup/system.slice/gradbus.service/cpu.max":    "150000 100000\n",
			"sys/fs/cgroup/system.slice/memory.max":                 "max\n"}, Group{300 << 20, 1.5}},
		{"slice around a service", v2, "0::/a.slice/b.service\n", map[string]string{
			"sys/fs/cgroup/a.slice/b.service/memory.max": "4096\n", "sys/fs/cgroup/a.slice/memory.max": "2048\n",
			"sys/fs/cgroup/a.slice/cpu.max": "50000 100000\n"}, Group{2048, 0.5}},
		{"container with a namespace of its own", v2, "0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "8192\n"},
			Group{MemoryBytes: 8192}},
		{"--cgroupns=host", v2, "0::/system.slice/docker-abc.scope\n", map[string]string{
			"sys/fs/cgroup/system.slice/docker-abc.scope/memory.max": "8192\n"}, Group{MemoryBytes: 8192}},
		{"--cgroupns=host that shows its own group alone",
			"31 23 0:28 /docker/abc /sys/fs/cgroup ro shared:4 - cgroup2 cgroup2 rw\n", "0::/docker/abc\n",
			map[string]string{"sys/fs/cgroup/memory.max": "8192\n"}, Group{MemoryBytes: 8192}},
		{"group below what a container shows",
			"31 23 0:28 /docker/abc /sys/fs/cgroup ro shared:4 - cgroup2 cgroup2 rw\n", "0::/docker/abc/inner\n",
			map[string]string{"sys/fs/cgroup/inner/memory.max": "4096\n", "sys/fs/cgroup/memory.max": "8192\n"},
			Group{MemoryBytes: 4096}},
		{"group beside the namespace", v2, "0::/../other\n", map[string]string{"sys/fs/cgroup/memory.max": "8192\n"},
			Group{MemoryBytes: 8192}},
		{"Slurm, version 2", v2, "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", map[string]string{
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/memory.max": "max\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max":                    "1048576\n"},
			Group{MemoryBytes: 1 << 20}},
		{"Slurm, version 1", v1cpu + v1, "5:cpu:/\n4:memory:/slurm/uid_1/job_7/step_0\n", map[string]string{
			mountOf + "slurm/uid_1/job_7/step_0/memory.limit_in_bytes": none,
			mountOf + "slurm/uid_1/job_7/memory.limit_in_bytes":        "1048576\n",
			mountOf + "memory.limit_in_bytes":                          none}, Group{MemoryBytes: 1 << 20}},
		{"version 1 above what a container shows", v1, "4:memory:/docker/abc\n", map[string]string{
			mountOf + "memory.limit_in_bytes": noneOf64,
			mountOf + "memory.stat":           "cache 0\nhierarchical_memory_limit 2097152\nhierarchical_memsw_limit 5\n"},
			Group{MemoryBytes: 2 << 20}},
		{"version 1 beside controllers of version 2", v1 + unified, "4:cpu,memory:/a\n0::/a\n", map[string]string{
			mountOf + "a/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/unified/a/cgroup.procs": ""},
			Group{MemoryBytes: 4096}},
		{"version 1, no limit", v1, "4:memory:/\n", map[string]string{mountOf + "memory.limit_in_bytes": noneOf64}, Group{}},
		{"nonsense", "x\n- cgroup2\n" + v2, "x\n0::\n", map[string]string{"sys/fs/cgroup/memory.max": "-1",
			"sys/fs/cgroup/cpu.max": "a b"}, Group{}},
	} {
		root := fstest.MapFS{"proc/self/mountinfo": &fstest.MapFile{Data: []byte(c.mounts)},
			"proc/self/cgroup": &fstest.MapFile{Data: []byte(c.groups)}}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := ReadGroup(root); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestMachineBytes(t *testing.T) {
	for text, want := range map[string][2]int64{
		"MemTotal:       16318480 kB\nMemFree: 1 kB\nMemAvailable: 7 kB\n": {16318480 << 10, 7 << 10}, "": {},
		"MemTotal: x kB\n": {}, "MemTotal:\n": {}} {
		root := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte(text)}}
		if all, available := MachineBytes(root); [2]int64{all, available} != want {
			t.Errorf("%q: %d and %d, want %d", text, all, available, want)
		}
	}
}

// GOMEMLIMIT, which the Go runtime has read, lowers what the machine has.
func TestMemoryBytesOfGOMEMLIMIT(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	whole := MemoryBytes()
	debug.SetMemoryLimit(1 << 26)
	if got := MemoryBytes(); got != 1<<26 {
		t.Errorf("%d of %d, want the limit of the Go runtime", got, whole)
	}
}
