package fabric

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"gradbus/internal/regular"
)

// credsBytesMax bounds a file of NATS credentials: a signed token and a key.
const credsBytesMax = 1 << 20

// userCredentials reads a file of credentials for each connection, as nats.UserCredentials does, without waiting for
// what is no file.
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
	// errUnauthorized: the server does not know the token, or asks for one.
	errUnauthorized = errors.New("authorization violation")
	// errNotSecure: TLS was asked for, and the server has none.
	errNotSecure = errors.New("the server has no secure connection")
)

// serverInfo is what is read of a server's INFO.
type serverInfo struct {
	PayloadMax   int    `json:"max_payload"`
	TLSRequired  bool   `json:"tls_required"`
	TLSAvailable bool   `json:"tls_available"`
	LameDuck     bool   `json:"ldm"`
	Nonce        string `json:"nonce"`
}

// connectOptions is what a client says of itself.
type connectOptions struct {
	Verbose      bool   `json:"verbose"`
	Pedantic     bool   `json:"pedantic"`
	TLSRequired  bool   `json:"tls_required"`
	Token        string `json:"auth_token,omitempty"`
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

// wireSession is one connection that the server has let in.
type wireSession struct {
	conn    net.Conn
	reader  *wireReader
	info    serverInfo
	witness *tlsWitness
}

// show says who the client is: by a file of credentials, by the address, or by the token, the first that is there.
func (o *connectOptions) show(config *Config, at *url.URL, nonce string) error {
	switch {
	case at == nil:
		o.Token = config.Server.token
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
	}
	return nil
}

// greet takes a fresh connection to an address, nil in process, through INFO, TLS and CONNECT, until the server has
// answered a PING. The connection is the caller's to close, also where greet fails.
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
		// The server may have said why before it hung up.
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

// awaitPong reads until the server has taken in what was sent.
func (s *wireSession) awaitPong(e *wireEvent) error {
	for e.op = opNone; e.op != opPong; {
		if err := s.reader.next(e); err != nil {
			return err
		}
		e.lease.Release() // nothing is subscribed to; nil but for a strange server
		if err := s.told(e); err != nil {
			return err
		}
	}
	return nil
}

// told takes in INFO and -ERR.
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

// secure upgrades the connection where either side wants it. In process there is nothing to protect.
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
	if s.reader.lo != s.reader.hi { // injected on the way, to be read as if it had been sent under TLS
		return false, fmt.Errorf("%w: bytes between INFO and TLS", errProtocol)
	}
	conn, err := s.witness.handshake(ctx, s.conn, roots, at.Hostname())
	if err != nil {
		return false, err
	}
	s.conn, s.reader.source = conn, conn
	return true, nil
}

// serverError is what a server reports with -ERR.
func serverError(text []byte) error {
	said := oneLine(text)
	lower := strings.ToLower(said)
	if strings.HasPrefix(lower, "authorization violation") || strings.HasPrefix(lower, "user authentication") ||
		strings.HasPrefix(lower, "account authentication") {
		return fmt.Errorf("%w: the server says %q", errUnauthorized, said)
	}
	return fmt.Errorf("the server says %q", said)
}
