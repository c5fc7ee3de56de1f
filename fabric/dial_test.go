package fabric

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
)

func TestDialNobodyListens(t *testing.T) { overBoth(t, testDialNobodyListens) }

func testDialNobodyListens(t *testing.T) {
	server := startServer(t, ServerConfig{})
	at := server.URL()
	server.Close()
	_, err := tryDial(t, Config{URL: at})
	wantError(t, err, ErrNoServer, strings.TrimPrefix(at, "nats://"), "./bin/ps starts one", "refused")
	_, err = tryDial(t, Config{Server: server})
	wantError(t, err, ErrNoServer, "this process")
}

func TestDialUnknownHost(t *testing.T) { overBoth(t, testDialUnknownHost) }

func testDialUnknownHost(t *testing.T) {
	_, err := tryDial(t, Config{URL: "nats://nobody.invalid:4222"})
	wantError(t, err, ErrNoServer, "nobody.invalid:4222", "./bin/ps starts one")
}

func TestDialBadURL(t *testing.T) {
	for _, at := range []string{"", "localhost:4222", "http://localhost:4222", "nats://", "nats://[::1", "nats://a b:1"} {
		if _, err := tryDial(t, Config{URL: at}); err == nil || !strings.Contains(err.Error(), "want nats://host:port") {
			t.Errorf("Dial(%q): %v", at, err)
		}
	}
}

// foreign listens and answers every connection with a greeting, or with silence.
func foreign(t *testing.T, greeting string) (at string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(greeting))
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
		for _, c := range open {
			c.Close()
		}
	})
	return listener.Addr().String()
}

func TestDialForeignServer(t *testing.T) { overBoth(t, testDialForeignServer) }

func testDialForeignServer(t *testing.T) {
	at := foreign(t, "SSH-2.0-OpenSSH_9.2\r\n")
	_, err := tryDial(t, Config{URL: "nats://" + at})
	wantError(t, err, ErrNoServer, at, "NATS greeting failed")
}

func TestDialSilentServer(t *testing.T) { overBoth(t, testDialSilentServer) }

func testDialSilentServer(t *testing.T) {
	at := foreign(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // by far enough to reach the greeting
	defer cancel()
	_, err := Dial(ctx, Config{URL: "nats://" + at})
	wantError(t, err, ErrNoServer, at, "NATS greeting failed", "deadline")
	wantError(t, err, context.DeadlineExceeded)
}

func TestDialCancelled(t *testing.T) { overBoth(t, testDialCancelled) }

func testDialCancelled(t *testing.T) {
	at := foreign(t, "")
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	_, err := Dial(ctx, Config{URL: "nats://" + at})
	wantError(t, err, why, at)
}

func TestToken(t *testing.T) { overBoth(t, testToken) }

func testToken(t *testing.T) {
	server := startServer(t, ServerConfig{Token: "secret"})
	told := 0
	_, err := tryDial(t, Config{URL: server.URL(), Token: "guess", OnState: func(State) { told++ }})
	wantError(t, err, ErrRefused, "wrong token", strings.TrimPrefix(server.URL(), "nats://"))
	if strings.Contains(err.Error(), "guess") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells the token: %q", err)
	}
	if told != 0 {
		t.Error("states were told of a connection that never was")
	}
	_, err = tryDial(t, Config{URL: server.URL()})
	wantError(t, err, ErrRefused, "asks for a token")
	dial(t, Config{URL: server.URL(), Token: "secret"})
	dial(t, Config{Server: server})
}

func TestTLS(t *testing.T) { overBoth(t, testTLS) }

func testTLS(t *testing.T) {
	authority := certtest.NewAuthority(t)
	certificate, roots := authority.Issue(t, "127.0.0.1").TLS, authority.Pool
	server := startServer(t, ServerConfig{TLS: &tls.Config{Certificates: []tls.Certificate{certificate}}})
	if !strings.HasPrefix(server.URL(), "tls://") {
		t.Errorf("URL %q", server.URL())
	}
	conn := dial(t, Config{URL: server.URL(), TLS: &tls.Config{RootCAs: roots}})
	roundTrip(t, conn, conn)
	inside := dial(t, Config{Server: server})
	roundTrip(t, inside, conn)
	_, err := tryDial(t, Config{URL: server.URL()})
	wantError(t, err, ErrRefused, "certificate")
	plain := startServer(t, ServerConfig{})
	_, err = tryDial(t, Config{URL: plain.URL(), TLS: &tls.Config{RootCAs: roots}})
	wantError(t, err, ErrRefused, "secure")
}
