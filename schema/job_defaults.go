package schema

import "gradbus/lane"

// WithDefaults gives a copy of the manifest in which every field that is zero and has an obvious value has it: one
// trainer, lane.Default lanes, ConsistencySync, ApplyUpdate, PolicyRecover or PolicyFail, ChunkBytes, SGD, what an
// optimizer leaves open (Optimizer.WithDefaults), Partitions for each table, and the job's name as its Workload.
// Left are the name, what is trained, how that begins (Init) and the learning rate.
//
//	job := (&Job{Name: "clicks", Optimizer: Optimizer{LR: 0.1}, Tables: tables}).WithDefaults()
func (j *Job) WithDefaults() *Job {
	n := *j
	setDefault(&n.Workload, string(n.Name))
	setDefault(&n.Trainers, 1)
	if n.Trainers <= lane.LanesMax { // with more, Validate says what is wrong
		setDefault(&n.Lanes, lane.Default(n.Trainers))
	}
	setDefault(&n.Consistency, ConsistencySync)
	setDefault(&n.Apply, ApplyUpdate)
	if n.Reduce == ReduceTrainers && j.Apply == "" {
		n.Apply = ApplyMean // no shard has parameters
	}
	setDefault(&n.ChunkBytes, ChunkBytes)
	n.Tables = append([]TableSpec(nil), j.Tables...)
	n.Parameters = append([]Parameter(nil), j.Parameters...)
	for i := range n.Tables {
		setDefault(&n.Tables[i].Partitions, Partitions)
	}
	n.resolveOptimizers()
	if n.TakesOver() || n.rewindsAlike() {
		setDefault(&n.Policy, PolicyRecover)
	}
	setDefault(&n.Policy, PolicyFail)
	return &n
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Zeros, Uniform and Normal are how a tensor begins; see Init.
func Zeros() Init                { return Init{Kind: InitZeros} }
func Uniform(scale float32) Init { return Init{Kind: InitUniform, Scale: scale} }
func Normal(scale float32) Init  { return Init{Kind: InitNormal, Scale: scale} }
