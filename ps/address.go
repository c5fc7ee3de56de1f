package ps

import (
	"cmp"
	"net"
	"net/url"
)

// advertised is where trainers find our data server: on the server that carries control, or at an address.
func (s *Server) advertised() string {
	if s.embedsControl() {
		return ""
	}
	return s.announced(s.control.LocalHost())
}

// announced is where others find our data server; local is the address by which we reach them.
func (s *Server) announced(local string) string {
	u, err := url.Parse(s.nats.URL())
	if err != nil {
		return s.nats.URL() // which we made ourselves
	}
	if s.config.Advertise != "" {
		u.Host = s.config.Advertise
		return u.String()
	}
	// Where all addresses are listened at, the one by which we reach the control server is as good a guess as any.
	if ip := net.ParseIP(s.config.Host); ip != nil && ip.IsUnspecified() {
		if local = cmp.Or(local, outgoingHost()); local != "" {
			u.Host = net.JoinHostPort(local, u.Port())
		}
	}
	return u.String()
}

// outgoingHost is the address by which this machine reaches others, by its routes; empty where it reaches none.
func outgoingHost() string {
	for _, at := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // for documents, so the default route leads there
		conn, err := net.Dial("udp", at) // sends nothing
		if err != nil {
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		conn.Close()
		if err == nil {
			return host
		}
	}
	return ""
}
