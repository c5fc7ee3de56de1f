package e2e

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A service manager that starts a ps hears when it serves, and that it ends when it was told to.
func TestServiceManagerIsTold(t *testing.T) {
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hears := func(want string) {
		t.Helper()
		text := make([]byte, 64)
		_ = socket.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := socket.Read(text)
		if err != nil || string(text[:n]) != want {
			t.Fatalf("heard %q, error %v, want %s", text[:n], err, want)
		}
	}
	t.Setenv("NOTIFY_SOCKET", at)
	ps, _ := server(t)
	hears("READY=1")
	ps.signal(t, syscall.SIGTERM)
	hears("STOPPING=1")
	ps.succeeds(t)
}
