package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/ps/ops/status"
	"gradbus/schema"
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

// Reports in the names of ps that there are not, however many and large, are one line of the page, and what there is
// goes on to be shown.
func TestInventedServersAreNotShown(t *testing.T) {
	t.Parallel()
	_, nats, at := page(t, "--id", "real", "--control-token-file", secretFile(t, "secret-of-all-ps"))
	// whose messages may be large
	conn, err := fabric.DialControl(t.Context(), fabric.Config{URL: nats, Name: "stranger", Token: "secret-of-all-ps"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := &schema.Telemetry{StartedMS: 1, NowMS: 1, EveryMS: 1000, Host: "there",
		Server: &schema.ServerReport{Jobs: []schema.JobReport{{Name: "invented", RunID: 7, Phase: schema.PhaseRunning}}}}
	for range 2000 {
		p.Server.Jobs[0].Members = append(p.Server.Jobs[0].Members,
			schema.MemberReport{Member: "t0", Host: strings.Repeat("x", 50)})
	}
	var s status.Status
	var body string
	poll(t, "one line tells of them", func() bool {
		p.Serial++
		for i := range 64 {
			p.Server.ID = fmt.Sprintf("a-%d", i)
			report, err := schema.EncodeTelemetry(p)
			if err != nil {
				t.Fatal(err)
			}
			frame, err := schema.EncodeHeartbeat(schema.Head{}, report)
			if err == nil {
				err = conn.Send(fabric.At("ps", "p-"+p.Server.ID, fabric.KindHeartbeat, "all"), frame)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // as often as ps speak
		s = status.Status{}
		_, body = get(t, at+"api/v1/status")
		return json.Unmarshal([]byte(body), &s) == nil && len(s.Problems) > 0
	})
	if len(s.Servers) != 1 || s.Servers[0].ID != "real" || len(s.Jobs) != 0 || len(s.Problems) != 1 ||
		!strings.Contains(s.Problems[0].Text, "registry") || len(body) > 16<<10 {
		t.Errorf("%d ps, %d jobs, %d bytes, problems %+v", len(s.Servers), len(s.Jobs), len(body), s.Problems)
	}
}

// A report of a trainer that an unauthenticated client repeats, with the highest number there is, does not silence the
// trainer, which is shown as it goes on.
func TestReplayedReportSilencesNobody(t *testing.T) {
	t.Parallel()
	_, nats, at := page(t)
	conn, err := fabric.DialControl(t.Context(), fabric.Config{URL: nats, Name: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	heard := make(chan fabric.Message, 64)
	if err := conn.Subscribe(fabric.Pattern(fabric.Any, "t0", fabric.KindHeartbeat, "all", false), func(m fabric.Message) {
		if v, err := schema.Verify(m.Data, schema.Limits{}); err != nil || len(v.Body()) == 0 {
			return // without a report
		}
		select {
		case heard <- fabric.NewMessage(m.Text(), slices.Clone(m.Data)):
		default: // one will do
		}
	}); err != nil {
		t.Fatal(err)
	}
	start(t, "trainer", long(nats, index(t, 200))...)
	batch := func(beyond uint64) (shown uint64, ok bool) {
		var s status.Status
		_, body := get(t, at+"api/v1/status")
		if json.Unmarshal([]byte(body), &s) != nil || len(s.Jobs) != 1 || len(s.Jobs[0].Trainers) != 1 {
			return 0, false
		}
		one := &s.Jobs[0].Trainers[0]
		return one.Batch, one.State == "running" && one.Doing != "" && one.AgeMS < 5000 && one.Batch > beyond
	}
	var first uint64
	poll(t, "the trainer is shown", func() (ok bool) { first, ok = batch(0); return ok })
	m := <-heard
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := schema.DecodeTelemetry(&v)
	if err != nil {
		t.Fatal(err)
	}
	report.Serial = math.MaxUint64
	body, err := schema.EncodeTelemetry(report)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := schema.EncodeHeartbeat(v.Head(), body)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := m.Parse()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // one for each second that is shown
		if err := conn.Send(subject, frame); err != nil {
			t.Fatal(err)
		}
		<-heard // what was sent comes back, and the trainer goes on to speak
		<-heard
		poll(t, "the trainer goes on to be shown", func() bool {
			next, ok := batch(first)
			if ok {
				first = next
			}
			return ok
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
