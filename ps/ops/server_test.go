package ops

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
)

// Over TLS everything is as without: HTTP/1.1 and 2, streams, names of the certificate, cookies that stay on TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certtest.NewAuthority(t)
	pair := authority.Issue(t, "train.example.org", "127.0.0.1")
	cert, key, roots := pair.CertFile, pair.KeyFile, authority.Pool
	s := start(t, func(c *Config) {
		c.Listen, c.CertFile, c.KeyFile, c.Token = "0.0.0.0:0", cert, key, someToken       // which needs no http-insecure
		c.limits.formTime, c.limits.writeTime = 700*time.Millisecond, 700*time.Millisecond // which end no stream
	})
	if !strings.HasPrefix(s.URL(), "https://127.0.0.1:") {
		t.Fatalf("URL %s", s.URL())
	}
	for version, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2,
			DisableCompression: true}
		s.client.Transport = transport
		for _, host := range []string{"127.0.0.1", "train.example.org:443"} {
			answer, body := s.get(t, "/api/v1/status", "Host: "+host, "Authorization: Bearer "+someToken)
			if answer.StatusCode != 200 || answer.Proto != version || !strings.Contains(body, "now_ms") {
				t.Errorf("%s, host %s: %s %d %.100q", version, host, answer.Proto, answer.StatusCode, body)
			}
		}
		answer, body := s.get(t, "/api/v1/status")
		wantError(t, answer, body, http.StatusUnauthorized)
		answer, body = s.get(t, "/", "Host: evil.example")
		wantError(t, answer, body, http.StatusForbidden)
		e := s.open(t, "Authorization: Bearer "+someToken)
		e.next(t)
		e.next(t)
		e.close()
		eventually(t, "no stream", func() bool { return s.Stats().Streams == 0 })
		transport.CloseIdleConnections()
	}
	answer, _ := s.do(t, "POST", "/login", strings.NewReader("token="+someToken),
		"Content-Type: application/x-www-form-urlencoded")
	if c := answer.Cookies(); len(c) != 1 || !c[0].Secure || c[0].Name != "__Host-gradbus" {
		t.Errorf("cookies %v", c)
	}
	s.client.CloseIdleConnections()
	// Plain text, old versions, and nothing at all are refused, and counted; the handshake has a time too.
	if got := ended(t, s.dial(t, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); strings.Contains(got, " 200 ") {
		t.Errorf("plain text: %q", got)
	}
	_, port, _ := strings.Cut(strings.Trim(s.URL(), "/"), "127.0.0.1:")
	if c, err := tls.Dial("tcp", "127.0.0.1:"+port,
		&tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}); err == nil {
		c.Close()
		t.Error("TLS 1.1")
	}
	eventually(t, "faults are counted", func() bool { return s.Stats().Faults >= 2 })
}

