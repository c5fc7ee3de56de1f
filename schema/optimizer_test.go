package schema

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// checkOptimizers is what Validate says of optimizers alone.
func checkOptimizers(j *Job) JobErrors {
	c := &jobCheck{}
	c.optimizers(j)
	return slices.DeleteFunc(c.errors, func(e FieldError) bool { return strings.Contains(e.Want, "not carried out yet") })
}

// adamJob is a job of mean with a table of its own optimizer, on which all that is checked may be tried.
func adamJob() *Job {
	j := testJob()
	j.Apply = ApplyMean
	j.Optimizer = Optimizer{Kind: OptimizerAdam, LR: 0.001, Clip: &Clipping{ClipGlobal, 1},
		Schedule: &Schedule{Kind: ScheduleCosine, Warmup: 10, Total: 100, Final: 0.1}}
	j.Tables[0].Optimizer = &Optimizer{Kind: OptimizerRowwiseAdagrad, LR: 0.1, Clip: &Clipping{ClipRow, 1}}
	j.Tables[0].PerRow = true
	j.Tables[1].Replicated = true
	return j
}

func TestOptimizersThatAreRight(t *testing.T) {
	for name, change := range map[string]func(*Job){
		"as it is": func(*Job) {},
		"ftrl": func(j *Job) {
			j.Parameters[0].Optimizer = &Optimizer{Kind: OptimizerFTRL, LR: 0.1, L1: 0.1, L2: 0.1, Beta: 2}
		},
		"steps": func(j *Job) {
			j.Parameters[0].Optimizer = &Optimizer{Kind: OptimizerAdamW,
				Schedule: &Schedule{Kind: scheduleSteps, Warmup: 7, Steps: []uint64{5, 9}, Gamma: 0.1}}
		},
		"exact": func(j *Job) { j.Tables[0].Optimizer = &Optimizer{Kind: OptimizerSGD, Exact: true, Momentum: 0.5} },
		"norm of rows of a table that is whole": func(j *Job) {
			j.Tables[0].Placement, j.Tables[0].Pooling, j.Tables[0].PerRow = PlacementTables, PoolingSum, false
		},
		"hosted, by value": func(j *Job) {
			j.Modules = []ModuleSpec{{Name: "m"}}
			j.Tables[1].Replicated, j.Optimizer.Clip = false, &Clipping{ClipValue, 0.5}
		},
	} {
		j := adamJob()
		change(j)
		if errs := checkOptimizers(j); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestOptimizersThatAreWrong(t *testing.T) {
	for _, c := range []struct {
		field, want string
		change      func(*Job)
	}{
		{"optimizer.kind", "adagrad", func(j *Job) { j.Optimizer.Kind = "" }},
		{"optimizer.momentum", "0: adam has no momentum", func(j *Job) { j.Optimizer.Momentum = 0.9 }},
		{"optimizer.l1", "adam has no l1", func(j *Job) { j.Optimizer.L1 = 0.9 }},
		{"optimizer.initial_accumulator", "adam has no", func(j *Job) { j.Optimizer.InitialAccumulator = 1 }},
		{"optimizer.beta1", "below 1", func(j *Job) { j.Optimizer.Beta1 = 1 }},
		{"optimizer.beta2", "finite", func(j *Job) { j.Optimizer.Beta2 = float32(math.NaN()) }},
		{"optimizer.eps", "at least 0", func(j *Job) { j.Optimizer.Eps = -1 }},
		{"optimizer.exact", "sgd at a constant rate", func(j *Job) { j.Optimizer.Exact = true }},
		{"tables[0].optimizer.exact", "sgd at a constant rate", func(j *Job) {
			j.Tables[0].Optimizer = &Optimizer{Kind: OptimizerSGD, Exact: true,
				Schedule: &Schedule{Kind: scheduleConstant, Warmup: 1}}
		}},
		{"parameters[1].optimizer.exact", "false", func(j *Job) {
			j.Parameters[1].Optimizer = &Optimizer{Kind: OptimizerSGD, Exact: true}
		}},
		{"parameters[1].optimizer.weight_decay", "ftrl has no weight_decay", func(j *Job) {
			j.Parameters[1].Optimizer = &Optimizer{Kind: OptimizerFTRL, WeightDecay: 1}
		}},
		{"optimizer.schedule.kind", "constant or linear", func(j *Job) { j.Optimizer.Schedule = &Schedule{Kind: "poly"} }},
		{"optimizer.schedule.total", "above warmup, 10", func(j *Job) { j.Optimizer.Schedule.Total = 10 }},
		{"optimizer.schedule.total", "only linear and cosine",
			func(j *Job) { j.Optimizer.Schedule = &Schedule{Kind: scheduleConstant, Total: 3} }},
		{"optimizer.schedule.final", "0 to 1", func(j *Job) { j.Optimizer.Schedule.Final = 1.5 }},
		{"optimizer.schedule.final", "only linear and cosine",
			func(j *Job) { j.Optimizer.Schedule = &Schedule{Kind: scheduleConstant, Final: 1} }},
		{"optimizer.schedule.gamma", "only steps", func(j *Job) { j.Optimizer.Schedule.Gamma = 0.5 }},
		{"optimizer.schedule.gamma", "above 0",
			func(j *Job) { j.Optimizer.Schedule = &Schedule{Kind: scheduleSteps, Steps: []uint64{1}} }},
		{"optimizer.schedule.steps", "ascending", func(j *Job) {
			j.Optimizer.Schedule = &Schedule{Kind: scheduleSteps, Gamma: 0.5, Steps: []uint64{2, 2}}
		}},
		{"optimizer.schedule.steps", "none", func(j *Job) { j.Optimizer.Schedule.Steps = []uint64{2} }},
		{"optimizer.clip.kind", "value or row or global", func(j *Job) { j.Optimizer.Clip = &Clipping{"norm", 1} }},
		{"optimizer.clip.max", "above 0", func(j *Job) { j.Optimizer.Clip = &Clipping{ClipValue, 0} }},
		{"optimizer.clip.kind", "parameters[0] has no rows", func(j *Job) { j.Optimizer.Clip = &Clipping{ClipRow, 1} }},
		{"optimizer.clip.kind", "apply mean with it: with update each shard", func(j *Job) {
			j.Apply, j.Tables = ApplyUpdate, nil
		}},
		{"tables[1].optimizer.clip.kind", "a shard steps its rows before", func(j *Job) { j.Tables[1].Replicated = false }},
		{"optimizer.clip.kind", "modules", func(j *Job) { j.Modules = []ModuleSpec{{}} }},
		{"tables[1].optimizer.clip.max", "1, as that of parameters[0]", func(j *Job) {
			j.Tables[1].Optimizer = &Optimizer{Kind: OptimizerSGD, Clip: &Clipping{ClipGlobal, 2}}
		}},
		{"tables[0].placement", "rows or tables where rows are clipped", func(j *Job) {
			j.Tables[0].Placement, j.Tables[0].PerRow, j.Tables[0].Optimizer.Kind = PlacementColumns, false, OptimizerAdagrad
		}},
		{"tables[0].placement", "needs whole rows", func(j *Job) {
			j.Tables[0].Placement, j.Tables[0].PerRow, j.Tables[0].Optimizer.Clip = PlacementColumns, false, nil
		}},
		{"tables[0].per_row", "gradients of float16", func(j *Job) { j.Wire.Gradients = GradientsFloat16 }},
		{"tables[0].per_row", "placement tables", func(j *Job) {
			j.Tables[0].Placement, j.Tables[0].Pooling = PlacementTables,
				PoolingSum
		}},
	} {
		j := adamJob()
		c.change(j)
		errs := checkOptimizers(j)
		if len(errs) != 1 || errs[0].Field != c.field || !strings.Contains(errs[0].Want, c.want) {
			t.Errorf("want one error of %s saying %q, got %v", c.field, c.want, errs)
		}
	}
}

// A default that is said and one that is not are the same manifest, and so are an optimizer that every tensor names and
// one of the job.
func TestSaidOptimizersAreDefaults(t *testing.T) {
	a, b := adamJob(), adamJob()
	b.Optimizer.Beta1, b.Optimizer.Beta2, b.Optimizer.Eps = 0.9, 0.999, 1e-8
	b.Tables[0].Optimizer.Eps, b.Tables[0].Optimizer.Schedule = 1e-8, &Schedule{Kind: scheduleConstant}
	own := b.Optimizer
	own.Schedule = &Schedule{Kind: ScheduleCosine, Warmup: 10, Total: 100, Final: 0.1}
	b.Parameters[0].Optimizer = &own
	checkSame(t, a, b)
	checkSame(t, a.WithDefaults(), b)
	if a.Optimizer.Beta1 != 0 || b.Parameters[0].Optimizer == nil {
		t.Error("what was encoded has changed")
	}
	if got := a.WithDefaults(); got.Optimizer.Beta1 != 0.9 || got.Tables[0].Optimizer.Eps != 1e-8 ||
		a.Tables[0].Optimizer.Eps != 0 {
		t.Errorf("%+v, and the manifest given has %+v", got.Tables[0].Optimizer, a.Tables[0].Optimizer)
	}
	if o := a.OptimizerOf(1); o.Kind != OptimizerAdam || o.Beta2 != 0.999 {
		t.Errorf("table 1 has %+v", o)
	}
	if o := a.OptimizerOf(0); o.Kind != OptimizerRowwiseAdagrad || o.Eps != 1e-8 {
		t.Errorf("table 0 has %+v", o)
	}
}

// Defaults are PyTorch's where it has some.
func TestOptimizerDefaults(t *testing.T) {
	for _, c := range []struct{ given, want Optimizer }{
		{Optimizer{}, Optimizer{Kind: "sgd"}},
		{Optimizer{Kind: "adagrad"}, Optimizer{Kind: "adagrad", Eps: 1e-10}},
		{Optimizer{Kind: "rowwise_adagrad"}, Optimizer{Kind: "rowwise_adagrad", Eps: 1e-8}},
		{Optimizer{Kind: "adam", Beta1: 0.5}, Optimizer{Kind: "adam", Beta1: 0.5, Beta2: 0.999, Eps: 1e-8}},
		{Optimizer{Kind: "adamw"}, Optimizer{Kind: "adamw", Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}},
		{Optimizer{Kind: "ftrl", L1: 2}, Optimizer{Kind: "ftrl", Beta: 1, L1: 2}},
	} {
		if got := c.given.WithDefaults(); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// A manifest that says nothing of what optimizers gained is encoded as before.
func TestOptimizersOfTodayKeepTheirEncoding(t *testing.T) {
	j := testJob()
	b, err := j.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"optimizer":{"kind":"sgd","lr":0.1,"momentum":0.9,"dampening":0,"weight_decay":0,"nesterov":false},"parameters":[{"name":"hidden.weight","shape":[3,2],"init":{"kind":"uniform","scale":0.5}}`
	if !strings.Contains(string(b), want) {
		t.Errorf("%s\nhas not %s", b, want)
	}
}

// A difference within an optimizer of its own has the path of its field.
func TestDiffOfOwnOptimizers(t *testing.T) {
	for _, c := range []struct {
		field, have, want string
		change            func(*Job)
	}{
		{"optimizer.beta1", "0.9", "0.8", func(j *Job) { j.Optimizer.Beta1 = 0.8 }},
		{"optimizer.schedule.final", "0.1", "0.2", func(j *Job) { j.Optimizer.Schedule.Final = 0.2 }},
		{"optimizer.schedule", `{"kind":"cosine","warmup":10,"total":100,"final":0.1}`, "absent",
			func(j *Job) { j.Optimizer.Schedule = nil }},
		{"optimizer.clip.max", "1", "2", func(j *Job) { j.Optimizer.Clip.Max = 2 }},
		{"tables[0].optimizer.lr", "0.1", "0.2", func(j *Job) { j.Tables[0].Optimizer.LR = 0.2 }},
		{"tables[0].per_row", "true", "false", func(j *Job) { j.Tables[0].PerRow = false }},
		{"parameters[1].optimizer", "absent",
			`{"kind":"sgd","lr":1,"momentum":0,"dampening":0,"weight_decay":0,"nesterov":false}`,
			func(j *Job) { j.Parameters[1].Optimizer = &Optimizer{Kind: OptimizerSGD, LR: 1} }},
	} {
		j := adamJob()
		j.Optimizer.Clip, j.Optimizer.Schedule = &Clipping{ClipGlobal, 1},
			&Schedule{Kind: ScheduleCosine, Warmup: 10, Total: 100, Final: 0.1}
		c.change(j)
		field, have, want, differs := adamJob().Diff(j)
		if !differs || field != c.field || have != c.have || want != c.want {
			t.Errorf("%s %s -> %s: found %s %s -> %s", c.field, c.have, c.want, field, have, want)
		}
	}
}

// A bucket has one optimizer: a new one begins where it changes, and only there.
func TestBucketsHaveOneOptimizer(t *testing.T) {
	j := testJob()
	j.Parameters = nil
	adam := Optimizer{Kind: OptimizerAdam, LR: 0.1}
	same := j.Optimizer
	for i, own := range []*Optimizer{nil, &same, &adam, {Kind: OptimizerAdam, LR: 0.1, Beta1: 0.9}, nil} {
		j.Parameters = append(j.Parameters, Parameter{Name: string(rune('a' + i)), Shape: []int{4}, Init: Zeros(),
			Optimizer: own})
	}
	p := NewPlacement(j, 2)
	if len(p.Buckets) != 3 {
		t.Fatalf("%d buckets, want 3: %+v", len(p.Buckets), p.Buckets)
	}
	for i, want := range []struct {
		elements int
		kind     string
	}{{4, "sgd"}, {8, "adam"}, {8, "sgd"}} {
		if b := p.Buckets[i]; b.Elements != want.elements || p.OptimizerOf(b.ID).Kind != want.kind {
			t.Errorf("bucket %d: %d elements of %s, want %+v", i, b.Elements, p.OptimizerOf(b.ID).Kind, want)
		}
	}
}

// A trainer places the manifest that its program wrote, a shard the one that it was sent: optimizers that are written
// alike lie in one bucket for both.
func TestBucketsAreThoseOfTheEncoding(t *testing.T) {
	constant := Optimizer{Kind: OptimizerSGD, LR: 0.1, Schedule: &Schedule{Kind: scheduleConstant}}
	linear := Optimizer{Kind: OptimizerSGD, LR: 0.1, Schedule: &Schedule{Kind: ScheduleLinear, Total: 4}}
	stepless := Optimizer{Kind: OptimizerSGD, LR: 0.1,
		Schedule: &Schedule{Kind: ScheduleLinear, Total: 4, Steps: []uint64{}}}
	j := testJob()
	j.Optimizer, j.Parameters = Optimizer{Kind: OptimizerSGD, LR: 0.1}, nil
	for i, own := range []*Optimizer{nil, &constant, &linear, &stepless} {
		j.Parameters = append(j.Parameters, Parameter{Name: string(rune('a' + i)), Shape: []int{4}, Init: Zeros(),
			Optimizer: own})
	}
	text, err := j.Encode()
	if err != nil {
		t.Fatal(err)
	}
	sent, err := DecodeJob(text)
	if err != nil {
		t.Fatal(err)
	}
	if here, there := NewPlacement(j, 2), NewPlacement(sent, 2); len(here.Buckets) != 2 || len(there.Buckets) != 2 {
		t.Errorf("%d buckets of the manifest and %d of its encoding, want 2", len(here.Buckets), len(there.Buckets))
	}
}
