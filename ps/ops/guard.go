package ops

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
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

// certified lists the names in a certificate, without those with a *, which may belong to any host.
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
	case r.Method != http.MethodPost && r.ContentLength != 0:
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

// token admits clients. Programs show it in the header Authorization: Bearer. A browser
// shows it once, in the form of /login, and from then on a cookie that follows from the token and lets in here only: no
// address, log or Referer ever holds the token. All ps that ask for the same token take each other's cookies.
type token struct {
	sum    [sha256.Size]byte // of the token
	key    [sha256.Size]byte // of cookies
	cookie http.Cookie
	now    func() time.Time
}

// tokens are the required tokens; a nil field requires none.
type tokens struct {
	page    *token
	metrics *token // opens /metrics alone, beside that of the page
}

func newTokens(c Config, secure bool) *tokens {
	k := &tokens{}
	if c.Token != "" {
		k.page = newToken(c.Token, secure)
	}
	if c.MetricsToken != "" {
		k.metrics = newToken(c.MetricsToken, secure)
	}
	return k
}

// asks reports whether a path takes a token.
func (k *tokens) asks(path string) bool {
	return k.page != nil || k.metrics != nil && path == metricsPath
}

// lets reports whether a request shows a token that opens its path.
func (k *tokens) lets(r *http.Request) bool {
	secret, shown := bearer(r)
	return k.metrics != nil && r.URL.Path == metricsPath && shown && k.metrics.is(secret) ||
		k.page != nil && k.page.lets(r)
}

// loginTime is the lifetime of a cookie.
const loginTime = 7 * 24 * time.Hour

// loginBytesMax bounds the form of /login.
const loginBytesMax = 8 << 10

func newToken(secret string, secure bool) *token {
	t := &token{sum: sha256.Sum256([]byte(secret)), now: time.Now}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("gradbus page cookie 1"))
	mac.Sum(t.key[:0])
	t.cookie = http.Cookie{Name: "gradbus", Path: "/", MaxAge: int(loginTime / time.Second), HttpOnly: true,
		SameSite: http.SameSiteStrictMode}
	if secure {
		t.cookie.Name, t.cookie.Secure = "__Host-gradbus", true
	}
	return t
}

// equal reports whether two are the same, or both none.
func (t *token) equal(other *token) bool {
	if t == nil || other == nil {
		return t == other
	}
	return t.sum == other.sum
}

// is compares in constant time.
func (t *token) is(secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1
}

// bearer is the token in the header of a request; false where there is none.
func bearer(r *http.Request) (secret string, shown bool) {
	scheme, secret, shown := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(secret), shown && strings.EqualFold(scheme, "Bearer")
}

// lets reports whether a request shows the token, or a cookie that was given for it.
func (t *token) lets(r *http.Request) bool {
	if secret, shown := bearer(r); shown {
		return t.is(secret)
	}
	for _, c := range r.CookiesNamed(t.cookie.Name) {
		if t.issued(c.Value) {
			return true
		}
	}
	return false
}

// issue makes the value of a cookie: when it ends, and a signature of that.
func (t *token) issue() string {
	ends := strconv.FormatInt(t.now().Add(loginTime).Unix(), 10)
	return ends + "." + t.sign(ends)
}

func (t *token) issued(value string) bool {
	ends, signature, ok := strings.Cut(value, ".")
	if !ok || subtle.ConstantTimeCompare([]byte(signature), []byte(t.sign(ends))) != 1 {
		return false
	}
	at, err := strconv.ParseInt(ends, 10, 64)
	return err == nil && t.now().Unix() < at
}

func (t *token) sign(text string) string {
	mac := hmac.New(sha256.New, t.key[:])
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// deny answers a request without token.
func (s *Server) deny(w http.ResponseWriter, r *http.Request) {
	s.refused.Add(1)
	w.Header().Set("WWW-Authenticate", `Bearer realm="gradbus"`)
	want := "want the token of --http-token-file: as Authorization: Bearer TOKEN, or in a browser on the page"
	if s.tokens.Load().metrics != nil && r.URL.Path == metricsPath {
		want = "want the token of --metrics-token-file, as Authorization: Bearer TOKEN"
	}
	fail(w, http.StatusUnauthorized, want)
}

// login takes the token that a person has entered on the page, and answers with a cookie.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	token := s.tokens.Load().page
	if token == nil {
		fail(w, http.StatusNotFound, "no token is asked for here")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, loginBytesMax)
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.formTime))
	if err = cmp.Or(err, r.ParseForm()); err != nil {
		s.refuse(w, &refusal{http.StatusBadRequest, fmt.Sprintf(
			"login: want a form of at most 8 KiB with the field token, within %s", s.limits.formTime)})
		return
	}
	if token.is(strings.TrimSpace(r.PostForm.Get("token"))) {
		cookie := token.cookie
		cookie.Value = token.issue()
		http.SetCookie(w, &cookie)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.refused.Add(1)
	s.log.Warn("wrong token at /login", "address", r.RemoteAddr, "times", s.wrong.Add(1))
	fail(w, http.StatusForbidden, "that is not the token")
}
