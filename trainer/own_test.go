package trainer

import (
	"bufio"
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

// What a stranger can make a trainer's own data server hold is bounded as a ps's is; the other trainers send their
// messages.
func TestOwnServerBoundsStrangers(t *testing.T) {
	job := toyJob("between", 2, 4, schema.ApplyMean)
	job.Reduce, job.ChunkBytes = schema.ReduceTrainers, 4<<20
	own, err := startOwnServer(t.Context(), Config{}, job)
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
