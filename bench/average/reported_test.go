package average

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/bench/harness"
	"gradbus/schema"
)

// A run at servers that were running before ends with their tables too: of as many rounds as where it starts its own,
// of the measured runs alone.
func TestServersElsewhere(t *testing.T) {
	own := small(t, 2, "rpc", true)
	own.Servers, own.FirstBucketBytes, own.BucketBytes = 2, 4096, 4096
	rounds := map[string]int{}
	for name, values := range allOf(measure(t, own).servers) {
		rounds[name] = len(values)
	}
	ctx := testContext(t)
	servers := own.Flags.Harness("servers", map[string]harness.Role{harness.RoleServer: harness.Server}, nil, nil)
	defer func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	}()
	handles, url, err := servers.StartServers(ctx, 2, harness.ServerSettings{})
	if err != nil {
		t.Fatal(err)
	}
	joined := own
	joined.Servers, joined.Runs, joined.CSV = DefaultConfig().Servers, 2, t.TempDir()
	joined.Way.Server = url
	var out bytes.Buffer
	if err := Run(ctx, joined, &out, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"metrics for server=0 (ms)", "metrics for server=1 (ms)",
		"metrics for all servers (ms)", "servers 2\n", "(means)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in what was printed:\n%s", want, out.String())
		}
	}
	r := measure(t, joined)
	all := allReported(r.reported)
	for name, n := range rounds {
		x := all.sums[name]
		if int(x.n) != 2*n || x.least > x.most || !(x.most > 0) || x.total > x.n*x.most || x.squares > x.total*x.most {
			t.Errorf("%s: %+v, want twice the %d rounds of own servers", name, x, n)
		}
	}
	if r.Servers != 2 || r.BatchMS == nil || *r.BatchMS < *r.StragglerMS || r.ArrivalMS == nil || *r.AverageMS <= 0 {
		t.Errorf("figures %+v", r)
	}
	for _, name := range []string{"server_0.csv", "server_1.csv", "server_all.csv"} {
		if _, err := os.Stat(filepath.Join(joined.CSV, name)); err != nil {
			t.Error(err)
		}
	}
	if err := servers.StopServers(ctx, handles...); err != nil {
		t.Error(err)
	}
}

// Sums give the row that their samples give.
func TestRowsOfSums(t *testing.T) {
	samples, s := []float64{1, 2, 4, 9}, sums{}
	for _, part := range [][]float64{{1, 4}, {2, 9}} {
		total, squares := 0.0, 0.0
		for _, v := range part {
			total, squares = total+v/1000, squares+v*v/1e6
		}
		s.add("a", 2, schema.Real(total), schema.Real(squares), schema.Real(part[0]/1000), schema.Real(part[1]/1000))
	}
	s.add("one", 1, 0.002, 0.000004, 0.002, 0.002)
	got, want := s.table(), metrics{"a": samples, "one": {2}}.table()
	for i := range want {
		for k, w := range want[i].numbers() {
			if g := got[i].numbers()[k]; math.Abs(g-w) > 1e-9 || math.IsNaN(g) != math.IsNaN(w) {
				t.Errorf("%s: column %d is %v, want %v", want[i].Name, k, g, w)
			}
		}
	}
}
