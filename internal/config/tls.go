package config

import (
	"crypto/tls"
	"errors"
	"log/slog"

	"github.com/spf13/pflag"

	"gradbus/internal/certificate"
)

// TLS are the flags of encrypted connections: --tls-cert and --tls-key are what this process shows, as a server and to
// servers that ask; --tls-ca vouches for the others. Where none is given connections are plain, but to addresses that
// begin with tls://.
type TLS struct{ Cert, Key, CA string }

// Add adds the flags. ask says what a server does with --tls-ca.
func (t *TLS) Add(set *pflag.FlagSet, shown, ask string) {
	set.StringVar(&t.Cert, "tls-cert", "", "`file` with the certificate, in PEM, that this "+shown+
		"; it is read again when it changes")
	set.StringVar(&t.Key, "tls-key", "", "`file` with the key of --tls-cert, in PEM")
	set.StringVar(&t.CA, "tls-ca", "", "`file` with the certificates that vouch for "+ask)
}

// Args are the flags for another process.
func (t *TLS) Args() []string {
	return GivenPairs("--tls-cert", t.Cert, "--tls-key", t.Key, "--tls-ca", t.CA)
}

// Load gives how to serve, nil for plain connections, and how to dial, nil where no flag was given.
func (t *TLS) Load(log *slog.Logger) (serve, dial *tls.Config, err error) {
	if (t.Cert == "") != (t.Key == "") {
		return nil, nil, errors.New("tls-cert and tls-key: want both or neither")
	}
	roots, err := RootCAs(t.CA)
	if err != nil {
		return nil, nil, err
	}
	if t.Cert == "" {
		return nil, roots, nil
	}
	pair, err := certificate.Load("tls", t.Cert, t.Key, log)
	if err != nil {
		return nil, nil, err
	}
	serve, dial = &tls.Config{MinVersion: tls.VersionTLS12}, &tls.Config{MinVersion: tls.VersionTLS12}
	pair.Serve(serve)
	pair.Show(dial)
	if roots != nil {
		dial.RootCAs, serve.ClientCAs, serve.ClientAuth = roots.RootCAs, roots.RootCAs, tls.RequireAndVerifyClientCert
	}
	return serve, dial, nil
}
