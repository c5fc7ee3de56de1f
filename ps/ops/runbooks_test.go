package ops

import (
	"net/http"
	"strings"
	"testing"
)

func TestMarkdown(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"# a: <b>\n\n## p\"q\n\n### Part\n\nOne\ntwo `x < y`.\n",
			"<h1>a: &lt;b&gt;</h1><h2 id=\"p&#34;q\">p&#34;q</h2><h3>Part</h3><p>One\ntwo <code>x &lt; y</code>.</p>"},
		{"- one `- two`\n  goes on\n- see [b](#b), \"so\"",
			"<ul><li>one <code>- two</code>\n  goes on</li><li>see <a href=\"#b\">b</a>, &#34;so&#34;</li></ul>"},
		{"[x](javascript:alert(1)) [y](//evil.md) [<i>](#c)",
			"<p>[x](javascript:alert(1)) [y](//evil.md) <a href=\"#c\">&lt;i&gt;</a></p>"},
		{"", ""},
	} {
		if got := markdown(c.text); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
}

// The runbooks are a page that whoever got the alert may read, with an anchor for each and what leads from one to the
// other.
func TestRunbooksAreServed(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.Token = someToken
		c.Runbooks = "# Runbooks\n\n## disk-full\n\nText.\n\n## gpu-lost\n\nAs in [disk-full](#disk-full).\n"
	})
	answer, body := s.get(t, "/runbooks")
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("status %d, %s", answer.StatusCode, answer.Header.Get("Content-Type"))
	}
	for _, want := range []string{`<title>Runbooks – gradbus</title>`,
		`<h2 id="gpu-lost">gpu-lost</h2><p>As in <a href="#disk-full">disk-full</a>.</p>`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s\nwant %s", body, want)
		}
	}
	for _, path := range []string{"/runbooks/gpu-lost", "/runbooks.md", "/runbooks/../api/v1/status"} {
		if answer, _ := s.get(t, path); answer.StatusCode < 300 {
			t.Errorf("%s: status %d", path, answer.StatusCode)
		}
	}
}
