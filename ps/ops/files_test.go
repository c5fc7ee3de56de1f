package ops

import (
	"compress/gzip"
	"io"
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
		if answer.StatusCode != 200 || body != want || tag == "" || answer.Header.Get("Cache-Control") != "no-cache" ||
			answer.Header.Get("Vary") != "Accept-Encoding" {
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
	answer, packed := s.get(t, "/assets/app.js", "Accept-Encoding: deflate, gzip, br")
	want := string(page["assets/app.js"].Data)
	if answer.Header.Get("Content-Encoding") != "gzip" || len(packed) > len(want)/5 || answer.Header.Get("ETag") == "" {
		t.Fatalf("%d bytes, %v", len(packed), answer.Header)
	}
	r, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// The two forms have two tags: a cache that has one is not told that the other is the same.
	if plain, _ := s.get(t, "/assets/app.js", "If-None-Match: "+answer.Header.Get("ETag")); plain.StatusCode != 200 {
		t.Errorf("plain form for the tag of the compressed one: %d", plain.StatusCode)
	}
	if again, _ := s.get(t, "/assets/app.js", "Accept-Encoding: gzip",
		"If-None-Match: "+answer.Header.Get("ETag")); again.StatusCode != 304 {
		t.Errorf("compressed form for its tag: %d", again.StatusCode)
	}
	// One that compression makes no smaller is sent as it is.
	if answer, body := s.get(t, "/assets/a.svg", "Accept-Encoding: gzip"); answer.Header.Get("Content-Encoding") != "" ||
		body != "<svg/>" {
		t.Errorf("small file: %v %q", answer.Header, body)
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

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": false, "gzip": true, "br, gzip": true, "GZIP": true, "gzip;q=0": false, "gzip; q=0.000": false,
		"gzip;q=0.1": true, "*": true, "*;q=0": false,
		"identity": false, "x-gzip-not": false, "gzip;q=0, *": false, "deflate, br": false,
	} {
		if got := acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {header}}}); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
}
