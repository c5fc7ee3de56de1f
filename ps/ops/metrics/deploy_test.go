package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"gradbus/docs"
	"gradbus/ps/ops/status"
)

const deploy = "../../../deploy/"

// rule is a rule of alerts.yml.
type rule struct {
	Record, Alert, Expr string
	For                 string
	KeepFiring          string `yaml:"keep_firing_for"`
	Labels              map[string]string
	Annotations         map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	readYAML(t, deploy+"prometheus/alerts.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 25 {
		t.Fatalf("%d rules only", len(all))
	}
	return all
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// What may stand in an expression besides names of metrics. promtool knows the whole language; this finds names that do
// not exist where it is not installed.
var (
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'`)
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	selectors = regexp.MustCompile(`\{([^{}]*)\}`)
	duration  = regexp.MustCompile(`\[[^\]]*\]|\boffset\s+\S+|\$__[a-z_]+`)
	word      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	matcher   = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)`)
	language  = strings.Fields(
		`and or unless bool sum min max avg count topk quantile rate increase changes predict_linear avg_over_time
		max_over_time clamp_max clamp_min label_replace time vector deriv count by without on ignoring group_left group_right sort_desc`)
)

// metricsOf are the names of metrics in an expression of Prometheus, with the labels that its selectors ask for.
func metricsOf(expr string) (names, labels []string) {
	text := quoted.ReplaceAllString(expr, `""`)
	for _, braces := range selectors.FindAllStringSubmatch(text, -1) {
		for _, m := range matcher.FindAllStringSubmatch(braces[1], -1) {
			labels = append(labels, m[1])
		}
	}
	for _, list := range grouping.FindAllString(text, -1) {
		_, inner, _ := strings.Cut(strings.TrimSuffix(list, ")"), "(")
		labels = append(labels, word.FindAllString(inner, -1)...)
	}
	for _, strip := range []*regexp.Regexp{selectors, grouping, duration} {
		text = strip.ReplaceAllString(text, " ")
	}
	for _, w := range word.FindAllString(text, -1) {
		if !slices.Contains(language, w) && !slices.Contains(names, w) {
			names = append(names, w)
		}
	}
	return names, labels
}

// exported are the names of series that our families and recording rules give, and all their labels.
func exported(t *testing.T) (names, labels map[string]bool) {
	names, labels = map[string]bool{"up": true, "ALERTS": true},
		map[string]bool{"job": true, "instance": true, "alertstate": true, "alertname": true, "severity": true}
	for _, f := range listed() {
		names[f.name] = true
		if f.kind == "summary" {
			names[f.name+"_sum"], names[f.name+"_count"] = true, true
		}
		for _, l := range f.labels {
			labels[l] = true
		}
	}
	process, err := everything(1, 1).exporter().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range process {
		names[f.GetName()] = true
	}
	for _, r := range rules(t) {
		names[r.Record] = true
	}
	return names, labels
}

// checkExpression fails where an expression names what nobody exports.
func checkExpression(t *testing.T, where, expr string, names, labels map[string]bool) {
	t.Helper()
	found, asked := metricsOf(expr)
	if len(found) == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	for _, n := range found {
		if !names[n] {
			t.Errorf("%s: nobody exports %s", where, n)
		}
	}
	for _, l := range asked {
		if !labels[l] {
			t.Errorf("%s: no metric has a label %s", where, l)
		}
	}
}

func TestAlerts(t *testing.T) {
	names, labels := exported(t)
	seen := map[string]bool{}
	for _, r := range rules(t) {
		name := r.Alert + r.Record
		checkExpression(t, name, r.Expr, names, labels)
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if r.Alert == "" {
			continue
		}
		if !strings.HasPrefix(r.Alert, "Gradbus") || r.Labels["severity"] != "critical" && r.Labels["severity"] != "warning" {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		for _, what := range []string{"summary", "description", "runbook_url"} {
			if r.Annotations[what] == "" {
				t.Errorf("%s has no %s", r.Alert, what)
			}
		}
		for _, d := range []string{r.For, r.KeepFiring} {
			if _, err := time.ParseDuration(d); d != "" && err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
		}
		// where prometheus.yml looks for a ps
		name, ok := strings.CutPrefix(r.Annotations["runbook_url"], "http://127.0.0.1:8080/runbooks#")
		if !ok {
			t.Errorf("%s: runbook %q", r.Alert, r.Annotations["runbook_url"])
		}
		if !strings.Contains(name, "{{") {
			if _, ok := docs.Runbook(name); !ok {
				t.Errorf("%s: no runbook %s", r.Alert, name)
			}
		}
	}
}

// Every alert has a case in which it fires and one in which it does not.
func TestAlertsHaveCases(t *testing.T) {
	var file struct {
		Tests []struct {
			Name  string
			Cases []struct {
				Name   string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, deploy+"prometheus/alerts_test.yml", &file)
	fires, quiet, healthy := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			switch {
			case test.Name == "nothing is wrong":
				healthy[c.Name] = len(c.Alerts) == 0
			case len(c.Alerts) > 0:
				fires[c.Name] = true
			default:
				quiet[c.Name] = true
			}
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !quiet[r.Alert] || !healthy[r.Alert]) {
			t.Errorf("%s: fires %v, does not %v, not in a healthy cluster %v: want all three", r.Alert, fires[r.Alert],
				quiet[r.Alert], healthy[r.Alert])
		}
	}
}

// parts of a runbook.
func parts() []string {
	return []string{"### What it means", "### What to look at", "### What to do", "### When it is a false alarm"}
}

// Every problem that the page names has a runbook, and every runbook says what one must.
func TestRunbooks(t *testing.T) {
	names, labels := exported(t)
	own := ""
	for _, r := range rules(t) {
		if r.Alert != "" {
			own += r.Annotations["runbook_url"] + "\n" + r.Expr + "\n"
		}
	}
	for _, c := range status.Codes() {
		if _, ok := docs.Runbook(c.Runbook); !ok {
			t.Errorf("problem %s has no runbook", c.Code)
		}
		excluded := regexp.MustCompile(`[|"]` + c.Code + `[|"]`).MatchString(own)
		alerted := strings.Contains(own, "#"+c.Runbook+"\n")
		if c.Level != status.Info && excluded != alerted {
			t.Errorf("problem %s: an alert of its own %v, left out of GradbusProblem %v: want one alert for it", c.Code,
				alerted, excluded)
		}
	}
	sections := strings.Split(docs.Runbooks(), "\n## ")
	list, sections := sections[0], sections[1:]
	if len(sections) < 30 {
		t.Fatalf("%d runbooks", len(sections))
	}
	query := regexp.MustCompile("`([^`\n]*gradbus_[^`\n]*)`")
	for i, text := range sections {
		code, _, _ := strings.Cut(text, "\n")
		if i > 0 && code < sections[i-1] || !strings.Contains(list, "\n- ["+code+"](#"+code+"): ") {
			t.Errorf("%s is not in its place, or not in the list", code)
		}
		if got, ok := docs.Runbook(code); !ok || strings.TrimSpace(got) != "## "+strings.TrimSpace(text) {
			t.Errorf("%s is %q", code, got)
		}
		at := 0
		for _, part := range parts() {
			i := strings.Index(text, part+"\n")
			if i < at {
				t.Errorf("%s: no %q, or not in its place", code, part)
			}
			at = max(at, i)
		}
		if lines := strings.Count(text, "\n"); lines > 45 {
			t.Errorf("%s has %d lines: nobody reads that at night", code, lines)
		}
		for _, q := range query.FindAllStringSubmatch(text, -1) {
			checkExpression(t, code, q[1], names, labels)
		}
	}
}

// What documents say of metrics is true.
func TestDocumentsNameMetrics(t *testing.T) {
	names, _ := exported(t)
	files, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`\bgradbus_[a-z0-9_]*[a-z0-9]\b`)
	header, err := os.ReadFile("../../../capi/gradbus.h")
	if err != nil {
		t.Fatal(err)
	}
	inC := word.FindAllString(string(header), -1)
	found := 0
	for _, path := range append(files, deploy+"README.md", "../../../README.md") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range word.FindAllString(string(data), -1) {
			if slices.Contains(inC, name) || filepath.Base(path) == "runbooks.md" { // TestRunbooks has its expressions
				continue
			}
			found++
			if !names[name] {
				t.Errorf("%s: nobody exports %s", path, name)
			}
		}
	}
	if found < 100 {
		t.Errorf("%d names of metrics only in all documents", found)
	}
}

// dashboard is what is looked at of deploy/grafana/gradbus.json.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
			Definition string
		}
	}
	Panels []panel
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource *struct{ Type, UID string }
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct {
		Expr, RefID string
		Datasource  *struct{ Type, UID string }
	}
	Panels []panel // of a collapsed row
}

// panels are all that are not rows.
func (d *dashboard) panels() (all []panel) {
	for _, p := range d.Panels {
		if p.Type != "row" {
			all = append(all, p)
		}
		all = append(all, p.Panels...)
	}
	return all
}

// Queries that have a series for each trainer or shard, and what leaves few of them.
var (
	perMember = regexp.MustCompile(`gradbus_(trainer|shard)_`)
	bounded   = regexp.MustCompile(`^topk\(|by \((job_name|phase)\)|> 0$|^job_name:`)
)

func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(deploy + "grafana/gradbus.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	names, labels := exported(t)
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
		if v.Type == "query" {
			checkExpression(t, "variable "+v.Name,
				strings.TrimPrefix(v.Definition, "label_values")[1:strings.LastIndex(v.Definition, ",")-len("label_values")],
				names, labels)
		}
	}
	if d.UID == "" || d.SchemaVersion < 39 || variables["datasource"] != "datasource" ||
		variables["job_name"] != "query" || variables["instance"] != "query" || variables["member"] != "query" ||
		variables["page"] != "textbox" {
		t.Errorf("uid %q, schema version %d, variables %v", d.UID, d.SchemaVersion, variables)
	}
	for _, name := range regexp.MustCompile(`\$\{?([a-z_]+)`).FindAllStringSubmatch(string(data), -1) {
		if variables[name[1]] == "" && !strings.HasPrefix(name[1], "__") {
			t.Errorf("$%s is no variable", name[1])
		}
	}
	ids, titles := map[int]bool{}, map[string]bool{}
	used := map[string]bool{}
	for _, p := range d.panels() {
		if ids[p.ID] || p.Title == "" || titles[p.Title] {
			t.Errorf("panel %d %q: an id or a title twice, or none", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if p.GridPos.W < 1 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H < 1 {
			t.Errorf("panel %q: at %+v", p.Title, p.GridPos)
		}
		if p.Type != "text" && (p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0) {
			t.Errorf("panel %q: want the datasource ${datasource} and a query", p.Title)
		}
		for _, target := range p.Targets {
			checkExpression(t, fmt.Sprintf("panel %q", p.Title), target.Expr, names, labels)
			if perMember.MatchString(target.Expr) && !bounded.MatchString(target.Expr) && p.Type == "timeseries" {
				t.Errorf("panel %q: a line for each trainer or shard of ten jobs, want topk or by (job_name): %s", p.Title,
					target.Expr)
			}
			found, _ := metricsOf(target.Expr)
			for _, n := range found {
				used[n] = true
			}
		}
	}
	if len(ids) < 20 {
		t.Errorf("%d panels only", len(ids))
	}
	overlap(t, d)
}

// overlap fails where two panels cover each other.
func overlap(t *testing.T, d dashboard) {
	t.Helper()
	for i, a := range d.Panels {
		for _, b := range d.Panels[:i] {
			p, q := a.GridPos, b.GridPos
			if p.X < q.X+q.W && q.X < p.X+p.W && p.Y < q.Y+q.H && q.Y < p.Y+p.H {
				t.Errorf("panels %q and %q cover each other", a.Title, b.Title)
			}
		}
	}
}

// The check of expressions finds what it is for.
func TestExpressionCheckFinds(t *testing.T) {
	names, labels := metricsOf(
		`sum by (job_name) (rate(gradbus_a_total{member="t1", reason!~"x|y"}[5m] offset 1h)) > 0.5 and on (host) max(b:c:d) == bool 1`)
	if fmt.Sprint(names) != "[gradbus_a_total b:c:d]" || fmt.Sprint(labels) != "[member reason job_name host]" {
		t.Errorf("found metrics %q, labels %q", names, labels)
	}
}
