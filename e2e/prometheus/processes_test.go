package prometheus

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/e2e/commands"
	"gradbus/internal/testkit"
)

var needPrometheus = flag.Bool("need-prometheus", false,
	"run the tests, rather than skip them, and fail where there is no prometheus")

// guard bounds every wait: reaching it means that what is waited for will never come.
const guard = 4 * time.Minute

// deploy is what is tested.
const deploy = "../../deploy/"

// wanted skips the test where nobody asked for it.
func wanted(t *testing.T) {
	t.Helper()
	if !*needPrometheus {
		t.Skip("a Prometheus is started with -need-prometheus only, as make test-all does")
	}
	for _, name := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("there is no %s here: run scripts/deps.sh metrics", name)
		}
	}
}

// built is where the commands are.
var built = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "gradbus-prometheus-")
	if err != nil {
		return "", err
	}
	return folder, commands.Build(folder, "gradbus/cmd/ps", "gradbus/cmd/trainer")
})

func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
	if *needPrometheus {
		if folder, _ := built(); folder != "" {
			_ = os.RemoveAll(folder)
		}
	}
	os.Exit(status)
}

// process is a running command, gone when its test ends.
type process struct {
	*exec.Cmd
	done <-chan struct{}
	out  testkit.Text
}

func start(t *testing.T, command string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(command, args...)}
	p.Stdout, p.Stderr = &p.out, &p.out
	p.done = commands.Run(t, p.Cmd, commands.Terminate, p.out.String)
	return p
}

// own starts one of our commands.
func own(t *testing.T, name string, args ...string) *process {
	t.Helper()
	folder, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, filepath.Join(folder, name), args...)
}

// poll waits until the condition holds, while the processes live.
func poll(t *testing.T, what string, holds func() bool, alive ...*process) {
	t.Helper()
	for deadline := time.Now().Add(guard); !holds(); time.Sleep(50 * time.Millisecond) {
		for _, p := range alive {
			select {
			case <-p.done:
				t.Fatalf("%s: %s has ended", what, p.Path)
			default:
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, guard)
		}
	}
}

// line waits for a file with one line, and returns it.
func line(t *testing.T, path string, of *process) (text string) {
	t.Helper()
	poll(t, path, func() bool {
		data, err := os.ReadFile(path)
		text = strings.TrimSpace(string(data))
		return err == nil && text != ""
	}, of)
	return text
}

// promtool runs it in a folder with standard input, and wants it to be content.
func promtool(t *testing.T, folder string, input io.Reader, args ...string) {
	t.Helper()
	c := exec.Command("promtool", args...)
	c.Dir, c.Stdin = folder, input
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// server is a Prometheus.
type server struct {
	*process
	url string
}

var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// prometheus starts one with our configuration, which scrapes these pages every second instead of every five.
func prometheus(t *testing.T, pages ...string) *server {
	t.Helper()
	folder := t.TempDir()
	var targets []string
	for _, page := range pages {
		targets = append(targets, strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/"))
	}
	for _, name := range []string{"prometheus.yml", "alerts.yml"} {
		data, err := os.ReadFile(deploy + "prometheus/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "- 127.0.0.1:8080", "- "+strings.Join(targets, "\n          - "))
		text = regexp.MustCompile(`(scrape|evaluation)_interval: 5s`).ReplaceAllString(text, "${1}_interval: 1s")
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{process: start(t, "prometheus", "--config.file="+filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address=127.0.0.1:0")}
	poll(t, "prometheus listens", func() bool {
		m := listening.FindStringSubmatch(s.out.String())
		if m != nil {
			s.url = "http://" + m[1]
		}
		return m != nil
	}, s.process)
	poll(t, "prometheus is ready", func() bool {
		answer, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}, s.process)
	return s
}

// ask asks the API, and gives what its data is.
func (s *server) ask(t *testing.T, path string, into any) error {
	t.Helper()
	answer, err := http.Get(s.url + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var body struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return err
	}
	if body.Status != "success" {
		return fmt.Errorf("%s", body.Error)
	}
	return json.Unmarshal(body.Data, into)
}

// sample is one result of an expression.
type sample struct {
	Metric map[string]string
	Value  [2]any // time, text
}

// query evaluates an expression now.
func (s *server) query(t *testing.T, expr string) ([]sample, error) {
	t.Helper()
	var data struct {
		Result []sample
	}
	err := s.ask(t, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result, err
}

// has reports whether an expression has a result.
func (s *server) has(t *testing.T, expr string) bool {
	t.Helper()
	found, err := s.query(t, expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return len(found) > 0
}
