package module

import (
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/state"
)

const (
	// bytesLimit stands for more memory than there is.
	bytesLimit = 1 << 60
	valueBytes = 4
)

// Bytes returns the bound of the memory of a job's modules if one ps hosts all of them. With T trainers, C =
// T*contexts, P bytes of parameters, N bytes of a net for the most samples, and B bytes of the larger of its input and
// output, each module takes
//
//	(C + 2T + 3) P   and twice what the optimizer keeps: a version or gradients for each context, both while it goes
//	                 back, a version for each evaluation, the newest one, the next, and one that is written down
//	(C + T) N        a net for each context, and for each evaluation
//	(C + 4T) B       inputs that contexts keep; for each trainer a request that is worked, one that comes in, the kept
//	                 answer and its copy in a queue
func (s *Sizes) Bytes(job *schema.Job) int64 {
	total := 0.0 // whose products may be beyond int64
	for i := range job.Modules {
		spec := &job.Modules[i]
		is := s.of(spec)
		out, err := is.outElements(spec)
		if err != nil {
			continue // registration refuses it
		}
		trainers := float64(job.Trainers)
		contexts := trainers * float64(spec.Contexts)
		copies := contexts + 2*trainers + 3
		slots, _ := state.SlotBytes(job.Optimizer, 1, 1)
		copies += float64(2 * slots / valueBytes)
		tensor := float64(max(out, spec.InElements())*spec.Samples*valueBytes + shard.FrameBytesOver)
		total += copies*float64(is.values*valueBytes) + (contexts+trainers)*is.net*float64(spec.Samples) +
			(contexts+4*trainers)*tensor*17/16
	}
	return int64(min(total, bytesLimit))
}
