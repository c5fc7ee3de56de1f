package prometheus

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"gradbus/docs"
)

// What promtool thinks of the configuration, the alerts and their cases.
func TestConfigurationAndAlerts(t *testing.T) {
	t.Parallel()
	wanted(t)
	promtool(t, deploy+"prometheus", nil, "check", "config", "prometheus.yml")
	promtool(t, deploy+"prometheus", nil, "check", "rules", "alerts.yml")
	promtool(t, deploy+"prometheus", nil, "test", "rules", "alerts_test.yml")
}

// expression is one of a panel or a runbook, with what it stands in.
type expression struct{ where, text string }

// inPanels are the expressions of the dashboard, with values for its variables.
func inPanels(t *testing.T) (all []expression) {
	t.Helper()
	data, err := os.ReadFile(deploy + "grafana/gradbus.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$job_name", ".*", "$instance", ".*", "$member", ".*")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, expression{p.Title, variables.Replace(target.Expr)})
		}
	}
	for _, a := range dashboard.Annotations.List {
		all = append(all, expression{a.Name, variables.Replace(a.Expr)})
	}
	if len(all) < 40 {
		t.Fatalf("%d expressions in the dashboard", len(all))
	}
	return all
}

// inRunbooks are the queries that runbooks tell people to make.
func inRunbooks() (all []expression) {
	query := regexp.MustCompile("`([^`\n]*gradbus_[^`\n]*)`")
	for _, q := range query.FindAllStringSubmatch(docs.Runbooks(), -1) {
		all = append(all, expression{"docs/runbooks.md", q[1]})
	}
	return all
}

