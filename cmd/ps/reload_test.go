package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
)

// served is a ps that runs in this process.
type served struct {
	t        *testing.T
	log, out testkit.Text
	end      context.CancelFunc
	ended    chan error
}

// start runs the command until it says that it is ready.
func (s *served) start(arguments ...string) {
	s.t.Helper()
	ctx, end := context.WithCancel(s.t.Context())
	ready := make(chan struct{})
	s.end, s.ended = end, make(chan error, 1)
	c := command()
	c.SetArgs(append(arguments, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--gpu", "off", "--log-format",
		"text"))
	c.SetErr(&s.log)
	c.SetOut(&untilReady{&s.out, sync.OnceFunc(func() { close(ready) })})
	go func() { s.ended <- c.ExecuteContext(ctx) }()
	select {
	case <-ready:
	case err := <-s.ended:
		s.t.Fatalf("it does not start: %v", err)
	}
}

// stop ends it, and waits.
func (s *served) stop() {
	s.end()
	if err := <-s.ended; err != nil {
		s.t.Error(err)
	}
}

// hangup has it reload, and wants these words in the log of that.
func (s *served) hangup(wants string) {
	s.t.Helper()
	before := len(s.log.String())
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	said := func() string { return s.log.String()[before:] }
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said(), `"configuration reloaded"`) &&
		!strings.Contains(said(), `"configuration not reloaded"`); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("it does not reload: %s", s.log.String())
		}
	}
	if !strings.Contains(said(), wants) {
		s.t.Errorf("the log says %s, want %s", said(), wants)
	}
}

// word is the one that it printed behind others.
func (s *served) word(before string) string {
	_, text, _ := strings.Cut(s.out.String(), before)
	return strings.Fields(text + " ?")[0]
}

// dial connects with a token of trainers.
func (s *served) dial(token string) (*fabric.Conn, error) {
	return fabric.Dial(s.t.Context(), fabric.Config{URL: s.word("is ready at "), Name: "j/t0", Token: token,
		Log: slog.New(slog.DiscardHandler)})
}

// pageLets wants an answer of the page to a token.
func (s *served) pageLets(token string, want int) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), "GET", s.word("with all jobs: ")+"api/v1/status", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != want {
		s.t.Errorf("token %s: status %d, want %d", token, answer.StatusCode, want)
	}
}

// A hangup has a ps read its file and its tokens again. Connections that there are stay. What is wrong changes nothing,
// and is said.
func TestHangupReloads(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string { return testkit.File(t, folder, name, []byte(text+"\n")) }
	job, page := file("job", "first-token-0123456"), file("page", "first-page-01234567")
	settings := "token-file: " + job + "\nhttp-token-file: " + page + "\nshards: 1\nlog-level: info\n"
	s := &served{t: t}
	s.start("--config", file("ps.yaml", settings))
	defer s.stop()
	conn, err := s.dial("first-token-0123456")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	jobToken := func(token string) {
		t.Helper()
		conn, err := s.dial(token)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}

	s.hangup("changed=[]")
	file("job", "second-token-012345")
	file("page", "second-page-0123456")
	s.hangup(`changed="[token-file http-token-file]"`)
	if err := conn.Flush(t.Context()); err != nil {
		t.Errorf("the connection that was there: %v", err)
	}
	if _, err := s.dial("first-token-0123456"); !errors.Is(err, fabric.ErrRefused) {
		t.Errorf("with the token before: %v", err)
	}
	jobToken("second-token-012345")
	s.pageLets("first-page-01234567", http.StatusUnauthorized)
	s.pageLets("second-page-0123456", http.StatusOK)

	file("job", "short")
	s.hangup(`part of the configuration not reloaded" err="invalid configuration: token: it has 5 characters`)
	jobToken("second-token-012345")
	file("job", "second-token-012345")
	file("ps.yaml", settings+"nonsense: 1\n")
	s.hangup(`unknown setting \"nonsense\"`)
	file("third", "third-page-01234567")
	file("ps.yaml", strings.NewReplacer("shards: 1", "shards: 2", page, folder+"/third").Replace(settings))
	s.hangup("settings=[shards]")
	s.pageLets("third-page-01234567", http.StatusOK)
	s.hangup("changed=[]")
}

// A hangup changes whose certificates a ps takes.
func TestHangupReloadsAuthorities(t *testing.T) {
	folder := t.TempDir()
	first, second := certtest.NewAuthority(t), certtest.NewAuthority(t)
	trust := func(authority *certtest.Authority) string {
		t.Helper()
		data, err := os.ReadFile(authority.File)
		if err != nil {
			t.Fatal(err)
		}
		return testkit.File(t, folder, "ca.pem", data)
	}
	own := first.Issue(t, "127.0.0.1")
	s := &served{t: t}
	s.start("--tls-cert", own.CertFile, "--tls-key", own.KeyFile, "--tls-ca", trust(first))
	defer s.stop()
	wants := func(authority *certtest.Authority, lets bool) {
		t.Helper()
		conn, err := fabric.Dial(t.Context(), fabric.Config{URL: s.word("is ready at "), Name: "j/t0",
			TLS: &tls.Config{RootCAs: first.Pool, Certificates: []tls.Certificate{authority.Issue(t, "t0").TLS}},
			Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != lets {
			t.Errorf("connected: %v, want %v; %v", err == nil, lets, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	wants(first, true)
	wants(second, false)
	trust(second)
	s.hangup("changed=[tls-ca]")
	wants(first, false)
	wants(second, true)
}
