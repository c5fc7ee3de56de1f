package ops

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
)

func TestMarkdown(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"# a: <b>\n\n## Part\n\nOne\ntwo `x < y`.\n", "<h1>a: &lt;b&gt;</h1><h2>Part</h2><p>One\ntwo <code>x &lt; y</code>.</p>"},
		{"- one `- two`\n  goes on\n- see [b](b.md), \"so\"", "<ul><li>one <code>- two</code>\n  goes on</li><li>see <a href=\"b\">b</a>, &#34;so&#34;</li></ul>"},
		{"[x](javascript:alert(1)) [y](//evil.md) [<i>](c.md)", "<p>[x](javascript:alert(1)) [y](//evil.md) <a href=\"c\">&lt;i&gt;</a></p>"},
		{"", ""},
	} {
		if got := markdown(c.text); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
}

// Runbooks are pages that whoever got the alert may read, with what leads from one to the other.
func TestRunbooksAreServed(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.Token = someToken
		c.Runbooks = fstest.MapFS{"gpu-lost.md": {Data: []byte("# gpu-lost: a GPU is lost\n\nAs in [disk-full](disk-full.md).\n")}, "disk-full.md": {Data: []byte("# disk-full: no space\n\nText.\n")}}
	})
	for path, want := range map[string]string{
		"/runbooks/":          `<dt><a href="disk-full">disk-full</a></dt><dd>no space</dd><dt><a href="gpu-lost">gpu-lost</a></dt><dd>a GPU is lost</dd>`,
		"/runbooks/gpu-lost":  `<h1>gpu-lost: a GPU is lost</h1><p>As in <a href="disk-full">disk-full</a>.</p>`,
		"/runbooks/disk-full": `<title>disk-full – gradbus</title>`,
	} {
		answer, body := s.get(t, path)
		if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, %s: want %s", path, answer.StatusCode, body, want)
		}
	}
	for _, path := range []string{"/runbooks/nope", "/runbooks/gpu-lost.md", "/runbooks", "/runbooks/../api/v1/status"} {
		if answer, _ := s.get(t, path); answer.StatusCode < 300 {
			t.Errorf("%s: status %d", path, answer.StatusCode)
		}
	}
}
