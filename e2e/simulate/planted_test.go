//go:build !wasip1 && !race

package simulate

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	planted = flag.Bool("planted", false, "plant defects, one after the other, and look whether they are found")
	rare    = flag.Bool("rare", false, "also those that show in one seed of many hundreds")
)

const often = 400 // seeds within which a defect shows that is looked for without -rare

// defects are changes of the source with which jobs must come to a wrong end, or to none, within so many seeds.
var defects = []struct {
	name, file, from, to string
	seeds                uint64
}{
	{"requests counted in place of lanes", "shard/round/dense.go",
		"	r.lanes += int(c.Node.Count)\n", "	r.lanes++\n", 10},
	{"a generation used again", "ps/takeover.go",
		"	c.generation++\n", "	c.generation = max(c.generation, c.config.Generation+1)\n", 400},
	{"a node counted twice after a rise", "shard/round/sparse.go",
		"r.terms[k].contributor != contributor || r.complete(s, k)", "r.terms[k].contributor != contributor", 400},
	{"a parked lookup answered with old rows", "shard/round/line.go",
		"	case b == l.Awaiting(l.done):\n		return true, nil\n", "	case b == l.Awaiting(l.done):\n		return false, nil\n", 5},
	{"rows of a batch under way that have changed", "shard/state/past.go",
		"	t.exchange(t.past.places, t.past.rows)\n	defer t.exchange(t.past.places, t.past.rows)\n", "", 120},
	{"the weights of a batch without samples", "trainer/results.go",
		"h.Weight == 0 && r.shared && (r.average || len(values) == 0)", "h.Weight == 0 && r.shared", 400},
	{"a ps that is out of reach taken for one that has ended", "ps/standby.go",
		"		why, ended := \"\", false\n", "		why, ended := \"\", true\n", 5000},
	{"less than half of the trainers go on elsewhere", "ps/standing.go",
		"	if !j.ended && 2*here <= j.trainers {", "	if here == 0 {", 5000},
	{"steps of rows that a standby is not told of", "shard/pieces.go",
		"state.SplitMarks(nil, r.Last)\n", "state.SplitMarks(nil, make([]int64, len(r.Last)))\n", 60},
	{"stretches of parameters that stay as they were told first", "shard/standby.go",
		"			s.dense[i] = t\n", "			s.dense[i].Steps = t.Steps\n", 60},
	{"a name in a folder that is not brought to the disk", "internal/atomicfile/atomicfile.go",
		"	return syncName(f.path)\n", "	return nil\n", 400},
	{"a file that is not brought to the disk", "internal/atomicfile/atomicfile.go",
		"	err := f.Sync()\n", "	err := error(nil)\n", 400},
	{"parameters of another version for who takes a place", "trainer/share.go",
		"		if x.Keeps(v) {\n", "		if known {\n", 5000},
	{"a batch under way left out by who takes a place", "ps/takeover.go",
		"	return max(done, c.config.Resume.version())\n", "	return max(done+1, c.config.Resume.version())\n", 40},
	{"shards made anew in the middle of a job", "ps/assignments.go",
		"		return nil, errShardsLost\n", "", 5000},
	{"a version taken along that is not whole", "trainer/carry.go",
		"	v, to := s.newest(), s.taken\n", "	v, to := s.newest()+1, s.taken\n", 60},
	{"silence by dates, which may be set", "internal/liveness/liveness.go",
		"		s.since = at\n", "		s.since = at.Round(0)\n", 120},
	{"rows of later batches in a version that is written down", "shard/state/array_copy.go",
		"	c.all = all\n	c.touched = int64(t.places.count())\n",
		"	c.all, t.copying = all, nil\n	c.touched = int64(t.places.count())\n", 60},
	{"rows that trainers have and do not copy", "trainer/shared.go",
		"		all[id] = shared\n", "", 60},
	{"rows that trainers have as they are by now", "trainer/shared.go",
		"		shared.rows = t.Copy(0, true)\n", "		shared.rows = t.Copy(0, true)\n		shared.rows.Close()\n", 400},
	{"parameters that trainers who run ahead do not copy", "trainer/session.go",
		"		params.made = s.copyChunk\n", "", 60},
	{"a version that is asked for when it is over", "ps/checkpoints.go",
		"	next := begun + 3*pace + 2 + schema.Batch(c.config.Job.Ahead)\n", "	next := begun - min(begun, 1+0*pace)\n", 60},
}

// Every planted defect is found. Those that show seldom are looked for by hand, with -rare: that takes an hour each.
func TestPlantedDefectsAreFound(t *testing.T) {
	if !*planted {
		t.Skip("takes minutes, and builds the program anew for each defect: -planted")
	}
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			if d.seeds > often && !*rare {
				t.Skip("shows in one seed of many hundreds: -rare")
			}
			path, err := filepath.Abs(filepath.Join("../..", filepath.FromSlash(d.file)))
			if err != nil {
				t.Fatal(err)
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), d.from); n != 1 {
				t.Fatalf("%s has what is to be replaced %d times: want it once", d.file, n)
			}
			p, err := compile(map[string]string{path: strings.Replace(string(source), d.from, d.to, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			found := p.run(0, d.seeds, true)
			if len(found) == 0 {
				t.Fatalf("not found within %d seeds", d.seeds)
			}
			seed := slices.Min(slices.Collect(maps.Keys(found)))
			_, text, _ := strings.Cut(found[seed], ".go:")
			t.Logf("found at seed %d:%.200s", seed, text)
		})
	}
}
