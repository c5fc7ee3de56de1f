package ops

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

const someToken = "0123456789abcdef-secret"

func withToken(c *Config) { c.Token = someToken }

// What is told of a job needs the token; probes, the page's files and the way in do not.
func TestTokenIsAskedFor(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { withToken(c); someMetrics(c) })
	free := map[string]bool{"/": true, "/assets/app.js": true, "/assets/a.svg": true, "/healthz": true, "/readyz": true}
	for path := range paths {
		for what, c := range map[string]struct {
			headers []string
			ok      bool
		}{
			"none":          {nil, false},
			"wrong":         {[]string{"Authorization: Bearer 0123456789abcdef-secreT"}, false},
			"longer":        {[]string{"Authorization: Bearer " + someToken + "x"}, false},
			"empty":         {[]string{"Authorization: Bearer "}, false},
			"basic":         {[]string{"Authorization: Basic " + someToken}, false},
			"foreign":       {[]string{"Cookie: gradbus=" + someToken}, false},
			"token":         {[]string{"Authorization: Bearer " + someToken}, true},
			"as some write": {[]string{"Authorization: bearer  " + someToken + " "}, true},
		} {
			answer, body := s.get(t, path, c.headers...)
			if c.ok || free[path] {
				if answer.StatusCode != 200 {
					t.Errorf("%s, %s: status %d", path, what, answer.StatusCode)
				}
				continue
			}
			wantError(t, answer, body, http.StatusUnauthorized, "--http-token-file", "on the page")
			if !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s, %s: headers %v", path, what, answer.Header)
			}
		}
	}
	for _, path := range []string{"/api/v1/stream", "/nothing", "/api/v1/status?token=" + someToken,
		"/?token=" + someToken + "x&y=/../api/v1/status"} {
		if answer, body := s.get(t, path); answer.StatusCode == 200 && strings.Contains(body, "now_ms") ||
			path != "/?token="+someToken+"x&y=/../api/v1/status" && answer.StatusCode != 401 {
			t.Errorf("%s: status %d", path, answer.StatusCode)
		}
	}
	// Against other sites and names a token changes nothing.
	answer, body := s.get(t, "/api/v1/status", "Host: evil.example", "Authorization: Bearer "+someToken)
	wantError(t, answer, body, http.StatusForbidden)
}

