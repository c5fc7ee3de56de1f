package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// testJob is a manifest with two layers and two tables that passes Validate.
func testJob() *Job {
	return &Job{
		Name: "demo", Workload: "packages", Settings: map[string]string{"batch_size": "256", "data": "ab12"}, Seed: 7,
		Trainers: 2, Lanes: 4, Consistency: ConsistencySync, Wire: Wire{Gradients: GradientsFloat32},
		Reduce: ReduceShards,
		Apply:  ApplyUpdate, Policy: PolicyFail, ChunkBytes: ChunkBytes,
		Optimizer: Optimizer{Kind: OptimizerSGD, LR: 0.1, Momentum: 0.9},
		Parameters: []Parameter{
			{Name: "hidden.weight", Shape: []int{3, 2}, Init: Init{InitUniform, 0.5}},
			{Name: "hidden.bias", Shape: []int{3}, Init: Init{InitZeros, 0}},
		},
		Tables: []TableSpec{
			{Name: "words", Rows: 100, Dim: 4, Partitions: 8, Init: Init{InitNormal, 0.01}},
			{Name: "authors", Rows: 10, Dim: 2, Partitions: 4, Init: Init{InitZeros, 0}},
		},
	}
}

func TestValidateTakesWhatIsRight(t *testing.T) {
	for name, change := range map[string]func(*Job){
		"as it is":      func(*Job) {},
		"no tables":     func(j *Job) { j.Tables = nil },
		"no parameters": func(j *Job) { j.Parameters = nil },
		"no settings":   func(j *Job) { j.Settings = nil },
		"mean":          func(j *Job) { j.Apply = ApplyMean },
		"nesterov":      func(j *Job) { j.Optimizer.Nesterov = true },
		"limits": func(j *Job) {
			j.Lanes, j.Trainers, j.ChunkBytes = 4096, 4096, 4<<20
			j.Tables[0] = TableSpec{Name: "t", Rows: 1 << 40, Dim: 16, Partitions: 65535, Init: Init{Kind: InitZeros}}
		},
	} {
		j := testJob()
		change(j)
		if err := j.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesFieldValueAndRemedy(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		field, value, want string
		change             func(*Job)
	}{
		{"name", `"Demo"`, "a-z", func(j *Job) { j.Name = "Demo" }},
		{"workload", `""`, "1 to 63", func(j *Job) { j.Workload = "" }},
		{"settings", `"Batch"`, "a-z", func(j *Job) { j.Settings["Batch"] = "1" }},
		{"settings.x", `"a\nb"`, "printable", func(j *Job) { j.Settings["x"] = "a\nb" }},
		{"lanes", "0", "1 to 4096", func(j *Job) { j.Lanes = 0 }},
		{"lanes", "4097", "1 to 4096", func(j *Job) { j.Lanes = 4097 }},
		{"trainers", "5", "1 to 4", func(j *Job) { j.Trainers = 5 }},
		{"trainers", "0", "1 to 4", func(j *Job) { j.Trainers = 0 }},
		{"consistency", `"eventual"`, "sync or bounded or async", func(j *Job) { j.Consistency = "eventual" }},
		{"ahead", "1", "0", func(j *Job) { j.Ahead = 1 }},
		{"ahead", "0", "1 to 16", func(j *Job) { j.Consistency = ConsistencyBounded }},
		{"ahead", "17", "1 to 16", func(j *Job) { j.Consistency, j.Ahead = ConsistencyBounded, 17 }},
		{"apply", `"mean"`, "update", func(j *Job) { j.Consistency, j.Apply = ConsistencyAsync, ApplyMean }},
		{"group", "1", "0", func(j *Job) { j.Group = 1 }},
		{"group", "0", "1 to 2", func(j *Job) { grouped(j, 0) }},
		{"group", "3", "1 to 2", func(j *Job) { grouped(j, 3) }},
		{"apply", `"mean"`, "update", func(j *Job) { grouped(j, 1); j.Apply = ApplyMean }},
		{"tables", "1", "none", func(j *Job) {
			grouped(j, 2)
			j.Tables = append(j.Tables, TableSpec{Name: "t", Rows: 1, Dim: 1, Partitions: 1, Init: Init{Kind: InitZeros}})
		}},
		{"apply", `""`, "update or mean", func(j *Job) { j.Apply = "" }},
		{"sum", `"often"`, "fused or close", func(j *Job) { j.Sum = "often" }},
		{"first_bucket_bytes", "4095", "4096 to", func(j *Job) { j.FirstBucketBytes = 4095 }},
		{"bucket_bytes", "4098", "multiple of 4", func(j *Job) { j.BucketBytes = 4098 }},
		{"tables[0].reduce", `"all"`, "shards or trainers", func(j *Job) { j.Tables[0].Reduce = "all" }},
		{"tables[0].reduce", `"trainers"`, "replicated with it", func(j *Job) { j.Tables[0].Reduce = ReduceTrainers }},
		{"policy", `"recover"`, "fail", func(j *Job) { j.Policy, j.Consistency = "recover", "async" }},
		{"chunk_bytes", "4095", "4096 to 4194304", func(j *Job) { j.ChunkBytes = 4095 }},
		{"chunk_bytes", "4100", "multiple of 64", func(j *Job) { j.ChunkBytes = 4100 }},
		{"optimizer.kind", `"rmsprop"`, "sgd or adagrad or", func(j *Job) { j.Optimizer.Kind = "rmsprop" }},
		{"optimizer.lr", "-1", "at least 0", func(j *Job) { j.Optimizer.LR = -1 }},
		{"optimizer.momentum", "NaN", "finite", func(j *Job) { j.Optimizer.Momentum = nan }},
		{"optimizer.dampening", "+Inf", "finite", func(j *Job) { j.Optimizer.Dampening = float32(math.Inf(1)) }},
		{"optimizer.weight_decay", "-0.5", "at least 0", func(j *Job) { j.Optimizer.WeightDecay = -0.5 }},
		{"optimizer.nesterov", "true", "momentum", func(j *Job) { j.Optimizer.Momentum, j.Optimizer.Nesterov = 0, true }},
		{"parameters[1].name", `"hidden.weight"`, "s[0].name has it", func(j *Job) { j.Parameters[1].Name = "hidden.weight" }},
		{"parameters[0].shape", "[]", "1 to 8 dimensions", func(j *Job) { j.Parameters[0].Shape = nil }},
		{"parameters[0].shape", "[3 0]", "at least 1", func(j *Job) { j.Parameters[0].Shape = []int{3, 0} }},
		{"parameters[0].shape", "[65536 65536]", "at most", func(j *Job) { j.Parameters[0].Shape = []int{1 << 16, 1 << 16} }},
		{"parameters[0].init.kind", `"ones"`, "zeros or", func(j *Job) { j.Parameters[0].Init.Kind = "ones" }},
		{"tables[1].name", `"hidden.bias"`, "parameters[1].name has it", func(j *Job) { j.Tables[1].Name = "hidden.bias" }},
		{"tables[0].name", `"a\nb"`, "printable", func(j *Job) { j.Tables[0].Name = "a\nb" }},
		{"tables[0].rows", "0", "1 to", func(j *Job) { j.Tables[0].Rows = 0 }},
		{"tables[0].rows", "1099511627776", "rows of 17", func(j *Job) { j.Tables[0].Rows, j.Tables[0].Dim = 1<<40, 17 }},
		{"tables[0].dim", "65537", "1 to 65536", func(j *Job) { j.Tables[0].Dim = 65537 }},
		{"tables[0].partitions", "65536", "1 to 65535", func(j *Job) { j.Tables[0].Partitions = 65536 }},
		{"tables[0].init.scale", "NaN", "finite", func(j *Job) { j.Tables[0].Init.Scale = nan }},
		{"parameters", "0", "at least one", func(j *Job) { j.Parameters, j.Tables = nil, nil }},
		{"tables", "1114095", "1048576 partitions", func(j *Job) {
			j.Tables = nil
			for i := range 17 {
				j.Tables = append(j.Tables, TableSpec{Name: fmt.Sprint(i), Rows: 1, Dim: 1, Partitions: 65535, Init: Zeros()})
			}
		}},
	} {
		j := testJob()
		c.change(j)
		errs, _ := j.Validate().(JobErrors)
		if len(errs) != 1 || errs[0].Field != c.field || errs[0].Value != c.value || !strings.Contains(errs[0].Want, c.want) {
			t.Errorf("want one error of %s = %s saying %q, got %v", c.field, c.value, c.want, errs)
		}
	}
}

func TestValidateListsAll(t *testing.T) {
	err := (&Job{}).Validate()
	for _, field := range []string{"name", "workload", "lanes", "consistency", "apply", "policy", "chunk_bytes",
		"and 1 more"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not speak of %s", err, field)
		}
	}
}

