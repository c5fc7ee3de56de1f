package ops

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"gradbus/internal/certificate"
)

// guard refuses what no honest client of this server sends.
//
// A page that the user's browser shows elsewhere can have it send requests here: under a name of its own that it lets
// point at this machine, which the list of hosts refuses, or across origins, which browsers of today say in
// Sec-Fetch-Site. Neither could read an answer otherwise, but streams would be held open and processors kept busy.
type guard struct {
	hosts []string // lower case, without port
	cross *http.CrossOriginProtection
	// secure vouches for its names; nil where all is plain.
	secure *certificate.File
}

func newGuard(c Config, secure *certificate.File) *guard {
	g := &guard{secure: secure, hosts: []string{"localhost", "127.0.0.1", "::1"}, cross: http.NewCrossOriginProtection()}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil {
		if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
			g.hosts = append(g.hosts, hostName(host))
		}
	}
	for _, h := range append(slices.Clip(c.Hosts), c.Machine...) {
		g.hosts = append(g.hosts, hostName(h))
	}
	return g
}

// hostName is a Host header or flag without port, brackets and final dot, in lower case; empty where it is none.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip := net.ParseIP(host); ip != nil {
		return ip.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// answersTo reports whether a request's host is one of ours: a listed one, or the very address that its connection came
// to. An address cannot be made to point elsewhere, as a name can.
func (g *guard) answersTo(r *http.Request) bool {
	name := hostName(r.Host)
	if name == "" {
		return false
	}
	if slices.Contains(g.hosts, name) {
		return true
	}
	if g.secure != nil && slices.Contains(certified(g.secure.Latest()), name) {
		return true
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return local != nil && local.IP.String() == name
}

// certified are the names that a certificate vouches for, without those with a *, which may be anybody's.
func certified(pair *tls.Certificate) []string {
	var names []string
	for _, name := range pair.Leaf.DNSNames {
		if !strings.Contains(name, "*") {
			names = append(names, hostName(name))
		}
	}
	return names
}

// policy is the Content-Security-Policy of all answers: nothing but files of this server, and no script, style or form
// within a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
	"connect-src 'self'; manifest-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// headers go with every answer.
func headers(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store")
}

// refusal is an answer to a request that is not served.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// check says why a request is refused; nil lets it pass. methods are those of its path; anyHost says that it may name
// whatever host it likes, since a page of another site would learn nothing by it.
func (g *guard) check(r *http.Request, methods []string, anyHost bool) *refusal {
	switch {
	case !anyHost && !g.answersTo(r):
		return &refusal{http.StatusForbidden,
			fmt.Sprintf("host %q is none of this server's: ask by its address, or name the host with --http-host", clip(r.Host))}
	case !slices.Contains(methods, r.Method):
		return &refusal{http.StatusMethodNotAllowed, fmt.Sprintf("method %s: this path takes others, want %s",
			clip(r.Method), strings.Join(methods, " or "))}
	case (r.Method != http.MethodPost || r.URL.Path == resetPath) && r.ContentLength != 0:
		return &refusal{http.StatusRequestEntityTooLarge, "the request has a body: want none with " + r.Method}
	case g.cross.Check(r) != nil:
		return &refusal{http.StatusForbidden, "the request comes from a page of another site"}
	}
	// A link from elsewhere to the page is well; what a page elsewhere fetches is not.
	site, mode := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Sec-Fetch-Mode")
	if (site == "cross-site" || site == "same-site") &&
		(mode != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document") {
		return &refusal{http.StatusForbidden, "the request comes from a page of another site"}
	}
	return nil
}

// clip bounds what of a request is repeated in an answer.
func clip(s string) string {
	const most = 100
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// fail answers with an error as the API has it: {"error":"..."}.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // the client is gone where this fails
		Error string `json:"error"`
	}{text})
}

// refuse is fail, counted, and ends the connection: what else comes on it is not worth reading.
func (s *Server) refuse(w http.ResponseWriter, why *refusal) {
	s.refused.Add(1)
	w.Header().Set("Connection", "close")
	// Without this, net/http would first wait for the rest of a body.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	fail(w, why.status, why.text)
}
