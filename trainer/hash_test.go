package trainer

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// The first output of SplitMix64 from seed 0 is known from everywhere, as are those of FNV-1a.
func TestHashLiterals(t *testing.T) {
	if got := mix(0x9e3779b97f4a7c15); got != 0xe220a8397b1dcdaf {
		t.Errorf("mix gives %x", got)
	}
	for _, c := range []struct{ id, rows, salt, want uint64 }{
		{0, 1000, 0, 281}, {1, 1000, 0, 617}, {2, 1000, 0, 241}, {math.MaxUint64, 1000, 0, 948}, {1, 1000, 1, 360},
		{42, 1e9, 0, 271388612}, {42, 1e9, 7, 833737628}, {123456789012345, 1 << 40, 0, 43130147776}, {5, 1, 0, 0},
	} {
		if got := HashID(c.id, c.rows, c.salt); got != c.want {
			t.Errorf("HashID(%d, %d, %d) = %d, want %d", c.id, c.rows, c.salt, got, c.want)
		}
	}
	for text, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c,
		"foobar": 0x85944171f73967e8, "grüße": 0x5862e9cb86cd3d18} {
		if got := HashString(text); got != want {
			t.Errorf("HashString(%q) = %x, want %x", text, got, want)
		}
	}
}

// What the documentation lists for other languages is what this one does.
func TestHashDocumented(t *testing.T) {
	data, err := os.ReadFile("../docs/ids.md")
	if err != nil {
		t.Fatal(err)
	}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	ids := regexp.MustCompile(`(?m)^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$`).FindAllStringSubmatch(string(data), -1)
	for _, m := range ids {
		if got := HashID(number(m[1]), number(m[2]), number(m[3])); got != number(m[4]) {
			t.Errorf("docs/ids.md: %s, and HashID gives %d", m[0], got)
		}
	}
	texts := regexp.MustCompile("(?m)^\\| `(.*)` \\| (\\d+) \\|$").FindAllStringSubmatch(string(data), -1)
	for _, m := range texts {
		if got := HashString(m[1]); got != number(m[2]) {
			t.Errorf("docs/ids.md: %s, and HashString gives %d", m[0], got)
		}
	}
	if len(ids) < 6 || len(texts) < 3 {
		t.Errorf("read %d vectors of ids and %d of texts", len(ids), len(texts))
	}
}

// A hundred million keys a second need a nanosecond each; nothing is allocated.
func TestHashAllocatesNothing(t *testing.T) {
	text := strings.Repeat("x", 20)
	if n := testing.AllocsPerRun(100, func() { _ = HashID(HashString(text), 1000, 3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// strayKeys has one id that no row has.
type strayKeys struct {
	*toy
	id uint64
}

func (s strayKeys) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	samples, out := s.toy.Keys(b, l, keys)
	if samples > 0 {
		out[1] = append(out[1], s.id)
	}
	return samples, out
}

// An id outside a table is an error that names table, id and range, wherever a program hands keys over: as rows, as
// bags that a shard pools, of tables that trainers keep, and in a lookup.
func TestIDsOutsideATable(t *testing.T) {
	server := startServer(t, 2)
	words := []string{`table "tags"`, "id 12345678901 is outside [0, ", "HashID"}
	for name, change := range map[string]func(j *schema.Job){
		"rows": func(*schema.Job) {},
		"pooled": func(j *schema.Job) {
			j.Tables[1].Placement, j.Tables[1].Pooling = schema.PlacementTables, schema.PoolingSum
		},
		"kept": func(j *schema.Job) { j.Apply, j.Tables[1].Replicated = schema.ApplyMean, true },
	} {
		job := toyJob("outside-"+name, 1, 1, schema.ApplyUpdate)
		change(job)
		session := joinAll(t, testConfig(t, server), job)[0]
		_, err := session.Lookup(testContext(t), []Query{{Table: 1, Keys: []uint64{1, 12345678901}}})
		checkHas(t, name+", lookup", err, words)
		if name != "pooled" { // the toy has no bags
			checkHas(t, name, session.Run(testContext(t), strayKeys{newToy(t, job), 12345678901}, 1, nil), words)
		}
	}
	tables := newTables(
		[]schema.TableSpec{{Name: "tags", Rows: 5, Dim: 2, Placement: schema.PlacementTables, Pooling: schema.PoolingSum}}, 1)
	tables.used[0] = []uint64{4, 12345678901}
	checkHas(t, "bags", tables.find(), words)
}

func checkHas(t *testing.T, what string, err error, words []string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q in it", what, err, word)
		}
	}
}