// Changing any field of a manifest is found, under the path of that field.
func TestDiffFindsEveryField(t *testing.T) {
	if field, _, _, differs := testJob().Diff(testJob()); differs {
		t.Fatalf("equal jobs differ in %s", field)
	}
	for _, c := range []struct {
		field, have, want string
		change            func(*Job)
	}{
		{"name", `"demo"`, `"x"`, func(j *Job) { j.Name = "x" }},
		{"workload", `"packages"`, `"x"`, func(j *Job) { j.Workload = "x" }},
		{"settings.batch_size", `"256"`, `"128"`, func(j *Job) { j.Settings["batch_size"] = "128" }},
		{"settings.a", "absent", `"1"`, func(j *Job) { j.Settings["a"] = "1" }},
		{"settings.data", `"ab12"`, "absent", func(j *Job) { delete(j.Settings, "data") }},
		{"seed", "7", "8", func(j *Job) { j.Seed++ }},
		{"trainers", "2", "1", func(j *Job) { j.Trainers = 1 }},
		{"lanes", "4", "8", func(j *Job) { j.Lanes = 8 }},
		{"consistency", `"sync"`, `""`, func(j *Job) { j.Consistency = "" }},
		{"ahead", "0", "2", func(j *Job) { j.Ahead = 2 }},
		{"group", "0", "2", func(j *Job) { j.Group = 2 }},
		{"wire.gradients", `"float32"`, `"bfloat16"`, func(j *Job) { j.Wire.Gradients = GradientsBFloat16 }},
		{"wire.error_feedback", "false", "true", func(j *Job) { j.Wire.ErrorFeedback = true }},
		{"reduce", `"shards"`, `"trainers"`, func(j *Job) { j.Reduce = ReduceTrainers }},
		{"start", "absent", `{"digest":"ab","batches":3}`, func(j *Job) { j.Start = &StartModel{Digest: "ab", Batches: 3} }},
		{"group_events", "false", "true", func(j *Job) { j.GroupEvents = true }},
		{"sum", `""`, `"close"`, func(j *Job) { j.Sum = SumClose }},
		{"first_bucket_bytes", "0", "4096", func(j *Job) { j.FirstBucketBytes = 4096 }},
		{"bucket_bytes", "0", "8192", func(j *Job) { j.BucketBytes = 8192 }},
		{"tables[1].reduce", `""`, `"trainers"`, func(j *Job) { j.Tables[1].Reduce = ReduceTrainers }},
		{"apply", `"update"`, `"mean"`, func(j *Job) { j.Apply = ApplyMean }},
		{"policy", `"fail"`, `"wait"`, func(j *Job) { j.Policy = "wait" }},
		{"chunk_bytes", "262144", "4096", func(j *Job) { j.ChunkBytes = 4096 }},
		{"optimizer.kind", `"sgd"`, `"adam"`, func(j *Job) { j.Optimizer.Kind = "adam" }},
		{"optimizer.lr", "0.1", "0.2", func(j *Job) { j.Optimizer.LR = 0.2 }},
		{"optimizer.momentum", "0.9", "0", func(j *Job) { j.Optimizer.Momentum = 0 }},
		{"optimizer.dampening", "0", "1", func(j *Job) { j.Optimizer.Dampening = 1 }},
		{"optimizer.weight_decay", "0", "1", func(j *Job) { j.Optimizer.WeightDecay = 1 }},
		{"optimizer.nesterov", "false", "true", func(j *Job) { j.Optimizer.Nesterov = true }},
		{"parameters[0].name", `"hidden.weight"`, `"x"`, func(j *Job) { j.Parameters[0].Name = "x" }},
		{"parameters[0].shape[1]", "2", "5", func(j *Job) { j.Parameters[0].Shape[1] = 5 }},
		{"parameters[1].init.scale", "0", "1", func(j *Job) { j.Parameters[1].Init.Scale = 1 }},
		{"parameters[1].init.kind", `"zeros"`, `"normal"`, func(j *Job) { j.Parameters[1].Init.Kind = InitNormal }},
		{"parameters[1]", `{"name":"hidden.bias","shape":[3],"init":{"kind":"zeros","scale":0}}`, "absent",
			func(j *Job) { j.Parameters = j.Parameters[:1] }},
		{"tables[0].name", `"words"`, `"x"`, func(j *Job) { j.Tables[0].Name = "x" }},
		{"tables[0].rows", "100", "101", func(j *Job) { j.Tables[0].Rows++ }},
		{"tables[0].padding", "absent", "0", func(j *Job) { j.Tables[0].Padding = new(uint64) }},
		{"tables[0].salts[0]", "absent", "null", func(j *Job) { j.Tables[0].Salts = []*int64{nil, new(int64)} }},
		{"tables[1].dim", "2", "3", func(j *Job) { j.Tables[1].Dim++ }},
		{"tables[1].partitions", "4", "5", func(j *Job) { j.Tables[1].Partitions++ }},
		{"tables[0].init.kind", `"normal"`, `"zeros"`, func(j *Job) { j.Tables[0].Init.Kind = InitZeros }},
		{"tables[1].init.scale", "0", "2", func(j *Job) { j.Tables[1].Init.Scale = 2 }},
	} {
		j := testJob()
		c.change(j)
		field, have, want, differs := testJob().Diff(j)
		if !differs || field != c.field || have != c.have || want != c.want {
			t.Errorf("%s %s -> %s: found %s %s -> %s", c.field, c.have, c.want, field, have, want)
		}
	}
}

