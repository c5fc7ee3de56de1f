package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"gradbus/internal/process"
	"gradbus/ps/ops/terminal"
)

// Limits below which a machine is warned of.
const (
	// filesMin: a ps holds four sockets for each trainer and as many for other ps, and a page some; files of hundreds of
	// trainers.
	filesMin  = 4096
	filesFail = 256
	// memoryMin leaves room for one job of the smallest kind beside the runtime.
	memoryMin = 1 << 30
	diskMin   = 1 << 30
	diskShare = 0.05
)

// size writes bytes in GiB or MiB.
func size(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}

// judgeMachine looks at limits, memory and huge pages.
func judgeMachine(m machine) []terminal.Finding {
	return []terminal.Finding{judgeFiles(m), judgeLocked(m), judgeMemory(m), judgeProcessors(m), judgeHuge(m)}
}

func judgeFiles(m machine) terminal.Finding {
	const name, want = "open files", "raise it: ulimit -n 65536, or LimitNOFILE= of the service"
	switch {
	case m.files < 0:
		return info(name, "not known")
	case m.files < filesFail:
		return fail(name, want, "at most %d: not enough for a job", m.files)
	case m.files < filesMin:
		return warn(name, want, "at most %d: enough for some %d trainers", m.files, m.files/16)
	}
	return ok(name, "at most %s", unlimited(m.files, "%d"))
}

func unlimited(n int64, format string) string {
	if n == math.MaxInt64 {
		return "unlimited"
	}
	return fmt.Sprintf(format, n)
}

// judgeLocked: pinned memory is the driver's and not counted by this limit, so a low one costs nothing yet.
func judgeLocked(m machine) terminal.Finding {
	switch {
	case m.locked < 0:
		return info("locked memory", "not known")
	case m.locked == math.MaxInt64:
		return ok("locked memory", "unlimited")
	}
	return ok("locked memory", "at most %s; nothing here locks any without a GPU", size(m.locked))
}

func judgeMemory(m machine) terminal.Finding {
	const name = "memory"
	if m.memory <= 0 {
		return info(name, "not known")
	}
	limit, of := m.memory, "of this machine"
	if m.group > 0 && m.group < limit {
		limit, of = m.group, fmt.Sprintf("by the limit of the control group, of %s", size(m.memory))
	}
	text := fmt.Sprintf("%s %s, %s available; jobs may hold three quarters unless --memory-mib says otherwise",
		size(limit), of, size(m.available))
	switch {
	case limit < memoryMin || m.available < memoryMin/4:
		return fail(name, "give it more memory, or end what else runs", "%s", text)
	case m.available < limit/4:
		return warn(name, "say --memory-mib, so that jobs are not promised what others hold", "%s", text)
	}
	return ok(name, "%s", text)
}

func judgeProcessors(m machine) terminal.Finding {
	if m.quota > 0 && m.quota < float64(m.processors) {
		level := ok
		text := fmt.Sprintf("%d, of which the control group grants the time of %.1f", m.processors, m.quota)
		if m.quota < 1 {
			return warn("processors", "grant at least one: a ps is stopped for the rest of each period otherwise, and jobs wait",
				"%s", text)
		}
		return level("processors", "%s", text)
	}
	return ok("processors", "%d", m.processors)
}

func judgeHuge(m machine) terminal.Finding {
	const name = "huge pages"
	switch m.huge {
	case "always", "madvise":
		return ok(name, "transparent ones: %s", m.huge)
	case "":
		return info(name, "not known")
	}
	return warn(name, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: lookups in large tables miss "+
		"the TLB less", "transparent ones: %s", m.huge)
}

// clock is what the kernel says of its clock.
type clock struct {
	known        bool
	synchronised bool
	errorMax     time.Duration
}

func judgeClock(c clock) terminal.Finding {
	switch {
	case !c.known:
		return info("clock", "not known whether anybody synchronises it")
	case !c.synchronised:
		return warn("clock", "run chrony or systemd-timesyncd: events of several machines are shown in the order of "+
			"their clocks", "nobody synchronises it, says the kernel")
	}
	return ok("clock", "synchronised, wrong by at most %s", c.errorMax.Round(time.Millisecond))
}

// judgeDisk writes a file of one page and takes it away again.
func judgeDisk(dir string) terminal.Finding {
	name := "disk " + dir
	probe, err := os.CreateTemp(dir, ".gradbus-doctor-*")
	if err == nil {
		defer os.Remove(probe.Name())
		_, err = probe.Write(make([]byte, 4096))
		err = errors.Join(err, probe.Close())
	}
	if err != nil {
		return fail(name, "make it, or let this user write there", "cannot be written: %v", err)
	}
	d, err := process.Disk(dir)
	if err != nil {
		return info(name, "can be written; how much is free is not known")
	}
	text := fmt.Sprintf("%s of %s are free", size(d.FreeBytes), size(d.TotalBytes))
	if d.FreeBytes < diskMin && float64(d.FreeBytes) < diskShare*float64(d.TotalBytes) {
		return warn(name, "make room: a model that cannot be saved is lost", "%s", text)
	}
	return ok(name, "%s", text)
}

// listener is a process that listens at a port.
type listener struct {
	port    int
	process string // "ps (pid 71)"; empty where it is not ours to see
}

// judgePort says whether a ps could listen at an address; err is of trying to.
func judgePort(address string, err error, all []listener) terminal.Finding {
	name := "port " + address
	switch {
	case err == nil:
		return ok(name, "free")
	case errors.Is(err, syscall.EADDRINUSE):
		who := "somebody whom this user may not see"
		for _, l := range all {
			if strings.HasSuffix(address, fmt.Sprintf(":%d", l.port)) && l.process != "" {
				who = l.process
			}
		}
		if strings.HasPrefix(who, "ps (") {
			return ok(name, "taken by %s", who)
		}
		return warn(name, "end it, or start ps with another --listen or --http", "taken by %s", who)
	case errors.Is(err, syscall.EACCES), errors.Is(err, fs.ErrPermission):
		return fail(name, "choose a port above 1023, or grant CAP_NET_BIND_SERVICE", "this user may not listen there")
	}
	return fail(name, "choose an address of this machine", "%v", err)
}
