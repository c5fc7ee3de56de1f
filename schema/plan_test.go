package schema

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// plansFile is what every legal combination of a manifest's mode words resolves to, and why others are refused.
const plansFile = "testdata/plans.txt"

// combinations are manifests with every combination of mode words, each with its words.
func combinations(yield func(words string, j *Job)) {
	tables := map[string]TableSpec{
		"none": {}, "rows": {}, "columns": {Placement: PlacementColumns, Pooling: PoolingSum},
		"whole":      {Placement: PlacementTables, Pooling: PoolingMean},
		"replicated": {Replicated: true}, "replicated:shards": {Replicated: true, Reduce: ReduceShards},
		"replicated:trainers": {Replicated: true, Reduce: ReduceTrainers}, "columns unpooled": {Placement: PlacementColumns},
		"rows:trainers": {Reduce: ReduceTrainers}, "replicated columns": {Replicated: true, Placement: PlacementColumns,
			Pooling: PoolingSum},
	}
	each(func(w []string) {
		ahead := map[string]int{"bounded": 2}[w[0]]
		j := (&Job{Name: "plan", Trainers: 3, Lanes: 3, Consistency: w[0], Ahead: ahead, Apply: w[1], Reduce: w[2], Sum: w[3],
			TableConsistency: w[5],
			Wire: Wire{Gradients: strings.TrimSuffix(w[6], "+feedback"),
				ErrorFeedback: strings.HasSuffix(w[6], "+feedback")},
			Parameters: []Parameter{{Name: "w", Shape: []int{1}, Init: Zeros()}}}).WithDefaults()
		if w[0] == ConsistencyGrouped {
			j.Group = 2
		}
		if w[4] != "none" {
			t := tables[w[4]]
			t.Name, t.Rows, t.Dim, t.Partitions, t.Init = "t", 8, 2, 2, Zeros()
			j.Tables = []TableSpec{t}
		}
		j.Policy = PolicyFail
		yield(strings.Join(slices.DeleteFunc(slices.Clone(w), func(s string) bool { return s == "" }), " "), j)
	}, []string{"sync", "bounded", "async", "grouped", "eager"}, []string{"update", "mean"},
		[]string{"shards", "trainers"}, []string{SumFused, SumClose},
		sortedKeys(tables), []string{"", "async"},
		[]string{"float32", "bfloat16", "float16", "float32+feedback", "bfloat16+feedback", "float16+feedback"})
}

// each calls yield with one word of every list, in all combinations.
func each(yield func([]string), lists ...[]string) {
	words := make([]string, len(lists))
	var at func(int)
	at = func(i int) {
		if i == len(lists) {
			yield(words)
			return
		}
		for _, words[i] = range lists[i] {
			at(i + 1)
		}
	}
	at(0)
}

// Every legal combination of mode words has a plan of its own with its capability, and each kind of illegal one its
// reason: what is wrong with which field.
func TestPlansOfAllCombinations(t *testing.T) {
	var legal []string
	refused := map[string]string{} // by field and reason, the first combination that it is for
	plans := map[string]string{}
	combinations(func(words string, j *Job) {
		var wrong JobErrors
		if err := j.Validate(); errors.As(err, &wrong) {
			for _, w := range wrong {
				if why := w.Error(); len(wrong) == 1 && refused[why] == "" {
					refused[why] = words
				}
			}
			return
		}
		plan := j.Plan().String()
		text, err := j.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := plans[plan]; taken {
			if other != string(text) {
				t.Errorf("one plan, %s, for\n%s\nand\n%s", plan, text, other)
			}
			return
		}
		plans[plan] = string(text)
		legal = append(legal, fmt.Sprintf("%s: %s: %v", words, plan, j.Plan().Capability()))
	})
	text := strings.Join(legal, "\n") + "\n\n"
	for _, why := range sortedKeys(refused) {
		text += fmt.Sprintf("%s: %s\n", refused[why], why)
	}
	if *rewrite {
		if err := os.WriteFile(plansFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(plansFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Errorf("%s is not what plans are; if that is meant, look at the difference after go test ./schema -run "+
			"TestPlans -rewrite", plansFile)
	}
}

// A job restarts after the loss of a shard exactly if a version of what its shards have can be saved, whatever its
// optimizers and modules are.
func TestCapabilityWithOptimizersAndModules(t *testing.T) {
	modules := []ModuleSpec{{Name: "m", In: []int{2}, Samples: 1, Contexts: 1,
		Module: `{"layers":[{"kind":"linear","out":2}]}`}}
	changes := map[string]func(*Job){
		"plain":         func(*Job) {},
		"exact":         func(j *Job) { j.Optimizer.Exact, j.Optimizer.Momentum = true, 0.5 },
		"modules":       func(j *Job) { j.Modules = modules },
		"modules alone": func(j *Job) { j.Modules, j.Parameters, j.Tables = modules, nil, nil },
		"clip":          func(j *Job) { j.Optimizer.Clip = &Clipping{Kind: ClipGlobal, Max: 1} },
	}
	have := map[string]string{}
	combinations(func(words string, j *Job) {
		for _, name := range sortedKeys(changes) {
			job := *j
			if changes[name](&job); job.Validate() != nil {
				continue
			}
			plan := job.Plan()
			can := plan.Capability()
			have[name+": "+words] = can.String()
			saved := job.CheckVersions() == nil && (plan.Roundless || plan.Reduces(ByShards))
			if want := map[bool]recovery{true: recoveryRestart}[saved]; can.shard != want {
				t.Errorf("%s: %s: a lost shard: %v, want %v", name, words, can.shard, want)
			}
			if exact := name == "exact"; plan.exact != exact || plan.modules != (len(job.Modules) > 0) ||
				plan.globalClip != (name == "clip") {
				t.Errorf("%s: %s: exact %v, modules %v, global clip %v", name, words, plan.exact, plan.modules, plan.globalClip)
			}
		}
	})
	for words, want := range map[string]string{
		"plain: sync update shards fused rows float32":               "trainer in place, shard restart",
		"exact: sync update shards fused rows float32":               "trainer restart, shard restart",
		"modules: sync update shards fused rows float32":             "trainer restart, shard restart",
		"plain: sync update shards fused rows bfloat16+feedback":     "trainer restart, shard restart",
		"clip: sync mean shards fused none float32":                  "trainer restart, shard restart",
		"exact: async update shards fused rows float32":              "trainer others go on, shard none",
		"modules: async update shards fused rows float32":            "trainer others go on, shard restart",
		"modules alone: grouped update shards fused none float32":    "trainer others go on, shard restart",
		"exact: sync mean trainers fused rows async float32":         "trainer none, shard none",
		"exact: sync mean trainers fused rows float32":               "trainer restart, shard restart",
		"modules: sync mean trainers fused none float32":             "trainer none, shard none",
		"clip: sync mean trainers fused replicated:trainers float32": "trainer none, shard none",
	} {
		if have[words] != want {
			t.Errorf("%s: %q, want %q", words, have[words], want)
		}
	}
}