// checkSame checks that two manifests are one, also by their digests.
func checkSame(t *testing.T, a, b *Job) {
	t.Helper()
	if field, _, _, differs := a.Diff(b); differs {
		t.Errorf("differ in %s", field)
	}
	da, errA := a.Digest()
	db, errB := b.Digest()
	if errA != nil || errB != nil || da != db {
		t.Errorf("digests %x %v and %x %v", da, errA, db, errB)
	}
}

// A default that is said and one that is not are the same manifest, also by its digest.
func TestSaidDefaultsAreDefaults(t *testing.T) {
	a, b := testJob(), testJob()
	b.Sum, b.FirstBucketBytes, b.BucketBytes, b.Reduce = SumFused, 1<<20, 25<<20, ReduceShards
	b.Tables[0].Reduce, b.Tables[1].Reduce = ReduceShards, ReduceShards
	checkSame(t, a, b)
	if b.Tables[0].Reduce != ReduceShards {
		t.Error("what was encoded has changed")
	}
}

// An absent list and an empty one are the same manifest, also by its digest.
func TestAbsentIsEmpty(t *testing.T) {
	a, b := testJob(), testJob()
	a.Settings, a.Tables, a.Parameters[1].Shape = nil, nil, nil
	b.Settings, b.Tables, b.Parameters[1].Shape = map[string]string{}, []TableSpec{}, []int{}
	checkSame(t, a, b)
}

