package testkit

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func wait(until chan struct{}) { <-until }

// A goroutine that stays is found and named; one that takes longer to end than goleak is patient is not.
func TestLeftOver(t *testing.T) {
	end := make(chan struct{})
	go wait(end)
	if err := leftOver(time.Millisecond); err == nil || !strings.Contains(err.Error(), "testkit.wait") {
		t.Errorf("a goroutine that stays: %v", err)
	}
	time.AfterFunc(time.Second, func() { close(end) })
	if err := leftOver(patience); err != nil {
		t.Errorf("a goroutine that ends after a second: %v", err)
	}
}

// Writes of several goroutines are all there, none cut by another.
func TestText(t *testing.T) {
	var text Text
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 100 {
				fmt.Fprintf(&text, "%d%[1]d%[1]d\n", i)
				_ = text.String()
			}
		})
	}
	all.Wait()
	for i := range 4 {
		if n := strings.Count("\n"+text.String(), fmt.Sprintf("\n%d%[1]d%[1]d\n", i)); n == 0 ||
			strings.Count(text.String(), fmt.Sprint(i)) != 300 {
			t.Errorf("writer %d: %d lines", i, n)
		}
	}
	if len(text.String()) != 4*4*100 {
		t.Errorf("%d bytes, want 1600", len(text.String()))
	}
}
