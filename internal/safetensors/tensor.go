package safetensors

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// Tensor is a named tensor, row-major. One of float32 has Values; another has its type and its bytes.
type Tensor struct {
	Name   string
	Shape  []int
	Values []float32

	DType string // a key of dtypes; "" is F32
	Data  []byte // little-endian, in place of Values
}

const float32Name = "F32"

var (
	// dtypes are the types of the format that PyTorch has had since version 1.13, and the bytes of an element.
	dtypes = map[string]int64{"F64": 8, "I64": 8, float32Name: 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1,
		"U8": 1, "BOOL": 1}
	float32Alone = map[string]int64{float32Name: 4}
)

// dtype is the name of the tensor's type.
func (t *Tensor) dtype() string { return cmp.Or(t.DType, float32Name) }

// Bytes is the content of the tensor, little-endian.
func (t *Tensor) Bytes() []byte {
	if t.Data != nil || len(t.Values) == 0 {
		return t.Data
	}
	data := make([]byte, 0, 4*len(t.Values))
	for _, v := range t.Values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}

// aligned gives tensors in the order in which they lie in a file: those with the longest elements first, so that each
// begins at a multiple of its element's size, as PyTorch wants it.
func aligned(tensors []Tensor) []Tensor {
	return slices.SortedStableFunc(slices.Values(tensors), func(a, b Tensor) int {
		return cmp.Compare(dtypes[b.dtype()], dtypes[a.dtype()])
	})
}
