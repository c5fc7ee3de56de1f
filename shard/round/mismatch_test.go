package round

import (
	"errors"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// mistaken is a backend whose sums come out wrong.
type mistaken struct{ cuda.Backend }

func (mistaken) Average(cuda.Average) error {
	return &cuda.MismatchError{Op: "average", What: "sum", Position: 2, Width: 1, Key: -1}
}

// A sum that is wrong before the round closes says which parameter it is of, in the error's text.
func TestMismatchBeforeTheEndIsNamed(t *testing.T) {
	job := &schema.Job{Lanes: 4, ChunkBytes: 4096, Parameters: []schema.Parameter{{Name: "first", Shape: []int{3}},
		{Name: "second", Shape: []int{7}}}}
	d := newDense(denseConfig{backend: mistaken{open(t)}, lanes: 4, held: NewHeld(4),
		place: schema.NewPlacement(job, 1), chunks: []Chunk{{Bucket: 0, Chunks: 1, Offset: 2, Elements: 8}}})
	w, err := &Weights{}, error(nil)
	for lanes := range lane.Lane(2) {
		err = d.Add(&Contribution{Node: lane.Node{First: lanes, Count: 1}, Weight: 1,
			Values: cuda.Float32s(make([]float32, 8)), Contributor: int(lanes), Payload: &lease{}}, w)
	}
	if !errors.Is(err, cuda.ErrVerify) || !strings.Contains(err.Error(), `parameter "second", element 4`) {
		t.Errorf("%v, want element 4 of the second parameter, with which the bucket begins", err)
	}
}
