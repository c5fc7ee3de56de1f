package ops

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// token is who may look, where one is asked for. Programs show it in the header Authorization: Bearer. A browser
// shows it once, in the form of /login, and from then on a cookie that follows from the token and lets in here only: no
// address, log or Referer ever holds the token. All ps that ask for the same token take each other's cookies.
type token struct {
	sum    [sha256.Size]byte // of the token
	key    [sha256.Size]byte // of cookies
	cookie http.Cookie
	now    func() time.Time

	// of the form. Headers are not slowed: what watches a ps must not be locked out by who shares its address
	throttle *throttle
}

// tokens are those that are asked for; nil is none.
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

// loginTime is how long a cookie lasts.
const loginTime = 7 * 24 * time.Hour

// loginBytesMax bounds the form of /login.
const loginBytesMax = 8 << 10

func newToken(secret string, secure bool) *token {
	t := &token{sum: sha256.Sum256([]byte(secret)), now: time.Now}
	t.throttle = newThrottle(func() time.Time { return t.now() })
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

// deny answers a request without token: a browser that asks for a page is sent to the form.
func (s *Server) deny(w http.ResponseWriter, r *http.Request) {
	s.refused.Add(1)
	if r.Header.Get("Sec-Fetch-Dest") == "document" || strings.HasPrefix(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Location", "/login")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="gradbus"`)
	want := "want the token of --http-token-file: as Authorization: Bearer TOKEN, or in a browser at /login"
	if s.tokens.Load().metrics != nil && r.URL.Path == metricsPath {
		want = "want the token of --metrics-token-file, as Authorization: Bearer TOKEN"
	}
	fail(w, http.StatusUnauthorized, want)
}

// login shows the form, and takes it.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	token := s.tokens.Load().page
	if token == nil {
		fail(w, http.StatusNotFound, "no token is asked for here")
		return
	}
	if r.Method != http.MethodPost {
		showLogin(w, http.StatusOK, "")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, loginBytesMax)
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.formTime))
	if err = cmp.Or(err, r.ParseForm()); err != nil {
		s.refuse(w, &refusal{http.StatusBadRequest, fmt.Sprintf(
			"login: want a form of at most 8 KiB with the field token, within %s", s.limits.formTime)})
		return
	}
	if left := token.throttle.wait(r.RemoteAddr); left > 0 {
		s.refused.Add(1)
		seconds := strconv.Itoa(int((left + time.Second - 1) / time.Second))
		w.Header().Set("Retry-After", seconds)
		showLogin(w, http.StatusTooManyRequests, "Too many wrong tokens came from your address. Try again in "+seconds+" s.")
		return
	}
	if token.is(strings.TrimSpace(r.PostForm.Get("token"))) {
		token.throttle.succeeded(r.RemoteAddr)
		cookie := token.cookie
		cookie.Value = token.issue()
		http.SetCookie(w, &cookie)
		w.Header().Set("Location", "/")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	s.refused.Add(1)
	s.log.Warn("a wrong token was shown at /login", "address", r.RemoteAddr, "times", s.wrong.Add(1))
	showLogin(w, http.StatusForbidden, "That is not the token.")
}

// showLogin writes the form, with what was wrong above it.
func showLogin(w http.ResponseWriter, status int, wrong string) {
	if wrong != "" {
		wrong = `<p role="alert"><strong>` + wrong + `</strong></p>`
	}
	w.Header().Set("Content-Security-Policy", strings.NewReplacer("style-src 'self'", "style-src "+hashOf(loginStyle),
		"form-action 'none'", "form-action 'self'").Replace(policy))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(loginHead + loginStyle + loginBody + wrong + loginForm))
}

// The form is whole in itself, as nothing else is served without the token.
const (
	loginHead  = `<!doctype html><html lang="en"><meta charset="utf-8"><title>gradbus: log in</title><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><style>`
	loginStyle = `body{font:16px/1.5 system-ui,sans-serif;max-width:28rem;margin:15vh auto;padding:0 1rem}label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit;padding:.5rem;margin:.25rem 0}label{padding:0}`
	loginBody  = `</style><main><h1>gradbus</h1>`
	loginForm  = `<form method="post" action="/login"><label for="token">Token: the first line of the file that this ps was given with --http-token-file</label>` +
		`<input id="token" name="token" type="password" autocomplete="current-password" required autofocus><button>Log in</button></form></main></html>`
)

// hashOf is a text as a Content-Security-Policy allows it within a page.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
