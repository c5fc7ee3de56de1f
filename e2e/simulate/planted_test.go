package simulate

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var planted = flag.Bool("planted", false, "plant defects, one after the other, and look whether they are found")

// defects are changes of the source with which jobs must come to a wrong end, or to none, within so many seeds.
var defects = []struct {
	name, file, from, to string
	seeds                int
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
		"		why, ended := \"\", false\n", "		why, ended := \"\", true\n", 400},
	{"less than half of the trainers go on elsewhere", "ps/standing.go",
		"	if !j.ended && 2*here <= j.trainers {", "	if here == 0 {", 400},
	{"steps of rows that a standby is not told of", "shard/pieces.go",
		"	marks, err := state.SplitMarks(nil, r.Last)\n", "	marks, err := state.SplitMarks(nil, make([]int64, len(r.Last)))\n", 60},
	{"stretches of parameters that stay as they were told first", "shard/standby.go",
		"			s.dense[i] = t\n", "			s.dense[i].Steps = t.Steps\n", 60},
	{"a batch under way left out by who takes a place", "ps/takeover.go",
		"	return max(done, c.config.Resume.version())\n", "	return max(done+1, c.config.Resume.version())\n", 40},
}

// hangs is what is said of a seed that has no end.
var hangs = regexp.MustCompile(`TestSimulate/\d+ \((\d+m)?[1-9]\d+s\)`)

// Every planted defect is found.
func TestPlantedDefectsAreFound(t *testing.T) {
	if !*planted {
		t.Skip("takes minutes, and builds the program anew for each defect: -planted")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			path := filepath.Join(root, filepath.FromSlash(d.file))
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), d.from); n != 1 {
				t.Fatalf("%s has what is to be replaced %d times: want it once", d.file, n)
			}
			wrong, list := filepath.Join(t.TempDir(), "wrong.go"), filepath.Join(t.TempDir(), "overlay.json")
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: wrong}})
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{wrong: strings.Replace(string(source), d.from, d.to, 1),
				list: string(overlay)} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			command := exec.Command("go", "test", "-overlay", list, "./e2e/simulate", "-run", "Simulate", "-failfast",
				"-timeout", "3m", "-seeds", fmt.Sprint(d.seeds))
			command.Dir = root
			out, err := command.CombinedOutput()
			text := string(out)
			_, failed, _ := strings.Cut(text, "--- FAIL: TestSimulate/")
			seed, _, _ := strings.Cut(failed, " ")
			switch {
			case err == nil:
				t.Errorf("not found within %d seeds", d.seeds)
			case strings.Contains(text, "[build failed]"):
				t.Errorf("it does not build: %s", text)
			case seed == "" && !hangs.MatchString(text):
				t.Errorf("not found within the time, nor is any seed without an end: %s", text[max(0, len(text)-2000):])
			default:
				t.Logf("found at seed %q", seed)
			}
		})
	}
}
