package exchange

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage returns the resources that this process has used so far.
func usage(bytes uint64) (mark, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return mark{}, fmt.Errorf("read own usage: %w", err)
	}
	m := mark{At: float64(time.Now().UnixNano()) / 1e9, CPU: seconds(r.Utime) + seconds(r.Stime), Bytes: bytes,
		Goroutines: runtime.NumGoroutine()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil { // not Linux: the peak is all that is known
		m.PeakRSS = int64(r.Maxrss) << 10
		return m, nil
	}
	m.RSS = statusBytes(string(status), "VmRSS:")
	m.PeakRSS = max(m.RSS, statusBytes(string(status), "VmHWM:")) // the kernel keeps the two a little apart
	return m, nil
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// statusBytes reads a line like "VmHWM:   1234 kB"; 0 where there is none.
func statusBytes(status, field string) int64 {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			if words := strings.Fields(rest); len(words) == 2 {
				kb, _ := strconv.ParseInt(words[0], 10, 64) // the kernel writes a number
				return kb << 10
			}
		}
	}
	return 0
}
