package fabric

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestServerPicksAFreePort(t *testing.T) {
	a, b := startServer(t, ServerConfig{}), startServer(t, ServerConfig{})
	if a.URL() == b.URL() || !strings.HasPrefix(a.URL(), "nats://127.0.0.1:") {
		t.Errorf("URLs %q and %q", a.URL(), b.URL())
	}
}

func TestServerPortTaken(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := other.Addr().(*net.TCPAddr).Port
	_, err = StartServer(ServerConfig{Port: port, Log: testLog(t)})
	if !errors.Is(err, ErrPortTaken) {
		t.Fatalf("StartServer: %v; want ErrPortTaken", err)
	}
	for _, want := range []string{"127.0.0.1:" + strconv.Itoa(port), "want another host or port, or port 0"} {
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: want one line with %q", err, want)
		}
	}
}

func TestServerForeignHost(t *testing.T) {
	_, err := StartServer(ServerConfig{Host: "192.0.2.1", Log: testLog(t)}) // reserved for documentation
	if err == nil || errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("StartServer: %v", err)
	}
}

func TestServerConfigNamesEveryField(t *testing.T) {
	_, err := StartServer(ServerConfig{Port: 70000, PayloadBytesMax: -1, PendingBytesMax: -5})
	for _, want := range []string{"port 70000", "payload_bytes_max -1", "pending_bytes_max -5"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StartServer: %v; want %q in it", err, want)
		}
	}
}

func TestServerListensOnAllAddresses(t *testing.T) {
	server := startServer(t, ServerConfig{Host: "0.0.0.0"})
	if !strings.HasPrefix(server.URL(), "nats://127.0.0.1:") {
		t.Errorf("URL %q cannot be dialled everywhere", server.URL())
	}
	dial(t, Config{URL: server.URL()})
}

func TestServerClients(t *testing.T) {
	server := startServer(t, ServerConfig{})
	if got := server.Clients(); len(got) != 0 {
		t.Errorf("clients of a new server: %q", got)
	}
	dial(t, Config{URL: server.URL(), Name: "job/t1"})
	gone := dial(t, Config{URL: server.URL(), Name: "job/t0"})
	dial(t, Config{Server: server, Name: "ps"})
	if got, want := server.Clients(), []string{"job/t0", "job/t1", "ps"}; !slices.Equal(got, want) {
		t.Errorf("clients %q, want %q", got, want)
	}
	gone.Close()
	eventually(t, "job/t0 is gone", func() bool { return slices.Equal(server.Clients(), []string{"job/t1", "ps"}) })
}

func TestServerCloseTwice(t *testing.T) {
	server := startServer(t, ServerConfig{})
	server.Close()
	server.Close()
}

// NATS's own monitoring is there where it was asked for, on loopback alone, and nowhere else.
func TestMonitor(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	server := startServer(t, ServerConfig{Monitor: at})
	dial(t, Config{URL: server.URL(), Name: "demo/t0"})
	answer, err := http.Get("http://" + at + "/connz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(text), `"name": "demo/t0"`) {
		t.Errorf("%v: %s", err, text)
	}
	for _, wrong := range []string{"0.0.0.0:8222", "127.0.0.1", "127.0.0.1:0", "host:8222", ":8222"} {
		if _, err := StartServer(ServerConfig{Monitor: wrong}); err == nil ||
			!strings.Contains(err.Error(), "monitor \""+wrong) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
