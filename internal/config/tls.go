package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/spf13/pflag"

	"gradbus/internal/certificate"
)

// TLS are the flags of encrypted connections: --tls-cert and --tls-key are what this process shows, as a server and to
// servers that ask; --tls-ca vouches for the others. Where none is given connections are plain, but to addresses that
// begin with tls://.
type TLS struct {
	Cert, Key, CA string

	loaded *loadedTLS // what Load has read; nil before
}

// loadedTLS is what the files of the flags held when they were last read.
type loadedTLS struct {
	pair  *certificate.File // nil: none is shown
	roots *x509.CertPool    // nil: the system's
	serve atomic.Pointer[tls.Config]
}

// Add adds the flags. cert and ca are the help of --tls-cert and --tls-ca.
func (t *TLS) Add(set *pflag.FlagSet, cert, ca string) {
	set.StringVar(&t.Cert, "tls-cert", "", "`PATH`: "+cert)
	set.StringVar(&t.Key, "tls-key", "", "`PATH`: private key (PEM) of --tls-cert")
	set.StringVar(&t.CA, "tls-ca", "", "`PATH`: "+ca)
}

// Args are the flags for another process.
func (t *TLS) Args() []string {
	return GivenPairs("--tls-cert", t.Cert, "--tls-key", t.Key, "--tls-ca", t.CA)
}

// Load gives how to serve, nil for plain connections, and how to dial, nil where no flag was given. Reload changes how
// connections are served from then on.
func (t *TLS) Load(log *slog.Logger) (serve, dial *tls.Config, err error) {
	if (t.Cert == "") != (t.Key == "") {
		return nil, nil, errors.New("tls-cert and tls-key: want both or neither")
	}
	roots, err := RootCAs(t.CA)
	if err != nil {
		return nil, nil, err
	}
	t.loaded = &loadedTLS{}
	if t.Cert != "" {
		if t.loaded.pair, err = certificate.Load("tls", t.Cert, t.Key, log); err != nil {
			return nil, nil, err
		}
	}
	dial = t.loaded.trust(roots)
	if t.loaded.pair == nil {
		return nil, dial, nil
	}
	serve = t.loaded.serve.Load().Clone()
	serve.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.loaded.serve.Load(), nil }
	return serve, dial, nil
}

// Reload reads the files of the flags again, and names the flags whose files say something else. It gives how to dial
// from now on. After an error everything stays as it was.
func (t *TLS) Reload() (dial *tls.Config, changed []string, err error) {
	l := t.loaded
	if (t.Cert == "") != (l.pair == nil) || (t.Key == "") != (l.pair == nil) {
		return nil, nil, errors.New("tls-cert, tls-key: TLS begins and ends with a restart alone")
	}
	roots, err := RootCAs(t.CA)
	if err != nil {
		return nil, nil, err
	}
	if (roots == nil) != (l.roots == nil) { // a lost line of the settings must not open the server
		return nil, nil, errors.New("tls-ca: it begins and ends with a restart alone")
	}
	if l.pair != nil {
		renewed, err := l.pair.Reload(t.Cert, t.Key)
		if err != nil {
			return nil, nil, err
		}
		if renewed {
			changed = append(changed, "tls-cert")
		}
	}
	if roots != nil && !roots.RootCAs.Equal(l.roots) {
		changed = append(changed, "tls-ca")
	}
	return l.trust(roots), changed, nil
}

// trust takes the authorities whose certificates count from now on, and gives how to dial.
func (l *loadedTLS) trust(roots *tls.Config) (dial *tls.Config) {
	l.roots = nil
	if roots != nil {
		l.roots = roots.RootCAs
	}
	if l.pair == nil {
		return roots
	}
	serve := &tls.Config{MinVersion: tls.VersionTLS12}
	dial = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: l.roots}
	l.pair.Serve(serve)
	l.pair.Show(dial)
	if roots != nil {
		serve.ClientCAs, serve.ClientAuth = l.roots, tls.RequireAndVerifyClientCert
	}
	l.serve.Store(serve)
	return dial
}
