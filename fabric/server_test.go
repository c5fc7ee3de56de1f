package fabric

import (
	"errors"
	"net"
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
	second := dial(t, Config{Server: server, Name: "job/t0"}) // so that the names are fewer than the connections
	if got, want := server.Clients(), []string{"job/t0", "job/t1", "ps"}; !slices.Equal(got, want) {
		t.Errorf("clients %q, want %q", got, want)
	} else if cap(got) > len(got) {
		t.Error("who appends to the clients writes where others do")
	}
	second.Close()
	gone.Close()
	eventually(t, "job/t0 is gone", func() bool { return slices.Equal(server.Clients(), []string{"job/t1", "ps"}) })
}

func TestServerCloseTwice(t *testing.T) {
	server := startServer(t, ServerConfig{})
	server.Close()
	server.Close()
}

// A server whose folder for temporary files is full says so, and not that its address is wrong.
func TestStartErrorNamesTheFolder(t *testing.T) {
	full := errors.New("could not create storage directory - mkdir /t/gradbus-1/jetstream: no space left on device")
	if err := startError("h:1", "/t/gradbus-1", full); !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("%v: want TMPDIR in it", err)
	}
	if err := startError("h:1", "", full); !strings.Contains(err.Error(), "want a host of this machine") {
		t.Errorf("%v: want advice about the address", err)
	}
}
