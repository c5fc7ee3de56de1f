package fabric

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"gradbus/internal/regular"
)

// credsBytesMax bounds a file of NATS credentials: a signed token and a key.
const credsBytesMax = 1 << 20

// userCredentials reads a file of credentials for each connection, as nats.UserCredentials does, without blocking on
// special files.
func userCredentials(path string) nats.Option {
	read := func() (o nats.Options, err error) {
		text, err := regular.Read(path, credsBytesMax)
		if err == nil {
			err = nats.UserCredentialBytes(text)(&o)
		}
		return o, err
	}
	return nats.UserJWT(func() (string, error) {
		o, err := read()
		if err != nil {
			return "", err
		}
		return o.UserJWT()
	}, func(nonce []byte) ([]byte, error) {
		o, err := read()
		if err != nil {
			return nil, err
		}
		return o.SignatureCB(nonce)
	})
}

var (
	// errUnauthorized reports that the server requires a token, or another one.
	errUnauthorized = errors.New("authorization violation")
	// errNotSecure reports that TLS was requested and the server has none.
	errNotSecure = errors.New("the server has no secure connection")
)

// serverInfo is the part of a server's INFO that is used.
type serverInfo struct {
	PayloadMax   int    `json:"max_payload"`
	TLSRequired  bool   `json:"tls_required"`
	TLSAvailable bool   `json:"tls_available"`
	LameDuck     bool   `json:"ldm"`
	Nonce        string `json:"nonce"`
}

// connectOptions is the CONNECT message of a client.
type connectOptions struct {
	Verbose      bool   `json:"verbose"`
	Pedantic     bool   `json:"pedantic"`
	TLSRequired  bool   `json:"tls_required"`
	Token        string `json:"auth_token,omitempty"`
	Nkey         string `json:"nkey,omitempty"`
	JWT          string `json:"jwt,omitempty"`
	Signature    string `json:"sig,omitempty"`
	User         string `json:"user,omitempty"`
	Password     string `json:"pass,omitempty"`
	Name         string `json:"name"`
	Lang         string `json:"lang"`
	Version      string `json:"version"`
	Protocol     int    `json:"protocol"`
	Echo         bool   `json:"echo"`
	Headers      bool   `json:"headers"`
	NoResponders bool   `json:"no_responders"`
}

// wireSession is one authenticated connection.
type wireSession struct {
	conn    net.Conn
	reader  *wireReader
	info    serverInfo
	witness *tlsWitness
}

// sign authenticates the client by a key: with its public half and a signature of the server's nonce.
func (o *connectOptions) sign(key *Key, nonce string) error {
	signature, err := key.pair.Sign([]byte(nonce))
	o.Nkey, o.Signature = key.public, base64.RawURLEncoding.EncodeToString(signature)
	return err
}

// show authenticates the client by the server's own key in process, by a file of NATS credentials, by the address, or by
// the token and the key: the first that is set.
func (o *connectOptions) show(config *Config, at *url.URL, nonce string) error {
	switch {
	case at == nil:
		if config.Server.own != nil {
			return o.sign(config.Server.own, nonce)
		}
	case config.CredsFile != "":
		var from nats.Options
		if err := userCredentials(config.CredsFile)(&from); err != nil {
			return err
		}
		token, err := from.UserJWT()
		if err != nil {
			return err
		}
		signature, err := from.SignatureCB([]byte(nonce))
		if err != nil {
			return err
		}
		o.JWT, o.Signature = token, base64.RawURLEncoding.EncodeToString(signature)
	case at.User != nil:
		if password, ok := at.User.Password(); ok {
			o.User, o.Password = at.User.Username(), password
		} else {
			o.Token = at.User.Username()
		}
	default:
		o.Token, _ = config.latest()
		if config.Key != nil {
			return o.sign(config.Key, nonce)
		}
	}
	return nil
}

