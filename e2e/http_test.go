package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gradbus/ps/ops/status"
)

// page starts a ps that serves a page at a free port, and returns its URL.
// secretFile is a file with a token.
func secretFile(t *testing.T, token string) string {
	t.Helper()
	return secretly(t, token+"\n")
}

func page(t *testing.T, args ...string) (p *process, nats, at string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page")
	p, nats = server(t, append([]string{"--http-port-file", file}, args...)...)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at = strings.TrimSpace(string(data))
	p.says(t, "The page, with all jobs:  "+at)
	return p, nats, at
}

// get asks a page's ps.
func get(t *testing.T, at string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: guard, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// Whichever ps is asked, it shows the whole job, and names a trainer that is killed.
func TestEveryPageShowsTheJob(t *testing.T) {
	peers := secretFile(t, "secret-of-all-ps")
	_, nats, first := page(t, "--control-token-file", peers)
	_, _, second := page(t, "--control-token-file", peers, "--nats", nats, "--id", "second")
	data := index(t, 200)
	var trainers []*process
	for _, id := range []string{"t0", "t1"} {
		trainers = append(trainers, start(t, "trainer", long(nats, data, "--failure-policy", "fail", "--trainers", "2",
			"--id", id)...))
	}
	shows := func(at, what string, ok func(*status.Status) bool) {
		t.Helper()
		poll(t, at+" shows "+what, func() bool {
			var s status.Status
			_, body := get(t, at+"api/v1/status")
			return json.Unmarshal([]byte(body), &s) == nil && ok(&s)
		})
	}
	for _, at := range []string{first, second} {
		shows(at, "the job", func(s *status.Status) bool {
			return len(s.Servers) == 2 && len(s.Jobs) == 1 && s.Jobs[0].Phase == "running" && len(s.Jobs[0].Trainers) == 2 &&
				len(s.Jobs[0].Shards) > 0
		})
		for path, want := range map[string]string{"healthz": "ok", "readyz?verbose": "ok      control: ",
			"metrics": "gradbus_build_info", "": "<html"} {
			if status, body := get(t, at+path); status != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s%s: status %d, %.300q, want %q in it", at, path, status, body, want)
			}
		}
	}
	trainers[1].signal(t, syscall.SIGKILL)
	for _, at := range []string{first, second} {
		shows(at, "who was killed", func(s *status.Status) bool {
			return s.Why.Level == status.Critical && strings.Contains(s.Why.Text, "t1")
		})
	}
}

// Mistakes in what is said of the page are errors of one line.
func TestPageMistakes(t *testing.T) {
	folder := t.TempDir()
	settings := filepath.Join(folder, "ps.yaml")
	if err := os.WriteFile(settings, []byte("shards: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"page", []string{"--http", "localhost"}, []string{`http "localhost"`, "host:port", "off"}},
		{"page for everybody", []string{"--http", "0.0.0.0:0"},
			[]string{"0.0.0.0", "http-token-file", "http-tls-cert", "http-insecure"}},
		{"page's token", []string{"--http", "127.0.0.1:0", "--http-token-file", filepath.Join(folder, "none")},
			[]string{"http", "none"}},
		{"half a certificate", []string{"--http", "127.0.0.1:0", "--http-tls-cert", settings}, []string{"http-tls-key"}},
		{"no certificate", []string{"--http", "127.0.0.1:0", "--http-tls-cert", settings, "--http-tls-key", settings},
			[]string{"http-tls-cert", "ps.yaml"}},
		{"no page", []string{"--http", "off", "--http-port-file", filepath.Join(folder, "page")},
			[]string{"http-port-file", "off"}},
		{"profiles without a page", []string{"--http", "off", "--pprof", "127.0.0.1:0"},
			[]string{"pprof", "off", "http 127.0.0.1:0"}},
		{"profiles for everybody", []string{"--http", "127.0.0.1:0", "--pprof", "0.0.0.0:0"},
			[]string{"pprof", "127.0.0.1:6060"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			start(t, "ps", append([]string{"--listen", "127.0.0.1:0"}, c.args...)...).fails(t, c.want...)
		})
	}
}

// The default port may be taken, one that was asked for may not.
func TestPagePortTaken(t *testing.T) {
	_, _, at := page(t)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	start(t, "ps", "--listen", "127.0.0.1:0", "--http", u.Host).fails(t, u.Host, "taken", "--http off")
}

// The end of a ps does not wait for those who look.
func TestPageEnds(t *testing.T) {
	p, _, at := page(t)
	answer, err := http.Get(at + "api/v1/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadFull(answer.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	p.signal(t, os.Interrupt.(syscall.Signal))
	_, _ = io.Copy(io.Discard, answer.Body)
	if status := p.status(t); status != 0 {
		t.Errorf("status %d: %s", status, p.stderr.String())
	}
}
