package page

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"gradbus/e2e/commands"
	"gradbus/internal/testkit"
)

// binaries is where the commands are, once build has made them.
var binaries string

var build = sync.OnceValue(func() error {
	return commands.Build(binaries, "gradbus/cmd/ps", "gradbus/cmd/trainer")
})

func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "gradbus-page-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if shared.browser != nil {
		shared.stop()
	}
	_ = os.RemoveAll(binaries)
	os.Exit(status)
}

// process starts one of the commands, which is gone when the test ends; what it said is told where the test has failed.
func process(t testing.TB, name string, args ...string) *os.Process {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	c, said := exec.Command(filepath.Join(binaries, name), args...), &testkit.Text{}
	c.Stdout, c.Stderr = said, said
	commands.Run(t, c, commands.Kill, said.String)
	return c.Process
}

// server starts a ps, and returns the addresses that trainers and browsers go to.
func server(t testing.TB, args ...string) (p *os.Process, url, page string) {
	t.Helper()
	files := t.TempDir()
	port, http := filepath.Join(files, "port"), filepath.Join(files, "http")
	p = process(t, "ps", append([]string{"--listen", "127.0.0.1:0", "--port-file", port, "--http", "127.0.0.1:0",
		"--http-port-file", http, "--gpu", "off"}, args...)...)
	return p, file(t, port), file(t, http)
}

// file waits until a file has a line.
func file(t testing.TB, path string) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(data), "\n") {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("nothing came to %s", path)
	return ""
}

// index writes a small package index whose words tell the section.
func index(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	sections := []string{"admin", "devel", "games", "math"}
	for i := range 400 {
		s := sections[i%len(sections)]
		fmt.Fprintf(&b, "Package: %s-%d-x\nVersion: 1\nSection: %s\nDescription: %sword%d common%d %sword%d\n\n", s, i, s, s,
			i*7%11, i*5%13, s, i*3%17)
	}
	path := filepath.Join(t.TempDir(), "Packages")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// trainers starts two trainers of a job that does not end.
func trainers(t testing.TB, url string) (all []*os.Process) {
	t.Helper()
	data := index(t)
	for i := range 2 {
		all = append(all, process(t, "trainer", "packages", "--server", url, "--input", data, "--failure-policy", "fail",
			"--trainers", "2", "--id", fmt.Sprintf("t%d", i), "--batch", "32", "--dim", "8", "--lr", "1", "--epochs", "100000"))
	}
	return all
}

// The commands as anybody starts them: the page shows the job; a trainer that is stopped is named at the top, and when
// it goes on, nobody waits any more; one that is killed is named, too; a server that is gone greys the page.
func TestReal(t *testing.T) {
	b := start(t)
	ps, url, page := server(t, "--deadline", "5m")
	p := b.tab(t, page, desk)
	p.expected = func(said string) bool {
		return strings.Contains(said, "ERR_CONNECTION_REFUSED") || strings.Contains(said, "ERR_INCOMPLETE_CHUNKED")
	}
	p.until("it is live", live)
	p.until("it says what to run",
		`document.getElementById("empty").innerText.includes("./bin/trainer packages") && !document.getElementById("empty").hidden`)
	running := trainers(t, url)
	p.until("it trains", `document.getElementById("facts").innerText.includes("running")`)
	p.until("both are there", `document.querySelectorAll("#s-trainers tbody tr").length === 2`)
	p.until("the loss is told", `/^\d/.test(document.querySelector("#chart-loss .legend b").textContent)`)

	if err := running[1].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	p.until("the sentence names t1",
		`/waits .*t1/.test(document.getElementById("why-text").textContent) && document.getElementById("why").dataset.level !== "ok"`)
	t.Logf("named %v after it was stopped", time.Since(stopped).Round(10*time.Millisecond))
	p.until("it is silent",
		`document.querySelector("#s-trainers tbody tr").innerText.startsWith("t1") && document.querySelector("#s-trainers tbody tr").innerText.includes("silent")`)
	if err := running[1].Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// A busy machine may give reasons for warnings of its own; that nobody waits for t1 is what is wanted.
	p.until("nobody waits for it any more",
		`document.getElementById("why").dataset.level !== "critical" && !/waits .*t1/.test(document.getElementById("why-text").textContent)`)

	if err := running[1].Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	p.until("t1 is named again",
		`document.getElementById("why").dataset.level === "critical" && /t1/.test(document.getElementById("why-text").textContent)`)
	t.Logf("named %v after it was killed", time.Since(killed).Round(10*time.Millisecond))

	if err := ps.Kill(); err != nil {
		t.Fatal(err)
	}
	p.until("the page is grey", `document.body.classList.contains("lost")`)
}

// A real server that wants a token is shown it once.
func TestRealToken(t *testing.T) {
	b := start(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a-token-of-sixteen-and-more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, page := server(t, "--http-token-file", file)
	p := b.tab(t, page, desk)
	p.expected = func(said string) bool { return strings.Contains(said, "401") || strings.Contains(said, "403") }
	p.until("it asks", `!document.getElementById("token-form").hidden`)
	p.do(chromedp.SendKeys("#token", "wrong\r"))
	p.until("it is refused", `document.getElementById("token-text").textContent.includes("not the token")`)
	p.do(chromedp.SendKeys("#token", "a-token-of-sixteen-and-more\r"))
	p.until("it is live", live)
	p.do(chromedp.Reload())
	p.until("it is kept", live)
}

// What a browser gets is small, and whole without another request than for its own files.
func TestRealFiles(t *testing.T) {
	if !*needBrowser {
		t.Skip("needs the commands: -need-browser")
	}
	_, _, page := server(t)
	answer, err := http.Get(page)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `id="why"`) {
		t.Errorf("status %d, error %v, page:\n%s", answer.StatusCode, err, body)
	}
	said := answer.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"} {
		if !strings.Contains(said, want) || strings.Contains(said, "unsafe") {
			t.Errorf("policy %q, want %s in it and nothing unsafe", said, want)
		}
	}
}
