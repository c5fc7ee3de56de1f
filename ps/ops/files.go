package ops

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// files are the page: read once, compressed once, and served from memory by their whole path alone. There is no folder
// to list, and no path leads out.
type files struct{ byPath map[string]*file }

type file struct {
	kind, tag string // Content-Type; hash of the content
	plain     []byte
	packed    func() []byte // gzip, made when the first asks; nil where it gains nothing
}

// Bounds of the page, which is part of the program: more is a mistake of the build.
const (
	filesMax     = 200
	fileBytesMax = 4 << 20
)

// placeholder stands where there is no page.
const placeholder = `<!doctype html><html lang="en"><meta charset="utf-8"><title>gradbus</title><p>This ps has no page. See <a href="/api/v1/status">/api/v1/status</a>.</p></html>`

// load reads all files of the page.
func load(from fs.FS) (*files, error) {
	all := &files{byPath: map[string]*file{}}
	if from == nil {
		all.byPath["/"] = newFile("index.html", []byte(placeholder))
		return all, nil
	}
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		if len(data) > fileBytesMax || len(all.byPath) >= filesMax {
			return fmt.Errorf("%s: more than %d files, or %d bytes in one", name, filesMax, fileBytesMax)
		}
		at := "/" + name
		if name == "index.html" {
			at = "/"
		}
		all.byPath[at] = newFile(name, data)
		return nil
	})
	if err == nil && all.byPath["/"] == nil {
		err = fmt.Errorf("no index.html")
	}
	if err != nil {
		return nil, fmt.Errorf("files of the page: %w", err)
	}
	return all, nil
}

func newFile(name string, data []byte) *file {
	sum := sha256.Sum256(data)
	return &file{kind: kindOf(name), tag: hex.EncodeToString(sum[:12]), plain: data,
		packed: sync.OnceValue(func() []byte { return gzipped(data, gzip.BestCompression) })}
}

// gzipped is nil where it gains nothing.
func gzipped(data []byte, level int) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		panic(err) // no such level, which is a constant
	}
	_, _ = w.Write(data) // a bytes.Buffer takes everything
	_ = w.Close()
	if b.Len() >= len(data) {
		return nil
	}
	return b.Bytes()
}

// kindOf is the Content-Type of a file by its name; the system's table, which differs between machines, is not asked.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt", "":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// ServeHTTP answers with a file. It is asked for again each time, by its hash: a changed program never meets an old
// page.
func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := f.byPath[r.URL.Path]
	if found == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("no %q here: the page is at /, the API below /api/v1/", clip(r.URL.Path)))
		return
	}
	h := w.Header()
	body, tag := found.plain, `"`+found.tag+`"`
	if acceptsGzip(r) {
		if packed := found.packed(); packed != nil {
			body, tag = packed, `"`+found.tag+`-gzip"`
			h.Set("Content-Encoding", "gzip")
		}
	}
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", tag)
	if matches(r.Header.Get("If-None-Match"), tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", found.kind)
	send(w, r, http.StatusOK, body)
}

// send writes a whole body.
func send(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client is gone where this fails
	}
}

// matches reports whether a list of tags, as If-None-Match has it, holds one.
func matches(list, tag string) bool {
	for each := range strings.SplitSeq(list, ",") {
		if each = strings.TrimPrefix(strings.TrimSpace(each), "W/"); each == tag || each == "*" {
			return true
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding, in which q=0 is a refusal.
func acceptsGzip(r *http.Request) bool {
	for each := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, parameters, _ := strings.Cut(strings.TrimSpace(each), ";")
		if name = strings.TrimSpace(name); !strings.EqualFold(name, "gzip") && name != "*" {
			continue
		}
		q, isQ := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
		return !isQ || strings.Trim(q, "0.") != ""
	}
	return false
}
