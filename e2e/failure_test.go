package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// long is a job that runs until something ends it.
func long(url, data string, more ...string) []string {
	return append([]string{"packages", "--server", url, "--input", data, "--lanes", "4", "--batch", "32", "--dim", "8",
		"--lr", "1", "--placement", "rows", "--epochs", "100000"}, more...)
}

// short is a job that is over soon.
func short(url, data string, more ...string) []string {
	return append([]string{"packages", "--server", url, "--input", data, "--lanes", "4", "--batch", "32", "--dim", "8",
		"--lr", "1", "--placement", "rows", "--epochs", "1"}, more...)
}

// A trainer killed with -9 ends the others with an error that names it, and the next job of that name runs at once.
func TestTrainerKilled(t *testing.T) { killed(t, "--failure-policy", "fail") }

func killed(t *testing.T, flags ...string) {
	_, url := server(t, "--deadline", "10s")
	data := index(t, 200)
	flags = append(flags, "--trainers", "2")
	first := start(t, "trainer", long(url, data, append(flags, "--id", "t0")...)...)
	second := start(t, "trainer", long(url, data, append(flags, "--id", "t1")...)...)
	first.says(t, "batch 1 of")
	second.says(t, "batch 1 of")
	second.signal(t, syscall.SIGKILL)
	first.fails(t, "t1")
	start(t, "trainer", short(url, data)...).succeeds(t)
}

// The server ended in good order says so to its trainers.
func TestServerInterrupted(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ps, url := server(t)
		trainer := start(t, "trainer", long(url, index(t, 200))...)
		trainer.says(t, "batch 1 of")
		ps.signal(t, signal)
		ps.succeeds(t)
		trainer.fails(t, "server")
	}
}

// Ctrl-C ends a trainer with status 130, whether it waits for others or trains; those who trained with it are told.
func TestTrainerInterrupted(t *testing.T) {
	_, url := server(t)
	data := index(t, 200)
	waiting := start(t, "trainer", long(url, data, "--job", "lonely", "--trainers", "2")...)
	waiting.says(t, "waiting")
	waiting.signal(t, syscall.SIGINT)
	if status := waiting.status(t); status != 130 {
		t.Errorf("interrupted while it waited: status %d, %s", status, waiting.stderr.String())
	}
	first := start(t, "trainer", long(url, data, "--failure-policy", "fail", "--trainers", "2", "--id", "t0")...)
	second := start(t, "trainer", long(url, data, "--failure-policy", "fail", "--trainers", "2", "--id", "t1")...)
	first.says(t, "batch 1 of")
	second.signal(t, syscall.SIGINT)
	if status := second.status(t); status != 130 {
		t.Errorf("interrupted: status %d, %s", status, second.stderr.String())
	}
	first.fails(t, "t1", "interrupted")
	start(t, "trainer", short(url, data)...).succeeds(t)
}

// Whatever ends the parent of several trainers, or one of them, none is left over.
func TestSpawnLeavesNothing(t *testing.T) {
	t.Parallel()
	_, url := server(t, "--deadline", "10s")
	data := index(t, 200)
	for name, end := range map[string]func(t *testing.T, parent *process, children []int){
		"interrupt": func(t *testing.T, parent *process, _ []int) {
			parent.signal(t, syscall.SIGINT)
			if status := parent.status(t); status != 130 {
				t.Errorf("status %d: %s", status, parent.stderr.String())
			}
		},
		"child killed": func(t *testing.T, parent *process, children []int) {
			if err := syscall.Kill(children[1], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			parent.fails(t, "trainer")
		},
		"parent killed": func(t *testing.T, parent *process, _ []int) {
			parent.signal(t, syscall.SIGKILL)
			parent.status(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := "spawn-" + strings.ReplaceAll(name, " ", "-")
			parent := start(t, "trainer", long(url, data, "--job", job, "--spawn", "--trainers", "2")...)
			parent.says(t, "batch 1 of")
			children := childrenOf(t, parent.Process.Pid)
			if len(children) != 2 {
				t.Fatalf("%d child processes, want 2", len(children))
			}
			end(t, parent, children)
			poll(t, "the children are gone", func() bool {
				for _, pid := range children {
					if alive(pid) {
						return false
					}
				}
				return true
			})
			// The server needs some seconds to see that trainers which could not say so are gone.
			poll(t, "the name is free", func() bool {
				if start(t, "trainer", short(url, data, "--job", job)...).status(t) == 0 {
					return true
				}
				time.Sleep(time.Second) // each of these is a process
				return false
			})
		})
	}
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil || len(files) == 0 {
		t.Skip("needs /proc to find child processes")
	}
	var children []int
	for _, file := range files {
		if statusField(file, "PPid") == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(statusField(file, "Pid"))
			children = append(children, child)
		}
	}
	return children
}

// alive reports whether a process runs; one that has ended and waits for its parent does not.
func alive(pid int) bool {
	state := statusField(fmt.Sprintf("/proc/%d/status", pid), "State")
	return state != "" && !strings.HasPrefix(state, "Z")
}

func statusField(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, _ := strings.Cut(s.Text(), ":"); key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
