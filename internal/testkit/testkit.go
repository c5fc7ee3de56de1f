// Package testkit is what the tests of packages of any kind have in common. It knows none of them; programs do not
// import it.
package testkit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is the time that goroutines have to end after all tests: they were asked to, and a busy machine may delay
// them.
const patience = 20 * time.Second

// Main runs a package's tests and ends the process with their status: a goroutine that is left over at the end, and is
// not ignored, is a failure. It is for TestMain.
func Main(m *testing.M, ignored ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := leftOver(patience, ignored...); err != nil {
			fmt.Fprintf(os.Stderr, "%v after all tests: %v\n", patience, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftOver returns goleak's report of goroutines that still run after a time; nil as soon as there are none.
func leftOver(long time.Duration, ignored ...goleak.Option) error {
	for deadline := time.Now().Add(long); ; { // goleak itself waits for less than half a second
		if err := goleak.Find(ignored...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Text collects what any number of goroutines write, whole writes one after the other. The zero value is empty.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write never fails.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String is all of it so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// File writes a file into a folder and gives its path.
func File(t testing.TB, folder, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
