package fabric

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
)

// A server that asks for certificates lets in whom its authority vouches for. Whatever is wrong between two sides is
// one error that says what would be right.
func TestCertificates(t *testing.T) { overBoth(t, testCertificates) }

func testCertificates(t *testing.T) {
	ours, foreign := certtest.NewAuthority(t), certtest.NewAuthority(t)
	good := ours.Issue(t, "127.0.0.1").TLS
	start := func(pair tls.Certificate, mutual bool) *Server {
		c := &tls.Config{Certificates: []tls.Certificate{pair}}
		if mutual {
			c.ClientCAs, c.ClientAuth = ours.Pool, tls.RequireAndVerifyClientCert
		}
		return startServer(t, ServerConfig{TLS: c})
	}
	knows := &tls.Config{RootCAs: ours.Pool}
	shows := func(pair certtest.Pair) *tls.Config {
		return &tls.Config{RootCAs: ours.Pool, Certificates: []tls.Certificate{pair.TLS}}
	}
	one, both, plain := start(good, false), start(good, true), startServer(t, ServerConfig{})
	old := start(ours.IssueUntil(t, time.Now().Add(-time.Minute), "127.0.0.1").TLS, false)
	elsewhere := start(ours.Issue(t, "10.0.0.1").TLS, false)
	member := ours.Issue(t, "t0")

	conn := dial(t, Config{URL: both.URL(), TLS: shows(member)})
	within := dial(t, Config{Server: both, URL: both.URL(), TLS: knows}) // of which a connection within needs neither
	roundTrip(t, conn, within)
	control := dialControl(t, Config{Server: both, URL: both.URL(), TLS: knows, CredsFile: "none"})
	must(t, control.Flush(t.Context()))
	roundTrip(t, conn, dial(t, Config{URL: strings.Replace(both.URL(), "tls:", "nats:", 1), TLS: shows(member)}))
	for name, c := range map[string]struct {
		server *Server
		url    string // in place of the server's scheme
		tls    *tls.Config
		want   []string
	}{
		"unknown authority": {one, "tls:", nil, []string{"--tls-ca"}},
		"plain client":      {one, "nats:", nil, []string{"--tls-ca"}},
		"other authority": {one, "tls:", &tls.Config{RootCAs: foreign.Pool},
			[]string{"--tls-ca", "unknown authority"}},
		"expired":               {old, "tls:", knows, []string{"not good at this time", "expired"}},
		"other host":            {elsewhere, "tls:", knows, []string{"for another host", "10.0.0.1"}},
		"plain server":          {plain, "nats:", knows, []string{"it speaks no TLS", "--tls-cert"}},
		"plain server, tls://":  {plain, "tls:", nil, []string{"it speaks no TLS", "nats://"}},
		"no client certificate": {both, "tls:", knows, []string{"none was given", "--tls-cert and --tls-key"}},
		"foreign certificate": {both, "tls:", shows(foreign.Issue(t, "t0")),
			[]string{"turns the certificate down", "--tls-ca"}},
		"old client certificate": {both, "tls:", shows(ours.IssueUntil(t, time.Now().Add(-time.Minute), "t0")),
			[]string{"turns the certificate down"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, address, _ := strings.Cut(c.server.URL(), ":")
			_, err := tryDial(t, Config{URL: c.url + address, TLS: c.tls})
			wantError(t, err, ErrRefused, append(c.want, strings.TrimPrefix(address, "//"))...)
		})
	}
}
