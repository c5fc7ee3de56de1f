//go:build linux

package process

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// of names a child as it would itself.
func of(t *testing.T, pid int) string {
	t.Helper()
	began, err := startOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(Self(), "/")
	words[len(words)-2], words[len(words)-1] = strconv.Itoa(pid), strconv.FormatUint(began, 10)
	return strings.Join(words, "/")
}

func TestWatchSeesTheEnd(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	self, ended, never := of(t, child.Process.Pid), make(chan struct{}), make(chan struct{}, 1)
	if _, err := Watch(self, func() { close(ended) }); err != nil {
		t.Fatal(err)
	}
	stop, err := Watch(self, func() { never <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	select {
	case <-ended:
		t.Fatal("ended before its end")
	default:
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended // before anybody has waited for the child
	_ = child.Wait()
	again := make(chan struct{})
	if _, err := Watch(self, func() { close(again) }); err != nil {
		t.Fatalf("of one that has ended: %v", err)
	}
	<-again
	if len(never) > 0 {
		t.Error("told of an end after stop")
	}
}

func TestWatchRefusesOthers(t *testing.T) {
	self := Self()
	for _, other := range []string{"", "x", "x" + self, self[:strings.LastIndex(self, "/")], self + "/1",
		strings.Replace(self, "pid:", "pid:1", 1)} {
		if _, err := Watch(other, func() { t.Errorf("%q has ended", other) }); !errors.Is(err, ErrElsewhere) {
			t.Errorf("%q: %v, want ErrElsewhere", other, err)
		}
	}
}
