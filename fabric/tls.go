package fabric

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/nats-io/nats.go"
)

// tlsWitness notes whether a server asked for this side's certificate, and whether one was shown. From TLS 1.3 on a
// server looks at it after the handshake, and all that the client learns of a refusal may be that the connection is
// cut.
type tlsWitness struct{ asked, shown atomic.Bool }

// options are those of one connection. What they are made of stays as it is.
func (w *tlsWitness) options(from *tls.Config) *tls.Config {
	c := &tls.Config{}
	if from != nil {
		c = from.Clone()
	}
	c.MinVersion = cmp.Or(c.MinVersion, tls.VersionTLS12)
	own, show := slices.Clone(c.Certificates), c.GetClientCertificate
	c.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		shown, err := &tls.Certificate{}, error(nil)
		if show != nil {
			shown, err = show(request)
		} else if len(own) > 0 {
			shown = &own[0] // also where the server names other authorities: it then says what it wants
		}
		w.asked.Store(true)
		w.shown.Store(shown != nil && len(shown.Certificate) > 0)
		return shown, err
	}
	return c
}

// explain says what is wrong with certificates and what would be right; nil where something else is.
func (w *tlsWitness) explain(err error) error {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errNotSecure) || errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("it speaks no TLS: start it with --tls-cert and --tls-key, or dial nats:// without --tls-ca and "+
			"--tls-cert: %w", err)
	case errors.As(err, &authority):
		return fmt.Errorf("its certificate is signed by an unknown authority: name its file with --tls-ca: %w", err)
	case errors.As(err, &host):
		return fmt.Errorf("its certificate is for another host: dial a name that it has, or have one made for this one: %w",
			err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate is not good at this time: replace it there, or set the clock: %w", err)
	case w.asked.Load() && isCut(err) && !w.shown.Load():
		return fmt.Errorf("it asks for a certificate and none was given: show one with --tls-cert and --tls-key: %w", err)
	case w.asked.Load() && isCut(err):
		return fmt.Errorf("it turns the certificate down that it was shown: want one (--tls-cert, --tls-key) that its "+
			"--tls-ca vouches for and whose time is not over: %w", err)
	case errors.As(err, &unverified), errors.As(err, &record), isAlert(err), errors.Is(err, nats.ErrSecureConnRequired):
		return err
	}
	return nil
}

// isCut tells whether the other side has hung up, with or without a word.
func isCut(err error) bool {
	return isAlert(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAlert tells whether the other side ended TLS, and said why.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// handshake begins TLS on a connection.
func (w *tlsWitness) handshake(ctx context.Context, plain net.Conn, from *tls.Config, host string) (net.Conn, error) {
	options := w.options(from)
	options.ServerName = cmp.Or(options.ServerName, host)
	conn := tls.Client(plain, options)
	return conn, conn.HandshakeContext(ctx)
}
