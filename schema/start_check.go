package schema

import "regexp"

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// start checks that what is assigned arrives with equal bits, at one version of all owners.
func (c *jobCheck) start(j *Job) {
	if j.Start == nil {
		return
	}
	n := j.normal()
	if !digestForm.MatchString(j.Start.Digest) {
		c.add("start.digest", j.Start.Digest, "64 hexadecimal digits")
	}
	c.between("start.batches", j.Start.Batches, 1, startBatchesMax)
	if n.Consistency == ConsistencyAsync {
		c.add("start", n.Consistency, "consistency %s, %s or %s: else no batch is one of all trainers", ConsistencySync,
			ConsistencyBounded, ConsistencyGrouped)
	}
	if n.TableConsistency == ConsistencyAsync {
		c.add("start", n.TableConsistency, "table_consistency %s: else no batch is one of all trainers", ConsistencySync)
	}
	if n.Wire.Gradients != GradientsFloat32 {
		c.add("start", n.Wire.Gradients, "wire.gradients %s: 16 bits would round the values", GradientsFloat32)
	}
	if len(j.Modules) > 0 {
		c.add("start", len(j.Modules), "no modules: theirs begin as their seeds say")
	}
}