func TestTLSHandshakeHasATime(t *testing.T) {
	t.Parallel()
	pair := certtest.NewAuthority(t).Issue(t)
	cert, key := pair.CertFile, pair.KeyFile
	s := start(t, func(c *Config) {
		c.CertFile, c.KeyFile, c.limits.headerTime, c.limits.formTime = cert, key, 50*time.Millisecond, 50*time.Millisecond
	})
	ended(t, s.dial(t, ""))
	ended(t, s.dial(t, "\x16\x03\x01")) // the beginning of a handshake
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().String()
	hub := NewHub(nil)
	_, err = Start(t.Context(), Config{Listen: at, Hub: hub})
	if err == nil || !strings.Contains(err.Error(), "http "+at+": the port is taken") ||
		!strings.Contains(err.Error(), "--http off") {
		t.Errorf("error %v", err)
	}
	_, err = Start(t.Context(), Config{Listen: "127.0.0.1:0", Pprof: at, Hub: hub})
	if err == nil || !strings.Contains(err.Error(), "pprof "+at+": the port is taken") {
		t.Errorf("error %v", err)
	}
	if _, err = Start(t.Context(), Config{Listen: "192.0.2.1:0", Insecure: true, Hub: hub, AnyPort: true}); err == nil ||
		!strings.Contains(err.Error(), "http 192.0.2.1:0: ") {
		t.Errorf("error %v", err)
	}
	log := &testkit.Text{}
	s, err := Start(t.Context(), Config{Listen: at, AnyPort: true, Hub: hub, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if strings.Contains(s.URL(), at) || strings.Count(log.String(), "\n") != 1 ||
		!strings.Contains(log.String(), "WARN") || !strings.Contains(log.String(), at) {
		t.Errorf("URL %s, log %q", s.URL(), log)
	}
}

// What may be asked for and what not: one line says all that is wrong.
func TestValidate(t *testing.T) {
	t.Parallel()
	hub := NewHub(nil)
	for _, c := range []struct {
		config Config
		want   string // part of the error; empty where there is none
	}{
		{Config{Listen: "127.0.0.1:8080"}, ""},
		{Config{Listen: "localhost:8080"}, ""},
		{Config{Listen: "[::1]:8080"}, ""},
		{Config{Listen: "127.0.0.1"}, "want host:port"},
		{Config{Listen: "0.0.0.0:8080"}, "http-token-file, http-tls-cert and http-tls-key"},
		{Config{Listen: ":8080"}, "http-insecure"},
		{Config{Listen: "[::]:8080"}, "http-insecure"},
		{Config{Listen: "box:8080"}, "http-insecure"},
		{Config{Listen: "0.0.0.0:8080", Insecure: true}, ""},
		{Config{Listen: "0.0.0.0:8080", Token: someToken}, "http-insecure"},
		{Config{Listen: "0.0.0.0:8080", CertFile: "c", KeyFile: "k"}, "http-insecure"},
		{Config{Listen: "0.0.0.0:8080", CertFile: "c", KeyFile: "k", Token: someToken}, ""},
		{Config{Listen: "127.0.0.1:8080", CertFile: "c"}, "want both or neither"},
		{Config{Listen: "127.0.0.1:8080", Token: "short"}, "5 characters, want at least 16"},
		{Config{Listen: "127.0.0.1:8080", Token: "0123456789abcdef"}, ""},
		{Config{Listen: "127.0.0.1:8080", Token: "a token with some spaces"}, "ASCII"},
		{Config{Listen: "127.0.0.1:8080", Hosts: []string{"a.example", "b.example:80"}}, ""},
		{Config{Listen: "127.0.0.1:8080", Hosts: []string{"https://a.example/"}}, "http-host"},
		{Config{Listen: "127.0.0.1:8080", Hosts: []string{"*.example"}}, "http-host"},
		{Config{Listen: "127.0.0.1:8080", Pprof: "127.0.0.1:6060"}, ""},
		{Config{Listen: "127.0.0.1:8080", Pprof: "0.0.0.0:6060"}, "pprof"},
		{Config{Listen: "127.0.0.1:8080", Pprof: ":6060", Insecure: true}, "pprof"},
		{Config{Listen: "x", Pprof: "y"}, "; pprof"},
	} {
		c.config.Hub = hub
		err := c.config.Validate()
		if (err == nil) != (c.want == "") ||
			err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.want)
		}
		if err != nil && c.config.Token != "" && strings.Contains(err.Error(), c.config.Token) {
			t.Errorf("the error tells the token: %v", err)
		}
	}
	if err := (Config{Listen: "127.0.0.1:8080"}).Validate(); err == nil {
		t.Error("no hub, no error")
	}
}

// Others are told the name that was given for them, with the port of a proxy where one was said.
func TestPublic(t *testing.T) {
	t.Parallel()
	pair := certtest.NewAuthority(t).Issue(t, "*.example.org", "box.example.org", "other.example.org")
	cert, key := pair.CertFile, pair.KeyFile
	for _, c := range []struct {
		config Config
		want   string // PORT is that of the listener
	}{
		{Config{}, "http://127.0.0.1:PORT/"},
		{Config{Hosts: []string{"Train.example.org", "b.example"}}, "http://train.example.org:PORT/"},
		{Config{Hosts: []string{"train.example.org:443"}}, "http://train.example.org:443/"},
		{Config{CertFile: cert, KeyFile: key}, "https://box.example.org:PORT/"},
		{Config{CertFile: cert, KeyFile: key, Hosts: []string{"10.1.2.3"}}, "https://10.1.2.3:PORT/"},
	} {
		c.config.Listen, c.config.Hub = "127.0.0.1:0", NewHub(nil)
		s, err := Start(t.Context(), c.config)
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := strings.Cut(s.conns.Addr().String(), ":")
		if got, want := s.Public(), strings.ReplaceAll(c.want, "PORT", port); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		s.Close()
	}
}

