package testkit

import (
	"strings"
	"testing"
	"testing/synctest"
)

// fakeTime names the subtests in which time passes as soon as everybody waits.
const fakeTime = "fake time"

// Waits runs the body of a test that mostly waits where time passes as soon as everybody waits (testing/synctest), and
// where all tests are wanted in real time too. In fake time nothing goes over a socket: InFakeTime says where a body
// is. It is called at the beginning of a test, which in real time waits beside others.
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