func TestJobSurvivesEncoding(t *testing.T) {
	b, err := testJob().Encode()
	if err != nil {
		t.Fatal(err)
	}
	j, err := DecodeJob(b)
	if err != nil || !reflect.DeepEqual(j, testJob()) {
		t.Fatalf("decoded %+v, %v", j, err)
	}
	again, err := j.Encode()
	if err != nil || !bytes.Equal(again, b) {
		t.Errorf("encoded again %s, %v", again, err)
	}
	if f := func() error { j.Optimizer.LR = float32(math.NaN()); _, err := j.Digest(); return err }(); f == nil {
		t.Error("a manifest with NaN has a digest")
	}
}

func TestDecodeJobRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                           "ends early",
		`{"name":"a"`:                "ends early",
		`{"name":"a"} {}`:            "exactly one",
		`{"name":"a"}x`:              "exactly one",
		`{"colour":"a"}`:             "unknown field",
		`{"name":"a","name":"b"}`:    "twice",
		`{"Name":"a"}`:               "lower case",
		`{"lanes":"4"}`:              "cannot unmarshal",
		`{"wire":{"sparse":"auto"}}`: "it left out: a table's gradients travel as rows or as bags, whichever is smaller",
		`{"lanes":1e99}`:             "cannot unmarshal",
		"{\"name\":\"\xff\"}":        "UTF-8",
		strings.Repeat("[", 100000):  "deeper",
		`{"name":"` + strings.Repeat("a", bodyBytesMax) + `"}`: "at most",
	} {
		if _, err := DecodeJob([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// The manifest of a model or a checkpoint may have wire.sparse, and a sum that is no longer legal.
func TestDecodeStoredJob(t *testing.T) {
	for text, sum := range map[string]string{`{"wire":{"gradients":"float16","sparse":"bags"},"sum":"arrival"}`: "",
		`{"wire":{"gradients":"float16","sparse":7},"sum":"close","apply":"update"}`:                           "",
		`{"wire":{"gradients":"float16"},"sum":"close","apply":"mean","consistency":"sync","parameters":[{}]}`: SumClose} {
		if j, err := DecodeStoredJob([]byte(text)); err != nil || j.Wire != (Wire{Gradients: GradientsFloat16}) || j.Sum != sum {
			t.Errorf("%s: %+v, %v", text, j, err)
		}
	}
	if _, err := DecodeStoredJob([]byte(`{"wire":{"dense":"rows"}}`)); err == nil {
		t.Error("an unknown field passes")
	}
}

func FuzzDecodeJob(f *testing.F) {
	b, err := testJob().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"parameters":[{"shape":[-1,9223372036854775807]}],"tables":[{"rows":18446744073709551615,"dim":-5}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := DecodeJob(b)
		if err != nil {
			return
		}
		if field, _, _, differs := j.Diff(j); differs {
			t.Fatalf("differs from itself in %s", field)
		}
		if j.Validate() != nil {
			return
		}
		again, err := j.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var k *Job
		if k, err = DecodeJob(again); err != nil || !json.Valid(again) {
			t.Fatal(err)
		}
		if field, have, want, differs := j.Diff(k); differs {
			t.Fatalf("%s: %s became %s", field, have, want)
		}
		n := uint64(0) // NewPlacement relies on the bound
		for _, p := range j.Parameters {
			n += uint64(p.Elements())
		}
		if n > allElementsMax {
			t.Fatalf("%d elements pass", n)
		}
	})
}

// grouped makes a job one of groups.
func grouped(j *Job, group int) {
	j.Consistency, j.Group, j.Apply, j.Tables = ConsistencyGrouped, group, ApplyUpdate, nil
}

func TestValuesOfAJob(t *testing.T) {
	job := &Job{Parameters: []Parameter{{Shape: []int{3, 5}}, {Shape: []int{2}}}, Tables: []TableSpec{{Rows: 10, Dim: 4}}}
	if n := job.Values(); n != 15+2+40 {
		t.Errorf("%d values, want 57", n)
	}
	for range 4000 {
		job.Tables = append(job.Tables, TableSpec{Rows: 1 << 40, Dim: 1 << 16})
	}
	if n := job.Values(); n <= 0 {
		t.Errorf("%d values of the largest tables", n)
	}
}
