package fabric

import (
	"crypto/tls"
	"errors"

	"github.com/nats-io/nats.go"
)

// isTLS tells whether a handshake ended over certificates, and not because no server was there.
func isTLS(err error) bool {
	var unverified *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	return errors.As(err, &unverified) || errors.As(err, &alert) || errors.As(err, &record) ||
		errors.Is(err, errNotSecure) || errors.Is(err, nats.ErrSecureConnWanted) || errors.Is(err, nats.ErrSecureConnRequired)
}