// What scrapes has a token that opens the metrics, by whatever name it asks, and nothing else.
func TestScrapesHaveATokenOfTheirOwn(t *testing.T) {
	t.Parallel()
	const scraper = "fedcba9876543210-scraper"
	for _, page := range []string{"", someToken} {
		s := start(t, func(c *Config) { c.Token, c.MetricsToken = page, scraper; someMetrics(c) })
		for _, c := range []struct {
			path, shown, host string
			want              int
		}{
			{"/metrics", "", "localhost", 401},
			{"/metrics", "fedcba9876543210-scrapeR", "localhost", 401},
			{"/metrics", scraper, "localhost", 200},
			{"/metrics", scraper, "box.example.org", 200},
			{"/metrics", "", "box.example.org", 403},
			{"/metrics", "fedcba9876543210-scrapeR", "box.example.org", 403},
			{"/api/v1/status", scraper, "box.example.org", 403},
		} {
			answer, body := s.get(t, c.path, "Authorization: Bearer "+c.shown, "Host: "+c.host)
			if answer.StatusCode != c.want || c.want == 401 && !strings.Contains(body, "--metrics-token-file") {
				t.Errorf("page token %q, %+v: status %d, %s", page, c, answer.StatusCode, body)
			}
		}
		if page == "" {
			continue
		}
		for _, path := range []string{"/api/v1/status", "/api/v1/stream", "/readyz?verbose", "/metrics/", "/metrics?x=1"} {
			answer, body := s.get(t, path, "Authorization: Bearer "+scraper)
			if path == "/metrics?x=1" {
				wantError(t, answer, body, http.StatusBadRequest)
				continue
			}
			wantError(t, answer, body, http.StatusUnauthorized)
		}
		if answer, _ := s.do(t, "POST", "/login", strings.NewReader("token="+scraper),
			"Content-Type: application/x-www-form-urlencoded"); answer.StatusCode != http.StatusForbidden {
			t.Errorf("login: status %d", answer.StatusCode)
		}
		if answer, _ := s.get(t, "/metrics", "Authorization: Bearer "+page, "Host: box"); answer.StatusCode != 200 {
			t.Errorf("with the page's token: status %d", answer.StatusCode)
		}
	}
	for _, same := range []string{someToken, "short"} {
		_, err := Start(t.Context(), Config{Listen: "127.0.0.1:0", Hub: NewHub(nil), Token: someToken, MetricsToken: same})
		if err == nil || !strings.Contains(err.Error(), "metrics-token-file") {
			t.Errorf("metrics token %q: %v", same, err)
		}
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	s := start(t, withToken)
	form := func(secret string, headers ...string) (*http.Response, string) {
		t.Helper()
		return s.do(t, "POST", "/login", strings.NewReader(url.Values{"token": {secret}}.Encode()),
			append(headers, "Content-Type: application/x-www-form-urlencoded")...)
	}
	if answer, body := form("wrong"); answer.StatusCode != http.StatusForbidden ||
		!strings.Contains(body, "not the token") || answer.Header.Get("Set-Cookie") != "" {
		t.Errorf("wrong token: %d %q", answer.StatusCode, body)
	}
	answer, _ := form(" " + someToken + " ")
	if answer.StatusCode != http.StatusNoContent {
		t.Fatalf("login: %d %v", answer.StatusCode, answer.Header)
	}
	cookie := answer.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" ||
		cookie.MaxAge != 7*24*3600 || strings.Contains(cookie.Value, someToken) {
		t.Errorf("cookie %v", cookie)
	}
	if answer, _ := s.get(t, "/api/v1/status", "Cookie: gradbus="+cookie.Value); answer.StatusCode != 200 {
		t.Errorf("with the cookie: %d", answer.StatusCode)
	}
	for _, bad := range []string{cookie.Value + "0", "9" + cookie.Value, strings.Split(cookie.Value, ".")[0], ".", ""} {
		if answer, _ := s.get(t, "/api/v1/status", "Cookie: gradbus="+bad); answer.StatusCode != 401 {
			t.Errorf("cookie %q: %d", bad, answer.StatusCode)
		}
	}
	// A page elsewhere cannot send the form.
	for _, h := range []string{"Sec-Fetch-Site: cross-site", "Origin: http://evil.example", "Origin: null"} {
		answer, body := form(someToken, h)
		wantError(t, answer, body, http.StatusForbidden, "another site")
	}
	answer, body := form(strings.Repeat("x", loginBytesMax))
	wantError(t, answer, body, http.StatusBadRequest, "8 KiB")
	if strings.Contains(s.log.String(), someToken) {
		t.Error("the token is in the log")
	}
}

// A cookie ends, is good for all ps with the token, and for none with another.
func TestCookies(t *testing.T) {
	t.Parallel()
	a, same, other := newToken(someToken, false), newToken(someToken, true), newToken(someToken+"2", false)
	now := time.Unix(1e9, 0)
	for _, t := range []*token{a, same, other} {
		t.now = func() time.Time { return now }
	}
	value := a.issue()
	if !a.issued(value) || !same.issued(value) || other.issued(value) {
		t.Error("who takes the cookie")
	}
	now = now.Add(loginTime - time.Second)
	if !a.issued(value) {
		t.Error("it ended early")
	}
	now = now.Add(time.Second)
	if a.issued(value) {
		t.Error("it did not end")
	}
	if !strings.HasPrefix(same.cookie.Name, "__Host-") || !same.cookie.Secure {
		t.Errorf("cookie over TLS: %+v", same.cookie)
	}
}

// A reload changes what must be shown from then on: cookies of the token before end, and streams go on.
func TestReloadTokens(t *testing.T) {
	t.Parallel()
	const other, scraper = "fedcba9876543210-other", "0011223344556677-scraper"
	s := start(t, func(c *Config) { withToken(c); someMetrics(c); c.MetricsToken = "first-" + scraper })
	form, _ := s.do(t, "POST", "/login", strings.NewReader("token="+someToken),
		"Content-Type: application/x-www-form-urlencoded")
	cookie := "Cookie: gradbus=" + form.Cookies()[0].Value
	stream := s.open(t, "Authorization: Bearer "+someToken)
	stream.next(t)
	lets := func(path, header string, want bool) {
		t.Helper()
		if answer, _ := s.get(t, path, header); (answer.StatusCode == http.StatusOK) != want {
			t.Errorf("%s, %s: status %d", path, header, answer.StatusCode)
		}
	}
	reload := func(change func(*Config), wants ...string) {
		t.Helper()
		c := s.config
		change(&c)
		if changed, err := s.Reload(c); err != nil || !slices.Equal(changed, wants) {
			t.Errorf("changed %q, want %q; %v", changed, wants, err)
		}
	}
	reload(func(*Config) {})
	lets("/api/v1/status", cookie, true)
	reload(func(c *Config) { c.Token, c.MetricsToken = other, scraper }, "http-token-file", "metrics-token-file")
	for _, path := range []string{"/api/v1/status", "/metrics"} {
		lets(path, cookie, false)
		lets(path, "Authorization: Bearer "+someToken, false)
		lets(path, "Authorization: Bearer "+other, true)
	}
	lets("/metrics", "Authorization: Bearer "+scraper, true)
	stream.next(t)
	for _, wrong := range []func(*Config){func(c *Config) { c.Token = "short" }, func(c *Config) { c.Token = "" },
		func(c *Config) { c.MetricsToken = "" }, func(c *Config) { c.Token, c.MetricsToken = scraper, scraper },
		func(c *Config) { c.CertFile, c.KeyFile = "a", "b" }} {
		c := s.config
		wrong(&c)
		if _, err := s.Reload(c); err == nil {
			t.Error("it takes what is wrong")
		}
		lets("/api/v1/status", "Authorization: Bearer "+other, true)
	}
}

// A line that is lost does not open the metrics of a page without a token, nor does one that is added close them.
func TestMetricsTokenStaysByReload(t *testing.T) {
	t.Parallel()
	for _, tokens := range [][2]string{{"0011223344556677-scraper", ""}, {"", "0011223344556677-scraper"}} {
		s := start(t, func(c *Config) { someMetrics(c); c.MetricsToken = tokens[0] })
		before, _ := s.get(t, "/metrics")
		c := s.config
		c.MetricsToken = tokens[1]
		if _, err := s.Reload(c); err == nil || !strings.Contains(err.Error(), "restart") {
			t.Errorf("from %q to %q: %v", tokens[0], tokens[1], err)
		}
		if after, _ := s.get(t, "/metrics"); after.StatusCode != before.StatusCode {
			t.Errorf("from %q to %q: status %d, and %d before", tokens[0], tokens[1], after.StatusCode, before.StatusCode)
		}
	}
}
