package checkpoint

import (
	"fmt"
	"strings"
	"testing"

	"gradbus/philox"
	"gradbus/schema"
)

// A part has room for whatever a manifest within its limit names: with short names, with long ones, and with modules,
// whose parameters the manifest does not even name. So has the checkpoint's manifest, which is indented.
func TestPartsOfTheLargestManifest(t *testing.T) {
	parameters := func(name string, shape []int) func(j *schema.Job, i int) {
		return func(j *schema.Job, i int) {
			j.Parameters = append(j.Parameters, schema.Parameter{Name: fmt.Sprintf("%s%d", name, i), Shape: shape,
				Init: schema.Init{Kind: philox.Zeros}})
		}
	}
	module := "[" + strings.Repeat(`{"linear":{"in":1,"out":1}},`, 1023) + `{"relu":{}}]`
	for what, add := range map[string]func(j *schema.Job, i int){
		"short names":     parameters("", []int{1}),
		"long names":      parameters(strings.Repeat("n", 121), []int{1}),
		"many dimensions": parameters("", []int{1, 1, 1, 1, 1, 1, 1, 1}),
		"modules": func(j *schema.Job, i int) {
			j.Consistency, j.Policy = schema.ConsistencyAsync, schema.PolicyFail
			j.Modules = append(j.Modules, schema.ModuleSpec{Name: fmt.Sprintf("m%062d", i), In: []int{1}, Samples: 1,
				Contexts: 1, Module: module})
		},
	} {
		job := &schema.Job{Name: "largest", Workload: "w", Trainers: 1, Lanes: 1,
			Optimizer: schema.Optimizer{Kind: schema.OptimizerAdam, LR: 1}}
		job = job.WithDefaults()
		size := func() int {
			text, err := job.Encode()
			if err != nil {
				t.Fatal(err)
			}
			return len(text)
		}
		for i, step := 0, 1; ; step = 1 + i/8 {
			parameters, modules := len(job.Parameters), len(job.Modules)
			for range step {
				add(job, i)
				i++
			}
			if size() > schema.ManifestBytesMax || len(job.Modules) > schema.ModulesMax {
				job.Parameters, job.Modules = job.Parameters[:parameters], job.Modules[:modules]
				break
			}
		}
		id := ID{Epoch: 1, Version: 1}
		part, err := NewPart(t.TempDir(), job, id, 1, 0)
		if err != nil {
			t.Errorf("%s: a manifest of %d bytes: %v", what, size(), err)
			continue
		}
		part.Discard()
		m := &Manifest{Format: formatFull, ID: id, Job: job, Shards: 1, Parts: []PartInfo{{}}}
		text, err := m.encode()
		if err == nil {
			_, err = decodeManifest(text)
		}
		if err != nil || len(text) > manifestBytesMax {
			t.Errorf("%s: a manifest of %d bytes is %d in the checkpoint: %v", what, size(), len(text), err)
		}
	}
}
