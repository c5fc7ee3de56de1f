package bench

// The bytes that an operation must move between memory and the processor: every input value once, of a table each
// distinct row once, and every output value once. docs/kernels.md has these formulas as a table. Ids and keys are 8
// bytes.

const idBytes = 8

// rowsBytes is n rows of dim values of so many bytes.
func rowsBytes(n, dim, value int) int64 { return int64(n) * int64(dim) * int64(value) }

// bagForwardBytes: ids, offsets and the distinct rows are read, a row for each bag is written.
func bagForwardBytes(n, distinct, bags, dim, value int) int64 {
	return idBytes*int64(n+bags+1) + rowsBytes(distinct+bags, dim, value)
}

// bagBackwardBytes: ids, offsets and a gradient for each bag are read, distinct ids and their sums written.
func bagBackwardBytes(n, distinct, bags, dim, value int) int64 {
	return idBytes*int64(n+bags+1+distinct) + rowsBytes(distinct+bags, dim, value)
}

// coalesceBytes: keys and rows are read, distinct keys and their sums written. Merge moves as much.
func coalesceBytes(n, distinct, dim, value int) int64 {
	return idBytes*int64(n+distinct) + rowsBytes(n+distinct, dim, value)
}

// applyRowsBytes: index and gradient are read, of the table and of each slot n rows are read and written.
func applyRowsBytes(n, dim, value, slots int) int64 {
	return idBytes*int64(n) + rowsBytes(n, dim, value)*int64(1+2*(1+slots))
}

// coalesceApplyBytes: keys and rows are read, of the table and of each slot the distinct rows are read and written.
func coalesceApplyBytes(n, distinct, dim, value, slots int) int64 {
	return idBytes*int64(n) + rowsBytes(n, dim, value) + rowsBytes(distinct, dim, value)*int64(2*(1+slots))
}

// applyDenseBytes: the gradient is read, parameters and slots are read and written.
func applyDenseBytes(n, value, slots int) int64 { return rowsBytes(n, 1, value) * int64(1+2*(1+slots)) }

// averageBytes: every term is read, the sum is written.
func averageBytes(terms, n, value int) int64 { return rowsBytes(n, terms+1, value) }

// averageApplyBytes: every term is read, parameters and slots are read and written.
func averageApplyBytes(terms, n, value, slots int) int64 {
	return rowsBytes(n, terms+2*(1+slots), value)
}
