package round

import (
	"gradbus/cuda"
	"gradbus/schema"
)

// Values is the values of a frame, of whichever type, where they lie.
func Values(v *schema.View) cuda.Vector { return vector(v.Head().DType, v.Float32s(), v.Halves()) }

// rows is the rows of a part of a frame whose values are of the type.
func rows(dtype schema.DType, p *schema.Part) cuda.Vector { return vector(dtype, p.Rows, p.Halves) }

// vector is floats, or, where the type has 16 bits, the values whose bits are halves.
func vector(dtype schema.DType, floats []float32, halves []uint16) cuda.Vector {
	switch dtype {
	case schema.DTypeBFloat16:
		return cuda.BFloat16s(halves)
	case schema.DTypeFloat16:
		return cuda.Float16s(halves)
	}
	return cuda.Float32s(floats)
}

// NonFinite is the i-th value of values, which is no finite one, and what its sender may do about it, as text to
// append.
func NonFinite(backend cuda.Backend, values cuda.Vector, i int) (value float32, help string) {
	var one [1]float32
	_ = backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: []cuda.Term{{Count: 1, Values: values.Slice(i, i+1)}},
		Out: cuda.Float32s(one[:])})
	if values.DType() == cuda.Float16 && one[0] == one[0] {
		help = "; float16 ends at 65504: scale the loss down, or let gradients travel as bfloat16"
	}
	return one[0], help
}