// Prometheus' own parser takes every expression of the dashboard and of the runbooks.
func TestExpressionsParse(t *testing.T) {
	t.Parallel()
	wanted(t)
	folder := t.TempDir()
	var b strings.Builder
	b.WriteString("groups:\n  - name: panels\n    rules:\n")
	for i, e := range append(inPanels(t), inRunbooks()...) {
		text, err := json.Marshal(e.text)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "      - record: panel:%d\n        expr: %s\n", i, text)
	}
	if err := os.WriteFile(filepath.Join(folder, "panels.yml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, folder, nil, "check", "rules", "panels.yml")
}

// A real job on two ps, scraped by a real Prometheus: everything is counted once, every panel, alert and query of a
// runbook is evaluated, an injected fault of a GPU is an alert, and a trainer that is stopped fires the one that names
// it.
func TestRealJob(t *testing.T) {
	t.Parallel()
	wanted(t)
	peers := filepath.Join(t.TempDir(), "peers")
	if err := os.WriteFile(peers, []byte("secret-of-all-ps\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, nats, page := parameterServer(t, "--control-token-file", peers, "--id", "left", "--inject",
		"gpu=0,xid=79,after=1s")
	second, _, other := parameterServer(t, "--control-token-file", peers, "--id", "right", "--nats", nats)
	p := prometheus(t, page, other)
	poll(t, "both ps are there", func() bool {
		return p.has(t, `count(up{job="gradbus"} == 1) == 2 and count(gradbus_ps_info) == 2`)
	}, first, second, p.process)
	trainers := make([]*process, 2)
	for i := range trainers {
		trainers[i] = own(t, "trainer", "packages", "--server", nats, "--id", fmt.Sprintf("t%d", i), "--trainers", "2",
			"--input", "synthetic", "--placement", "rows", "--epochs", "100000")
	}
	alive := []*process{first, second, p.process, trainers[0], trainers[1]}

	for _, expr := range []string{
		// Everything is there once, whichever ps tells of it.
		`count(gradbus_job_phase{job_name="packages", phase="running"} == 1) == 1`,
		`count(gradbus_trainer_batches_total > 10) == 2`,
		`count(count by (instance) (gradbus_shard_version > 0)) == 2`,
		`count(gradbus_shard_version > 0) == 4`,
		`job_name:gradbus_trainer_samples:rate1m > 0`,
		`job_name:gradbus_job_training:bool == 1`,
		`job_name:gradbus_trainer_sample_loss:mean1m > 0`,
		`sum(gradbus_trainer_network_bytes_total{direction="sent"}) > 0`,
		`gradbus_problem == 0`,
		`gradbus_problem_info{code="gpu-unhealthy"} == 1`,
		`ALERTS{alertname=~"Gradbus(Idle)?GPUUnhealthy", gpu!="", host!=""}`,
	} {
		poll(t, expr, func() bool { return p.has(t, expr) }, alive...)
	}
	liveMetrics(t, page, other)
	liveExpressions(t, p)
	liveRules(t, p)
	stoppedTrainer(t, p, trainers[1], alive)
	logScrapes(t, p)
}

// parameterServer starts a ps, and says where it and its page are.
func parameterServer(t *testing.T, more ...string) (ps *process, nats, page string) {
	t.Helper()
	folder := t.TempDir()
	natsFile, pageFile := filepath.Join(folder, "nats"), filepath.Join(folder, "page")
	ps = own(t, "ps", append([]string{"--listen", "127.0.0.1:0", "--port-file", natsFile, "--http", "127.0.0.1:0",
		"--http-port-file", pageFile, "--deadline", "10m"}, more...)...)
	return ps, line(t, natsFile, ps), line(t, pageFile, ps)
}

// liveMetrics holds scrapes of all pages, either of which tells of the job, against promtool's linter and the list of
// what we say that we export.
func liveMetrics(t *testing.T, pages ...string) {
	t.Helper()
	golden, err := os.ReadFile("../../ps/ops/metrics/families.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed, seen := map[string]bool{}, map[string]bool{}
	for l := range strings.Lines(string(golden)) {
		name, rest, _ := strings.Cut(l, " ")
		kind, _, _ := strings.Cut(rest, " ")
		listed[name+" "+kind] = true
	}
	for _, page := range pages {
		answer, err := http.Get(strings.TrimSuffix(page, "/") + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		promtool(t, ".", strings.NewReader(string(body)), "check", "metrics")
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (gradbus_\S+ \S+)$`).FindAllStringSubmatch(string(body), -1) {
			if seen[m[1]] = true; !listed[m[1]] {
				t.Errorf("%s is exported, and is not in the list", m[1])
			}
		}
	}
	if len(seen) < 80 {
		t.Errorf("%d families of ours in live scrapes", len(seen))
	}
}

// filled are panels that have something to show of any job.
var filled = []string{"Critical problems", "ps that answer", "Jobs that run", "Jobs", "Loss", "Samples per second",
	"Batches per second", "Where the time goes",
	"Between trainers and shards", "Batches between the first and the last trainer", "Silent for", "Computing", "Processors", "Memory of trainers",
	"Who and where", "Load", "Rounds per second",
	"Waiting at the shard", "Versions between the first and the last shard", "Processors of ps", "Memory of ps", "Frames",
	"Cost of looking",
	"In kernels", "Kernels' memory traffic", "Gradient norm", "Round-trip", "Problems", "State", "Utilisation",
	"Temperature", "Power", "GPU memory", "Clocks", "XID events"}

// liveExpressions evaluates what panels and runbooks ask.
func liveExpressions(t *testing.T, p *server) {
	t.Helper()
	all := append(inPanels(t), inRunbooks()...)
	shows := map[string]bool{}
	look := func(e expression) {
		found, err := p.query(t, e.text)
		if err != nil {
			t.Fatalf("%s: %s: %v", e.where, e.text, err)
		}
		shows[e.where] = shows[e.where] || len(found) > 0
	}
	for _, e := range all {
		look(e)
	}
	for _, title := range filled { // where a busy machine has not scraped twice yet, it comes
		poll(t, fmt.Sprintf("panel %q shows something of a job that runs", title), func() bool {
			for _, e := range all {
				if e.where == title && !shows[title] {
					look(e)
				}
			}
			return shows[title]
		}, p.process)
	}
}

// liveRules wants every rule evaluated without an error, and no alert of a job that runs well.
func liveRules(t *testing.T, p *server) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State, Type string }
		}
	}
	healthy := func() bool {
		data.Groups = nil
		if err := p.ask(t, "/api/v1/rules", &data); err != nil {
			t.Fatal(err)
		}
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.Health != "ok" {
					return false // not evaluated yet
				}
			}
		}
		return len(data.Groups) > 0
	}
	alerts := 0
	// A machine that is busy with other things may give a reason for one, which goes by.
	poll(t, "all rules are evaluated, and no alert fires for a job that runs well", func() bool {
		if alerts = 0; !healthy() {
			return false
		}
		quiet := true
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.Type != "alerting" {
					continue
				}
				alerts++
				if r.State == "firing" && !strings.Contains(r.Name, "GPU") { // whose fault is injected
					quiet = false
				}
			}
		}
		return quiet
	}, p.process)
	if alerts < 20 {
		t.Errorf("%d alerts are loaded", alerts)
	}
}

// stoppedTrainer stops a trainer until the alert that names it fires, and lets it go on until it ends.
func stoppedTrainer(t *testing.T, p *server, trainer *process, alive []*process) {
	t.Helper()
	if err := trainer.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	firing := `ALERTS{alertname="GradbusTrainerSilent", alertstate="firing", job_name="packages", member="t1", severity="critical"}`
	poll(t, firing, func() bool { return p.has(t, firing) }, alive...)
	if wrong := `ALERTS{alertname="GradbusTrainerSilent", alertstate="firing", member="t0"}`; p.has(t, wrong) {
		t.Errorf("%s: the trainer that waits is blamed", wrong)
	}
	named := `gradbus_problem_info{job_name="packages", member="t1"}`
	poll(t, named, func() bool { return p.has(t, named) }, alive...)
	if err := trainer.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	poll(t, "the alert ends", func() bool { return !p.has(t, firing) }, alive...)
}

// logScrapes tells what scrapes cost.
func logScrapes(t *testing.T, p *server) {
	t.Helper()
	for _, expr := range []string{`max_over_time(scrape_duration_seconds{job="gradbus"}[10m])`,
		`scrape_samples_scraped{job="gradbus"}`,
		`gradbus_ops_scrape_seconds_sum / gradbus_ops_scrape_seconds_count`} {
		found, err := p.query(t, expr)
		if err != nil || len(found) == 0 {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		t.Logf("%s = %v", expr, found[0].Value[1])
	}
}
