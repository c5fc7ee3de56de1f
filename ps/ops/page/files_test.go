package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// uPlot is what assets/vendor/uplot is a copy of: files of the npm package, byte for byte.
const uPlotVersion = "1.6.32"

var uPlotFiles = map[string]string{
	"LICENSE":       "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	"uPlot.esm.js":  "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
	"uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func names(t *testing.T) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(Files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVendored(t *testing.T) {
	const dir = "assets/vendor/uplot"
	entries, err := Files.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(uPlotFiles) {
		t.Errorf("%s holds %d files, want %d of uplot@%s", dir, len(entries), len(uPlotFiles), uPlotVersion)
	}
	for name, want := range uPlotFiles {
		sum := sha256.Sum256(read(t, path.Join(dir, name)))
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s is not that of uplot@%s: SHA-256 %s, want %s", name, uPlotVersion, got, want)
		}
	}
	if !strings.Contains(string(read(t, dir+"/uPlot.esm.js")), "(v"+uPlotVersion+")") {
		t.Errorf("uPlot.esm.js does not say that it is of version %s", uPlotVersion)
	}
}

// The whole page travels in under 100 KB, as the server sends it.
func TestSize(t *testing.T) {
	const max = 100_000
	total := 0
	for _, name := range names(t) {
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(read(t, name)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		total += out.Len()
	}
	if total >= max {
		t.Errorf("the page takes %d bytes compressed, want under %d", total, max)
	}
	t.Logf("%d bytes compressed, of %d", total, max)
}

// refused are what the policy of the server forbids in HTML, and what would reach beyond the server.
var refused = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\sstyle\s*=`),
	regexp.MustCompile(`(?i)\son[a-z]+\s*=`),
	regexp.MustCompile(`(?i)<style\b`),
	regexp.MustCompile(`(?i)(src|href|action)\s*=\s*["'](https?:)?//`),
	regexp.MustCompile(`(?i)javascript:`),
}

// unsafe are the ways of JavaScript from text to markup or code. Our own modules have none of them.
var unsafe = regexp.MustCompile(
	`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|setHTML|srcdoc`)

func TestPolicy(t *testing.T) {
	for _, at := range forbidden(string(read(t, "index.html"))) {
		t.Errorf("index.html has %q, which the policy of the server refuses", at)
	}
	for _, name := range names(t) {
		if path.Ext(name) == ".js" && !strings.Contains(name, "/vendor/") {
			if at := unsafe.Find(read(t, name)); at != nil {
				t.Errorf("%s has %s: text may reach the document as text only", name, at)
			}
		}
		if path.Ext(name) == ".css" && regexp.MustCompile(`(?i)url\(|@import`).Match(read(t, name)) {
			t.Errorf("%s asks for other files", name)
		}
	}
}

var script = regexp.MustCompile(`(?is)<script\b[^>]*>(.*?)</script>`)

// forbidden lists what the policy of the server refuses in this HTML.
func forbidden(html string) []string {
	var found []string
	for _, wrong := range refused {
		if at := wrong.FindString(html); at != "" {
			found = append(found, at)
		}
	}
	for _, inline := range script.FindAllStringSubmatch(html, -1) {
		if strings.TrimSpace(inline[1]) != "" {
			found = append(found, inline[0])
		}
	}
	return found
}

// The rules find what they are for.
func TestPolicyFinds(t *testing.T) {
	for _, html := range []string{
		`<p style="color:red">`, `<a onclick="x()">`, `<style>p{}</style>`, `<script>x()</script>`,
		"<script src='a.js'>\nx()</script>",
		`<link href="https://cdn.example/x.css">`, `<script src="//cdn.example/x.js">`, `<a href="javascript:x()">`,
	} {
		if len(forbidden(html)) == 0 {
			t.Errorf("%s is not found", html)
		}
	}
	if !unsafe.MatchString("e.innerHTML = host") {
		t.Error("innerHTML is not found")
	}
}

var (
	assets  = regexp.MustCompile(`(?:href|src)="(assets/[^"]+)"`)
	imports = regexp.MustCompile(`(?m)^import .* from "\./([^"]+)"`)
)

// Every file that is asked for is there, every module is asked for at once rather than one after the other, and no file
// is there for nothing.
func TestComplete(t *testing.T) {
	asked := map[string]bool{"index.html": true, "assets/vendor/uplot/LICENSE": true}
	for _, found := range assets.FindAllSubmatch(read(t, "index.html"), -1) {
		asked[string(found[1])] = true
	}
	for name := range asked {
		if path.Ext(name) != ".js" {
			continue
		}
		for _, found := range imports.FindAllSubmatch(read(t, name), -1) {
			if module := path.Join(path.Dir(name), string(found[1])); !asked[module] {
				t.Errorf("%s imports %s, which index.html does not preload", name, module)
			}
		}
	}
	for name := range asked {
		read(t, name)
	}
	for _, name := range names(t) {
		if !asked[name] {
			t.Errorf("%s is used by nothing", name)
		}
	}
}
