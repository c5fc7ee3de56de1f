package ps

import (
	"crypto/tls"
	"errors"

	"gradbus/fabric"
)

// Reload takes tokens and TLS from a configuration, for connections that are made from now on, in either direction.
// Existing ones stay. TLS of connections to this ps is what it was given at the start. After an error
// everything stays.
func (s *Server) Reload(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	was := s.trust.Load()
	if (c.Token == "") != (was.Token == "") || (c.ControlToken == "") != (was.ControlToken == "") {
		return errors.New("token, control_token: they begin and end with a restart alone")
	}
	s.trust.Store(&c)
	s.nats.SetTokens(c.Token, c.ControlToken)
	return nil
}

// renewing has a connection show and trust what it is told to by now whenever it is made.
func renewing(c fabric.Config, latest func() (token string, tls *tls.Config)) fabric.Config {
	c.Token, c.TLS = latest()
	c.Renew = latest
	return c
}
