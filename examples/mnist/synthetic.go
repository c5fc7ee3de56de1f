package mnist

import "gradbus/philox"

// Synthetic generates a data set that can be learned in a few hundred batches: each class is a drawing of four blobs
// whose places follow from the class alone; a sample is that drawing moved by up to two pixels each way, in its own
// strength, with noise over it. Classes take turns. It is the same everywhere and for ever: blobs and samples are
// counter-based, training and test samples being distinct.
func Synthetic(train, test int) *Data {
	var drawings [Classes][]int
	for c := range drawings {
		drawings[c] = drawing(c)
	}
	d := &Data{Source: DataSynthetic, Synthetic: true, Train: generate(&drawings, train, 0),
		Test: generate(&drawings, test, 1)}
	d.seal()
	return d
}

const (
	syntheticSeed = 1
	blobs         = 4
	radius2       = 16 // of a blob, squared
	shiftMax      = 2
	noise         = 64 // of 255, at most
)

// drawing gives [28, 28] values from 0 to 255: round blobs with their centres 6 pixels or more from the edge. Whole
// numbers only, so that every processor draws the same.
func drawing(class int) []int {
	r := philox.New(syntheticSeed, "drawing", uint64(class), 0, 0)
	image := make([]int, Pixels)
	for range blobs {
		y, x := 6+int(r.Below(16)), 6+int(r.Below(16))
		for at := range image {
			dy, dx := at/Side-y, at%Side-x
			image[at] = max(image[at], 255*(radius2-dy*dy-dx*dx)/radius2)
		}
	}
	return image
}

// generate draws n samples of half 0 (training) or 1 (test).
func generate(drawings *[Classes][]int, n int, half uint64) Set {
	s := Set{Images: make([]byte, n*Pixels), Labels: make([]byte, n)}
	for i := range n {
		r := philox.New(syntheticSeed, "sample", half, uint64(i), 0)
		class := i % Classes
		down, right := int(r.Below(2*shiftMax+1))-shiftMax, int(r.Below(2*shiftMax+1))-shiftMax
		strength := 60 + int(r.Below(41)) // of 100
		s.Labels[i] = byte(class)
		image := s.Images[i*Pixels:][:Pixels]
		for at := range image {
			y, x := at/Side-down, at%Side-right
			value := int(r.Below(noise))
			if y >= 0 && y < Side && x >= 0 && x < Side {
				value = max(value, strength*drawings[class][y*Side+x]/100)
			}
			image[at] = byte(value)
		}
	}
	return s
}
