// Package leaks runs the tests of packages that start NATS servers in their own process: a goroutine that is left over at the end is a failure.
//
// One goroutine of nats-server's is left out: the clock that all its stores in a process share, which ends with the last of them. A store that is
// made while its server shuts down is forgotten there now and then, and the clock goes on; of a server itself much more would be left.
package leaks

import (
	"testing"

	"go.uber.org/goleak"
)

const clock = "github.com/nats-io/nats-server/v2/server/ats.Register.func1"

// Main runs a package's tests, and ends the process with their status. It is for TestMain.
func Main(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(clock)) }
