package metrics

import (
	"bytes"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// What is written, letter by letter: labels by name, quotes and line breaks escaped, one line a sample, each subject once.
func TestSheetLiteral(t *testing.T) {
	t.Parallel()
	of := table[float64]{[]string{"m", "b"}, []figure[float64]{
		gauges("x_y", "What it is.", []string{"c", "a"}, func(v float64, r *row) { r.value(v, "3", "1"); r.value(v/2, `"\`, "\n") }),
		counter("x_total", "Number.", func(v float64) float64 { return v }),
		summary("x_seconds", "Time.", func(v float64) (uint64, float64) { return 7, v }),
	}}
	var all tables
	var at []*int
	enter(&all, &at, &of)
	for i := range at {
		*at[i] = i
	}
	s := all.new()
	of.write(s, 1.5, "M", "B")
	of.write(s, 2.5, "M", "B") // again
	of.write(s, -3, `m"`, "")
	var text []byte
	for i := range s.of {
		text = s.appendFamily(text, i)
	}
	want := `# HELP x_y What it is.
# TYPE x_y gauge
x_y{a="1",b="B",c="3",m="M"} 1.5
x_y{a="\n",b="B",c="\"\\",m="M"} 0.75
x_y{a="1",b="",c="3",m="m\""} -3
x_y{a="\n",b="",c="\"\\",m="m\""} -1.5
# HELP x_total Number.
# TYPE x_total counter
x_total{b="B",m="M"} 1.5
x_total{b="",m="m\""} -3
# HELP x_seconds Time.
# TYPE x_seconds summary
x_seconds_sum{b="B",m="M"} 1.5
x_seconds_count{b="B",m="M"} 7
x_seconds_sum{b="",m="m\""} -3
x_seconds_count{b="",m="m\""} 7
`
	if string(text) != want {
		t.Errorf("written as\n%s, want\n%s", text, want)
	}
	all.done(s)
	if again := all.new(); len(again.appendFamily(nil, 0)) != 0 || len(again.seen) != 0 {
		t.Error("a used sheet is not empty")
	}
}

// Numbers are written as client_golang's own writer writes them.
func TestAppendValue(t *testing.T) {
	t.Parallel()
	name, kind := "x", dto.MetricType_GAUGE
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -1, 7, 0.1, -0.1, 1e-5, 123456, 999999, 1e6, 1234567, -1e6, -999999, 1e21, 1 << 53, 1e300, math.MaxFloat64,
		math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1), math.Inf(-1), 1700000000.123, 99999.5} {
		var b bytes.Buffer
		if _, err := expfmt.MetricFamilyToText(&b, &dto.MetricFamily{Name: &name, Type: &kind, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &v}}}}); err != nil {
			t.Fatal(err)
		}
		if want := "# TYPE x gauge\nx " + string(appendValue(nil, v)) + "\n"; b.String() != want {
			t.Errorf("%v is written as %q, want %q", v, want, &b)
		}
	}
}

// Scrapes beyond scrapesMax at once are refused, and the next ones are not.
func TestScrapesAtOnce(t *testing.T) {
	t.Parallel()
	_, e := full(1, 1)
	ask := func() (int, string) {
		answer := httptest.NewRecorder()
		e.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		return answer.Code, answer.Body.String()
	}
	for range scrapesMax {
		e.turns <- struct{}{}
	}
	if code, text := ask(); code != 503 || !strings.Contains(text, fmt.Sprint(scrapesMax)) {
		t.Errorf("answered %d, %s", code, text)
	}
	<-e.turns
	if code, _ := ask(); code != 200 {
		t.Errorf("then answered %d", code)
	}
}
