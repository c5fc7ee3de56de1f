package e2e

import (
	"regexp"
	"slices"
	"syscall"
	"testing"
)

// In each system a process killed with -9 ends the run with one line that names it, and nothing is left over.
func TestSystemsNameTheDead(t *testing.T) {
	for _, args := range [][]string{
		{"update", "--trainers", "3", "--batches", "1000000"},
		{"average", "--epochs", "100000"},
		{"hybrid", "--trainers", "2", "--servers", "2", "--epochs", "1000000"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			p := start(t, "psbench", args...)
			var members []int
			poll(t, "servers and trainers", func() bool {
				select {
				case <-p.done:
					t.Fatalf("psbench ended: %s", p.stderr.String())
				default:
				}
				members = childrenOf(t, p.Process.Pid)
				return len(members) >= 3
			})
			if err := syscall.Kill(slices.Max(members), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if status := p.status(t); status != 1 || !regexp.MustCompile(`(s|t)[0-9]: signal: killed$`).MatchString(p.errorLine()) {
				t.Errorf("status %d and %q, want 1 and the member that was killed", status, p.errorLine())
			}
			for _, pid := range members {
				if alive(pid) {
					t.Errorf("process %d is left over", pid)
				}
			}
		})
	}
}
