// Package fabrictest provides what tests share whose packages start NATS servers, or need addresses without one. Main
// runs a package's tests and fails on leaked goroutines.
package fabrictest

import (
	"net/url"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"gradbus/internal/testkit"
)

// clock is a goroutine of nats-server: the clock that all its stores in a process share, which ends with the last of
// them. A store that is made while its server shuts down is occasionally not deregistered there, and the clock keeps
// running; a leaked server would leave much more.
const clock = "github.com/nats-io/nats-server/v2/server/ats.Register.func1"

// Main runs a package's tests, and ends the process with their status. A goroutine that is left over at the end is a
// failure. Call it from TestMain.
func Main(m *testing.M) { testkit.Main(m, goleak.IgnoreTopFunction(clock)) }

// DeadPort returns a loopback port at which no process listens while the test runs: it is bound, and nothing more.
func DeadPort(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return at.(*syscall.SockaddrInet4).Port
}

// PortOf returns the port of a server's URL.
func PortOf(t testing.TB, server string) int {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
