package ops

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	page := somePage()
	for path, name := range map[string]string{"/": "index.html", "/assets/app.js": "assets/app.js",
		"/assets/a.svg": "assets/a.svg", "/assets/app.js?x=1": "assets/app.js"} {
		want := string(page[name].Data)
		answer, body := s.get(t, path)
		tag := answer.Header.Get("ETag")
		if answer.StatusCode != 200 || body != want || tag == "" || answer.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d, %d bytes of %d, %v", path, answer.StatusCode, len(body), len(want), answer.Header)
		}
		for _, have := range []string{tag, `"other", ` + tag, "W/" + tag, "*"} {
			if answer, body := s.get(t, path, "If-None-Match: "+have); answer.StatusCode != http.StatusNotModified ||
				body != "" || answer.Header.Get("ETag") != tag {
				t.Errorf("%s, %s: %d, %d bytes", path, have, answer.StatusCode, len(body))
			}
		}
		if answer, _ := s.get(t, path, `If-None-Match: "other"`); answer.StatusCode != 200 {
			t.Errorf("%s, other: %d", path, answer.StatusCode)
		}
	}
}

// There is nothing but the files: no lists, no other ways to them, no way out.
func TestNothingButFiles(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, path := range []string{
		"/assets", "/assets/", "/index.html", "/assets/..", "/assets/../../etc/passwd", "/..%2f..%2fetc/passwd",
		"/%2e%2e/%2e%2e/etc/passwd", "/assets/app.js/", "/assets//app.js",
		"/./assets/app.js", "/assets/%2e/app.js", `/..\..\etc\passwd`, "/assets/app.js%00.svg", "//etc/passwd",
		"/ASSETS/APP.JS", "/.git/config", "/api", "/api/", "/api/v1/", "/api/v1/status/",
	} {
		got := ended(t, s.dial(t, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
		line, _, _ := strings.Cut(got, "\r\n")
		if strings.Contains(line, " 200 ") || strings.Contains(got, "root:") || strings.Contains(got, "export const") {
			t.Errorf("%s: %q", path, got)
		}
		if i := strings.Index(got, "Location: "); i >= 0 && (!strings.HasPrefix(got[i+len("Location: "):], "/") ||
			strings.HasPrefix(got[i+len("Location: "):], "//")) {
			t.Errorf("%s leads elsewhere: %q", path, got)
		}
	}
}

func TestLoadChecksThePage(t *testing.T) {
	t.Parallel()
	if _, err := load(fstest.MapFS{"assets/a.js": {}}); err == nil || !strings.Contains(err.Error(), "no index.html") {
		t.Errorf("error %v", err)
	}
}
