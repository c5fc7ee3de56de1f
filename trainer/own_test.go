package trainer

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// A data server that other machines reach asks for a token that nobody guesses.
func TestCheckDataHost(t *testing.T) {
	for _, c := range []struct{ host, token, says string }{
		{"", "", ""},
		{"127.0.0.1", "short", ""},
		{"localhost", "", ""},
		{"::1", "", ""},
		{"0.0.0.0", "0123456789abcdef", ""},
		{"10.0.0.1", "", "data host 10.0.0.1: other machines can reach it, and there is no token"},
		{"10.0.0.1", "0123456789abcde",
			"data host 10.0.0.1: other machines can reach it: token: it has 15 characters, want at least 16"},
	} {
		err := checkDataHost(Config{DataHost: c.host, Token: c.token})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %q: %v, want %q", c.host, c.token, err, c.says)
		}
	}
}

// Where nobody says where the data server listens, it is reached as this machine reaches the server, if a token keeps
// strangers away; what is said may have a port.
func TestDataAddress(t *testing.T) {
	const token = "0123456789abcdef"
	for _, c := range []struct {
		config    Config
		local     string
		host      string
		port      int
		announced string // of a server at port 7
		says      string
	}{
		{Config{}, "", "", 0, "nats://127.0.0.1:7", ""},
		{Config{Token: token}, "127.0.0.1", "127.0.0.1", 0, "nats://127.0.0.1:7", ""},
		{Config{Token: token}, "10.0.0.2", "10.0.0.2", 0, "nats://127.0.0.1:7", ""},
		{Config{}, "10.0.0.2", "", 0, "nats://127.0.0.1:7", ""},
		{Config{Token: token, TLS: &tls.Config{}}, "10.0.0.2", "", 0, "nats://127.0.0.1:7", ""},
		{Config{Token: token, DataHost: "0.0.0.0"}, "10.0.0.2", "0.0.0.0", 0, "nats://10.0.0.2:7", ""},
		{Config{Token: token, DataHost: "10.0.0.3:4300"}, "10.0.0.2", "10.0.0.3", 4300, "nats://127.0.0.1:7", ""},
		{Config{Token: token, DataHost: "[::]:4300", Advertise: "far"}, "::1", "::", 4300, "nats://far:7", ""},
		{Config{DataHost: "::1", Advertise: "far:9"}, "", "::1", 0, "nats://far:9", ""},
		{Config{DataHost: "127.0.0.1:many"}, "", "", 0, "", `data host "127.0.0.1:many": want a name or an IP, and maybe a port`},
		{Config{DataHost: "10.0.0.3:4300"}, "", "", 0, "", "data host 10.0.0.3:4300: other machines can reach it"},
	} {
		host, port, err := dataAddress(c.config, c.local)
		if c.says != "" || err != nil {
			if err == nil || c.says == "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v, want %q", c.config.DataHost, err, c.says)
			}
			continue
		}
		at, err := c.config.advertised("nats://127.0.0.1:7", host, c.local)
		if host != c.host || port != c.port || at != c.announced || err != nil {
			t.Errorf("%q from %q: listens at %q, port %d, announces %s, %v; want %q, %d, %s", c.config.DataHost, c.local, host,
				port, at, err, c.host, c.port, c.announced)
		}
	}
}

// What a stranger can make a trainer's own data server hold is bounded as a ps's is; the other trainers send their
// messages.
func TestOwnServerBoundsStrangers(t *testing.T) {
	job := toyJob("between", 2, 4, schema.ApplyMean)
	job.Reduce, job.ChunkBytes = schema.ReduceTrainers, 4<<20
	own, err := startPeerServer(t.Context(), Config{}, job, "")
	if err != nil {
		t.Fatal(err)
	}
	defer own.close()
	for name, welcome := range map[string]bool{"between/t1": true, "between/t2": false, "other/t1": false, "": false} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(own.url, "nats://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"name\":%q}\r\nPUB gradbus.v1.between.t1.reduce.t0.0.0 "+
			"%d\r\n%s\r\nPING\r\n", name, 4<<20, make([]byte, 4<<20))
		answer := ""
		for in := bufio.NewReader(conn); answer == "" || strings.HasPrefix(answer, "INFO"); {
			if answer, err = in.ReadString('\n'); err != nil {
				answer = err.Error() // cut off in the middle of the message
			}
		}
		if got := strings.HasPrefix(answer, "PONG"); got != welcome {
			t.Errorf("%q sends 4 MiB: %q, want that it may: %t", name, answer, welcome)
		}
	}
}
