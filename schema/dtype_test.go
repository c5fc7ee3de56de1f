package schema

import (
	"strings"
	"testing"

	"gradbus/lane"
)

func TestLayoutRefusesTypes(t *testing.T) {
	for _, c := range []struct {
		layout Layout
		text   string
	}{
		{Layout{Kind: KindMean, DType: DTypeBFloat16, Values: 4}, "values of bfloat16: this kind has none"},
		{Layout{Kind: KindRows, DType: DTypeFloat16}, "values of float16: this kind has none"},
		{Layout{Kind: KindLookup, DType: DTypeFloat32}, "values of float32: this kind has none"},
		{Layout{Kind: KindDense, DType: 4}, "values of dtype 4"},
		{Layout{Kind: KindDense, DType: DTypeBFloat16, Values: 3}, "multiple of 2"},
		{Layout{Kind: KindDense, Values: 6}, "multiple of 4"},
	} {
		if _, err := NewFrame(c.layout); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %q", c.layout, err, c.text)
		}
	}
}

// A frame's values are of the type that its job names, or it is refused; and a chunk has as many values in either type.
func TestCheckFrameOfTypes(t *testing.T) {
	names := map[DType]string{DTypeFloat32: GradientsFloat32, DTypeBFloat16: GradientsBFloat16,
		DTypeFloat16: GradientsFloat16}
	for have := range names {
		for want, gradients := range names {
			job := checkedJob()
			job.Wire.Gradients = gradients
			check(t, job.Validate())
			place := NewPlacement(job, 2)
			head := Head{Bucket: 1, Chunks: 1, Node: lane.Node{Count: 4}, Lanes: 4, Weight: 1}
			for values := 4; values <= 5; values++ {
				dense, err := Verify(build(t, Layout{Kind: KindDense, DType: have, Values: values * have.Bytes()}, head, nil),
					Limits{})
				check(t, err)
				reason := ReasonOK
				switch {
				case have != want:
					reason = ReasonWrongDType
				case values != 5:
					reason = ReasonWrongShape
				}
				if err := place.CheckFrame(&dense, 0); ReasonOf(err) != reason {
					t.Errorf("%d %v values in a job of %v: %v, want %v", values, have, want, err, reason)
				}
			}
			head.Bucket = 2
			sparse, err := Verify(build(t, Layout{Kind: KindSparse, DType: have}, head, nil), Limits{})
			check(t, err)
			if err := place.CheckFrame(&sparse, 0); (err == nil) != (have == want) {
				t.Errorf("rows of %v in a job of %v: %v", have, want, err)
			}
			head.Bucket = 1
			mean, err := Verify(build(t, Layout{Kind: KindMean, Values: 20}, head, nil), Limits{})
			check(t, err)
			if err := place.CheckFrame(&mean, 0); err != nil {
				t.Errorf("a result, which is float32 in any job: %v", err)
			}
		}
	}
}

func TestDTypeNames(t *testing.T) {
	for d, want := range []string{"none", "float32", "bfloat16", "float16", "dtype 4"} {
		if got := DType(d).String(); got != want {
			t.Errorf("type %d is %q, want %q", d, got, want)
		}
		if got, want := DType(d).Bytes(), []int{0, 4, 2, 2, 0}[d]; got != want {
			t.Errorf("type %d has %d bytes, want %d", d, got, want)
		}
	}
	if (Wire{}).DType() != DTypeFloat32 {
		t.Error("the default is not float32")
	}
}
