package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gradbus/schema"
)

// Optimizer, schedule and clipping are each said by one text: a kind, and behind a colon what it takes, by the names of
// the manifest.
//
//	adam:beta1=0.95,eps=1e-6    sgd:nesterov,weight_decay=0.0001    cosine:warmup=100,total=2000,final=0.1    global:1

// defaultLR is the learning rate of optimizers that have one whatever the workload: PyTorch's. SGD has the workload's,
// and so has FTRL, whose first steps are those of SGD.
var defaultLR = map[string]float64{schema.OptimizerAdagrad: 0.01, schema.OptimizerRowwiseAdagrad: 0.01,
	schema.OptimizerAdam:  0.001,
	schema.OptimizerAdamW: 0.001}

// words are the parts of a text: "kind:a=1,b" is kind, and a and b with their values; a part without one has none.
func words(text string) (kind string, parts [][2]string) {
	kind, rest, more := strings.Cut(text, ":")
	if !more {
		return kind, nil
	}
	for _, part := range strings.Split(rest, ",") {
		key, value, _ := strings.Cut(part, "=")
		parts = append(parts, [2]string{key, value})
	}
	return kind, parts
}

// read sets the fields that a text names. Keys come once each.
func read(text string, fields map[string]any) (kind string, err error) {
	kind, parts := words(text)
	seen := map[string]bool{}
	for _, p := range parts {
		key, value := p[0], p[1]
		field, known := fields[key]
		switch {
		case !known:
			return kind, fmt.Errorf("%q: want one of %s", key, strings.Join(names(fields), ", "))
		case seen[key]:
			return kind, fmt.Errorf("%s twice: want it once", key)
		}
		seen[key] = true
		if err := set(field, value); err != nil {
			return kind, fmt.Errorf("%s %q: want %w", key, value, err)
		}
	}
	return kind, nil
}

func names(fields map[string]any) []string {
	var all []string
	for name := range fields {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// set reads one value; its error says what would be right.
func set(field any, text string) error {
	switch f := field.(type) {
	case *float32:
		x, err := strconv.ParseFloat(text, 32)
		if *f = float32(x); err != nil {
			return fmt.Errorf("a number")
		}
	case *uint64:
		x, err := strconv.ParseUint(text, 10, 64)
		if *f = x; err != nil {
			return fmt.Errorf("a number of batches")
		}
	case *[]uint64:
		for _, t := range strings.Split(text, "+") {
			x, err := strconv.ParseUint(t, 10, 64)
			if *f = append(*f, x); err != nil {
				return fmt.Errorf("numbers of batches with + between them, as 500+800")
			}
		}
	case *bool:
		if *f = true; text != "" {
			return fmt.Errorf("no value: the word alone switches it on")
		}
	}
	return nil
}

// optimizer is the job's, with the rate of LR, a momentum for SGD, the schedule and what is clipped.
func (s Shared) optimizer() (schema.Optimizer, error) {
	o := schema.Optimizer{LR: float32(s.LR), Momentum: float32(s.Momentum)}
	var err error
	if o.Kind, err = read(s.kindText(), map[string]any{"dampening": &o.Dampening, "weight_decay": &o.WeightDecay,
		"nesterov": &o.Nesterov,
		"beta1":    &o.Beta1, "beta2": &o.Beta2, "eps": &o.Eps, "initial_accumulator": &o.InitialAccumulator, "beta": &o.Beta,
		"l1": &o.L1,
		"l2": &o.L2, "exact": &o.Exact}); err != nil {
		return o, fmt.Errorf("optimizer %s: %w", s.Optimizer, err)
	}
	if s.Schedule != "" {
		o.Schedule = &schema.Schedule{}
		if o.Schedule.Kind, err = read(s.Schedule, map[string]any{"warmup": &o.Schedule.Warmup, "total": &o.Schedule.Total,
			"final": &o.Schedule.Final, "steps": &o.Schedule.Steps, "gamma": &o.Schedule.Gamma}); err != nil {
			return o, fmt.Errorf("schedule %s: %w", s.Schedule, err)
		}
	}
	if s.Clip != "" {
		kind, most, _ := strings.Cut(s.Clip, ":")
		x, err := strconv.ParseFloat(most, 32)
		if err != nil {
			return o, fmt.Errorf("clip %q: want value:MAX, row:MAX or global:MAX, MAX being a number", s.Clip)
		}
		o.Clip = &schema.Clipping{Kind: kind, Max: float32(x)}
	}
	return o, nil
}

func (s Shared) kindText() string {
	if s.Optimizer == "" {
		return schema.OptimizerSGD
	}
	return s.Optimizer
}

// Kind is the kind of the optimizer.
func (s Shared) Kind() string { kind, _ := words(s.kindText()); return kind }

func (s Shared) clipsRows() bool { kind, _ := words(s.Clip); return kind == schema.ClipRow }

// TableOptimizer is the optimizer of a workload's tables where it is not the job's: with the norm of rows clipped,
// which parameters do not have. s must be valid.
func (s Shared) TableOptimizer() *schema.Optimizer {
	if !s.clipsRows() {
		return nil
	}
	o, _ := s.optimizer()
	return &o
}

// Resolve sets LR and Momentum to the defaults of the optimizer, if they are not given.
func (s *Shared) Resolve(given func(flag string) bool) error {
	if s.Kind() == schema.OptimizerSGD {
		return nil
	}
	if lr, known := defaultLR[s.Kind()]; known && !given("lr") {
		s.LR = lr
	}
	if given("momentum") && s.Momentum != 0 {
		return fmt.Errorf("momentum %v with optimizer %s: want none, it is of sgd", s.Momentum, s.Kind())
	}
	s.Momentum = 0
	return nil
}

// checkOptimizer adds what is wrong with the optimizer, its schedule and what is clipped.
func (s Shared) checkOptimizer(c *Check) {
	o, err := s.optimizer()
	if err != nil {
		c.Add("%w", err)
		return
	}
	for _, wrong := range o.Validate() {
		if wrong.Field != "optimizer.lr" && wrong.Field != "optimizer.momentum" { // CheckTraining says so
			c.Add("%w", wrong)
		}
	}
	if o.Clip != nil && o.Clip.Kind == schema.ClipGlobal && s.Apply != schema.ApplyMean {
		c.Add("clip %s with apply %q: want %q, since else each shard steps before the norm of all gradients is known", s.Clip,
			s.Apply, schema.ApplyMean)
	}
}
