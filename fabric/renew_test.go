package fabric

import (
	"crypto/tls"
	"sync/atomic"
	"testing"

	"gradbus/internal/certificate/certtest"
)

// A server asks who comes for its latest tokens, also after a restart, and leaves who is there. A connection that is
// made again shows its latest token.
func TestTokensChange(t *testing.T) { overBoth(t, testTokensChange) }

func testTokensChange(t *testing.T) {
	const first, second = "first-token-0123456", "second-token-012345"
	const peers, others = "first-peers-0123456", "second-peers-012345"
	server := startServer(t, ServerConfig{Token: first,
		Guard: &Guard{PeerToken: peers, Publish: []string{All}, Deny: []string{AllFrom("coordinator")}}})
	var shown atomic.Value
	shown.Store(first)
	states := make(chan State, 8)
	var lost atomic.Bool
	conn := dial(t, Config{URL: server.URL(), Name: "j/t0",
		Renew:   func() (string, *tls.Config) { return shown.Load().(string), nil },
		OnState: func(s State) { lost.Store(lost.Load() || s == Lost); states <- s }})
	peer := dial(t, Config{URL: server.URL(), Name: "p", Token: peers})
	wants := func() {
		t.Helper()
		for _, old := range []string{first, peers} {
			_, err := tryDial(t, Config{URL: server.URL(), Name: "j/t1", Token: old, Log: discard()})
			wantError(t, err, ErrRefused, "wrong token")
		}
		dial(t, Config{URL: server.URL(), Name: "j/t1", Token: second}).Close()
		dial(t, Config{URL: server.URL(), Name: "p", Token: others}).Close()
	}
	server.SetTokens(second, others)
	wants()
	must(t, conn.Flush(t.Context()))
	must(t, peer.Flush(t.Context()))
	peer.Close()
	if lost.Load() {
		t.Error("the connection that was there is cut")
	}
	shown.Store(second)
	server.Stop()
	must(t, server.Start())
	for state := range states {
		if state == Back {
			break
		}
	}
	must(t, conn.Flush(t.Context()))
	wants()
}

// A connection that is made again trusts the latest authorities.
func TestAuthoritiesChange(t *testing.T) { overBoth(t, testAuthoritiesChange) }

func testAuthoritiesChange(t *testing.T) {
	first, second := certtest.NewAuthority(t), certtest.NewAuthority(t)
	var pair atomic.Pointer[tls.Certificate]
	var dials atomic.Pointer[tls.Config]
	serve := func(from *certtest.Authority) { issued := from.Issue(t, "127.0.0.1").TLS; pair.Store(&issued) }
	serve(first)
	dials.Store(&tls.Config{RootCAs: first.Pool})
	server := startServer(t, ServerConfig{TLS: &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Load(), nil }}})
	states := make(chan State, 8)
	conn := dial(t, Config{URL: server.URL(), Name: "j/t0", TLS: dials.Load(), Log: discard(),
		Renew: func() (string, *tls.Config) { return "", dials.Load() }, OnState: func(s State) { states <- s }})
	serve(second)
	dials.Store(&tls.Config{RootCAs: second.Pool})
	server.Stop()
	must(t, server.Start())
	for state := range states {
		if state == Back {
			break
		}
	}
	must(t, conn.Flush(t.Context()))
}
