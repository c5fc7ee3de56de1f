package state

import "gradbus/schema"

// Scanner reads all rows of a table that is whole here, piece by piece: partitions ascending, and keys ascending within
// each. Its memory is reused from scan to scan.
type Scanner struct {
	keys []uint64
	rows []float32
}

// Scan gives yield pieces of at most valuesMax values, or one row; both slices are valid until it returns. An error of
// yield ends the scan and is returned.
func (s *Scanner) Scan(t Table, spec *schema.TableSpec, valuesMax int, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	most := max(1, valuesMax/spec.Dim)
	for p := range spec.Partitions {
		cursor := uint64(0)
		for {
			left := t.Left(schema.Partition(p), cursor)
			if left == 0 {
				break
			}
			n := min(left, most)
			s.keys, s.rows = grown(s.keys, n), grown(s.rows, n*spec.Dim)
			if err := t.Scan(schema.Partition(p), cursor, s.keys, s.rows); err != nil {
				return err
			}
			if err := yield(schema.Partition(p), s.keys, s.rows); err != nil {
				return err
			}
			cursor = s.keys[n-1] + 1
		}
	}
	return nil
}