// greet takes a new connection to an address, nil in process, through INFO, TLS and CONNECT, until the server has
// answered a PING. The caller closes the connection, also if greet fails.
func greet(ctx context.Context, raw net.Conn, at *url.URL, config *Config, witness *tlsWitness) (*wireSession, error) {
	if err := raw.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return nil, err
	}
	s := &wireSession{conn: raw, reader: newWireReader(raw, config.Buffers), witness: witness}
	var e wireEvent
	if err := s.reader.next(&e); err != nil {
		return nil, err
	}
	if err := s.told(&e); err != nil {
		return nil, err
	}
	if e.op != opInfo {
		return nil, fmt.Errorf("%w: no INFO", errProtocol)
	}
	secure, err := s.secure(ctx, config, at)
	if err != nil {
		return nil, err
	}
	options := connectOptions{TLSRequired: secure, Name: config.Name, Lang: "go", Version: "gradbus",
		Protocol: 1, Echo: true}
	if err := options.show(config, at, s.info.Nonce); err != nil {
		return nil, err
	}
	text, err := json.Marshal(&options)
	if err != nil {
		return nil, err
	}
	if _, err := s.conn.Write([]byte("CONNECT " + string(text) + "\r\nPING\r\n")); err != nil {
		// The server may have sent a reason before it closed the connection.
		if said := s.awaitPong(&e); said != nil {
			return nil, said
		}
		return nil, err
	}
	if err := s.awaitPong(&e); err != nil {
		return nil, err
	}
	return s, raw.SetDeadline(time.Time{})
}

// awaitPong reads until the server has answered a PING.
func (s *wireSession) awaitPong(e *wireEvent) error {
	for e.op = opNone; e.op != opPong; {
		if err := s.reader.next(e); err != nil {
			return err
		}
		e.lease.Release() // nothing is subscribed to; nil except from an odd server
		if err := s.told(e); err != nil {
			return err
		}
	}
	return nil
}

// told handles INFO and -ERR.
func (s *wireSession) told(e *wireEvent) error {
	switch e.op {
	case opErr:
		return serverError(e.text)
	case opInfo:
		var info serverInfo
		if err := json.Unmarshal(e.text, &info); err != nil {
			return fmt.Errorf("%w: INFO: %w", errProtocol, err)
		}
		if info.PayloadMax > 0 {
			s.info.PayloadMax = min(info.PayloadMax, payloadBytesMaxMax)
			s.reader.payloadMax = s.info.PayloadMax
		}
		info.PayloadMax = s.info.PayloadMax
		s.info = info
	}
	return nil
}

// secure upgrades the connection if either side requires it. In process there is nothing to protect.
func (s *wireSession) secure(ctx context.Context, config *Config, at *url.URL) (bool, error) {
	if at == nil {
		return false, nil
	}
	_, roots := config.latest()
	wanted := roots != nil || at.Scheme == "tls"
	if wanted && !s.info.TLSRequired && !s.info.TLSAvailable {
		return false, errNotSecure
	}
	if !wanted && !s.info.TLSRequired {
		return false, nil
	}
	if s.reader.lo != s.reader.hi { // bytes injected before TLS must not be read as if they had been sent under it
		return false, fmt.Errorf("%w: bytes between INFO and TLS", errProtocol)
	}
	conn, err := s.witness.handshake(ctx, s.conn, roots, at.Hostname())
	if err != nil {
		return false, err
	}
	s.conn, s.reader.source = conn, conn
	return true, nil
}

// serverError returns the error that a server reports with -ERR.
func serverError(text []byte) error {
	said := oneLine(text)
	lower := strings.ToLower(said)
	if strings.HasPrefix(lower, "authorization violation") || strings.HasPrefix(lower, "user authentication") ||
		strings.HasPrefix(lower, "account authentication") {
		return fmt.Errorf("%w: the server says %q", errUnauthorized, said)
	}
	return fmt.Errorf("the server says %q", said)
}

// tlsWitness records whether a server asked for this side's certificate, and whether one was shown. From TLS 1.3 on the
// server checks it after the handshake, and all that the client may see of a refusal is a closed connection.
type tlsWitness struct{ asked, shown atomic.Bool }

// options returns the TLS configuration of one connection. It does not change from.
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
			shown = &own[0] // even if the server names other authorities: its refusal says what it wants
		}
		w.asked.Store(true)
		w.shown.Store(shown != nil && len(shown.Certificate) > 0)
		return shown, err
	}
	return c
}

// explain returns what is wrong with certificates and what would be valid; nil if the error has another cause.
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

// isCut reports whether the other side has closed the connection.
func isCut(err error) bool {
	return isAlert(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAlert reports whether the other side ended TLS with an alert.
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
