package state

import "fmt"

// Marks of rows (Rows.Last) travel as two float32 each, of so many bits, which a float32 holds exactly: the upper ones
// first.
const (
	MarkBits = 24
	markLow  = 1<<MarkBits - 1
)

// SplitMarks appends marks as pairs.
func SplitMarks(pairs []float32, marks []int64) ([]float32, error) {
	for _, n := range marks {
		if n < 0 || n >= 1<<(2*MarkBits) {
			return nil, fmt.Errorf("mark %d: want 0 to %d", n, int64(1)<<(2*MarkBits)-1)
		}
		pairs = append(pairs, float32(n>>MarkBits), float32(n&markLow))
	}
	return pairs, nil
}

// JoinMarks appends the marks that SplitMarks made pairs of, or says which pair is none.
func JoinMarks(marks []int64, pairs []float32) ([]int64, error) {
	for i := 0; i < len(pairs); i += 2 {
		high, low := int64(pairs[i]), int64(pairs[i+1])
		if high < 0 || high > markLow || low < 0 || low > markLow || float32(high) != pairs[i] || float32(low) != pairs[i+1] {
			return nil, fmt.Errorf("the mark of row %d is %v and %v", i/2, pairs[i], pairs[i+1])
		}
		marks = append(marks, high<<MarkBits|low)
	}
	return marks, nil
}
