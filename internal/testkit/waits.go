package testkit

import (
	"strings"
	"testing"
	"testing/synctest"
)

// fakeTime names the subtests in which time passes as soon as all goroutines wait.
const fakeTime = "fake time"

// Waits runs the body of a test that mostly waits, with time that passes as soon as all goroutines wait
// (testing/synctest), and, without -short, in real time, too. In fake time no socket can be used: InFakeTime tells a
// body which it is. Call it at the beginning of a test; in real time it waits beside other tests.
func Waits(t *testing.T, body func(*testing.T)) {
	Beside(t)
	t.Run(fakeTime, func(t *testing.T) { synctest.Test(t, body) })
	if !testing.Short() {
		t.Run("real time", body)
	}
}

// Beside is called at the beginning of a test whose subtests call Waits: else the next test waits for all of them.
func Beside(t *testing.T) {
	if !testing.Short() {
		t.Parallel()
	}
}

// InFakeTime tells whether a test is within Waits, in fake time.
func InFakeTime(t testing.TB) bool {
	return strings.Contains(t.Name(), "/"+strings.ReplaceAll(fakeTime, " ", "_"))
}
