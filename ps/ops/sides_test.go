package ops

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// sideURL is where a side listener is, as the log says.
func (s *site) sideURL(t *testing.T, what string) string {
	t.Helper()
	_, line, _ := strings.Cut(s.log.String(), "msg="+what)
	_, at, found := strings.Cut(line, "url=http://")
	if !found {
		t.Fatalf("the log has no %s: %s", what, s.log)
	}
	at, _, _ = strings.Cut(at, "/")
	return "http://" + at
}

// What NATS says of its server has the page's rules and token, and no other site may read it.
func TestNATSMonitoring(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", someToken} {
		s := start(t, func(c *Config) {
			c.Token, c.Monitor, c.Machine = token, "127.0.0.1:0", []string{"box-1"}
			c.NATSPages = map[string][]string{"varz": nil, "connz": {"limit"}}
			c.NATS = func(page string, parameters url.Values) ([]byte, error) {
				switch limit := parameters.Get("limit"); limit {
				case "odd":
					return nil, errors.New("limit \"odd\": want a number")
				case "early":
					return nil, ErrStarting
				default:
					return []byte(`{"page":"` + page + limit + `"}`), nil
				}
			}
		})
		at := s.sideURL(t, `"NATS monitoring"`)
		get := func(path, host string, headers ...string) (*http.Response, string) {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), "GET", at+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			for _, h := range append(headers, "Origin: http://evil.example", "Authorization: Bearer "+token) {
				name, value, _ := strings.Cut(h, ": ")
				if r.Header.Get(name) == "" {
					r.Header.Set(name, value)
				}
			}
			answer, text, err := fetch(s.client, r)
			if err != nil {
				t.Fatal(err)
			}
			if got := answer.Header.Get("Access-Control-Allow-Origin"); got != "" {
				t.Errorf("%s lets %s read it", path, got)
			}
			return answer, text
		}
		for path, want := range map[string]int{"/varz": 200, "/connz": 200, "/connz?limit=7": 200, "/connz?limit=odd": 400,
			"/connz?limit=early": 503, "/connz?auth=1": 400, "/varz?limit=7": 400, "/stacksz": 404, "/debug/vars": 404,
			"/": 404, "/api/v1/status": 404} {
			if answer, text := get(path, "box-1"); answer.StatusCode != want || want == 404 && !strings.Contains(text, "/varz") {
				t.Errorf("%s: status %d, want %d: %s", path, answer.StatusCode, want, text)
			}
			if answer, _ := get(path, "evil.example"); answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s by a foreign host: status %d", path, answer.StatusCode)
			}
		}
		if _, text := get("/connz?limit=7", "localhost"); text != `{"page":"connz7"}` {
			t.Errorf("answer %q", text)
		}
		if token != "" {
			if answer, _ := get("/varz", "localhost", "Authorization: Bearer x"); answer.StatusCode != 401 {
				t.Errorf("without the token: status %d", answer.StatusCode)
			}
		}
	}
	for _, at := range []string{"0.0.0.0:8222", "127.0.0.1", "host:8222", ":8222"} {
		_, err := Start(t.Context(), Config{Listen: "127.0.0.1:0", Hub: NewHub(nil), Monitor: at})
		if err == nil || !strings.Contains(err.Error(), "nats-monitor \""+at+`": want host:port of this machine alone`) {
			t.Errorf("%s: %v", at, err)
		}
	}
}