// Profiles are on a listener of their own, which has the rules of the other.
func TestProfiles(t *testing.T) {
	t.Parallel()
	log := &testkit.Text{}
	hub := NewHub(nil)
	s, err := Start(t.Context(), Config{Listen: "127.0.0.1:0", Pprof: "127.0.0.1:0", Hub: hub,
		Log:    slog.New(slog.NewTextHandler(log, nil)),
		limits: limits{formTime: 100 * time.Millisecond, writeTime: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, at, _ := strings.Cut(log.String(), "url=")
	at = strings.TrimSpace(at)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(url, host string) (int, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		for deadline := time.Now().Add(patience); ; { // again, where a busy machine was too slow for the times of a request
			answer, body, err := fetch(client, r)
			if err == nil {
				return answer.StatusCode, []byte(body)
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	if status, body := get(at+"heap", ""); status != 200 || !bytes.HasPrefix(body, []byte{0x1f, 0x8b}) {
		t.Errorf("heap: %d, %d bytes", status, len(body))
	}
	if status, body := get(at+"trace?seconds=0.3", ""); status != 200 || len(body) == 0 { // longer than requests may take
		t.Errorf("trace: %d, %d bytes", status, len(body))
	}
	if status, body := get(at+"heap", "evil.example"); status != 403 {
		t.Errorf("foreign host: %d %q", status, body)
	}
	for _, elsewhere := range []string{at + "cmdline", s.URL() + "debug/pprof/", s.URL() + "debug/pprof/heap"} {
		if status, _ := get(elsewhere, ""); status != 404 {
			t.Errorf("%s: %d", elsewhere, status)
		}
	}
}

// The end of the context is the end of the server.
func TestContextEndsTheServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, Config{Listen: "127.0.0.1:0", Hub: NewHub(nil)})
	if err != nil {
		t.Fatal(err)
	}
	half, err := net.Dial("tcp", s.conns.Addr().String()) // a request that never becomes whole
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	if _, err := io.WriteString(half, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	for s.conns.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-s.stop
	s.Close() // the second one: it waits for the first all the same
	if n := s.conns.count(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	if c, err := net.Dial("tcp", s.conns.Addr().String()); err == nil {
		c.Close()
		t.Error("it listens still")
	}
	again, ended := context.WithCancel(context.Background())
	ended()
	if s, err = Start(again, Config{Listen: "127.0.0.1:0", Hub: NewHub(nil)}); err != nil {
		t.Fatal(err)
	}
	<-s.stop
	s.Close()
}

// A handler that panics, and a listener that fails, are logged and counted, and end nothing.
func TestFaultsEndNothing(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(fmt.Errorf("planted")) })
	})
	for range 3 {
		if got := ended(t, s.dial(t, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")); got != "" {
			t.Errorf("answer %q", got)
		}
	}
	eventually(t, "panics are counted and logged", func() bool {
		return s.Stats().Faults == 3 && strings.Count(s.log.String(), "planted") == 3
	})
	if _, body := s.get(t, "/healthz"); body != "ok\n" {
		t.Errorf("healthz %q", body)
	}
	s.conns.Listener.Close()
	eventually(t, "the fault is counted and logged", func() bool {
		return s.Stats().Faults == 4 && strings.Contains(s.log.String(), "training continues")
	})
}

// Close cuts a request off that takes too long, and returns when it has returned: what its answer reads may be gone
// then.
func TestCloseWaitsForRequests(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	var over atomic.Bool
	s := start(t, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			<-r.Context().Done()
			time.Sleep(20 * time.Millisecond)
			over.Store(true)
		})
	})
	s.dial(t, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-begun
	s.Close()
	if !over.Load() {
		t.Error("a request is still being answered")
	}
	s.Close()
}
