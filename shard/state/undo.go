package state

// undoLog is records of values, and a mark each. It grows by a block: a step that has to wait for memory waits for one,
// however long the log is.
type undoLog struct {
	each   int // values of a record
	rows   int // records of a block
	n      int
	values [][]float32
	marks  [][]int64
}

// undoBlockValues is what a block has at most, unless that is one record: 256 KiB, which the system gives in some 50
// us.
const undoBlockValues = 1 << 16

// newUndoLog makes one for at most so many records.
func newUndoLog(each, most int) undoLog {
	return undoLog{each: each, rows: max(1, min(most, undoBlockValues/each))}
}

// add adds a record, whose values are the caller's to write.
func (u *undoLog) add(mark int64) []float32 {
	if u.n == u.rows*len(u.values) {
		u.values = append(u.values, make([]float32, u.rows*u.each))
		u.marks = append(u.marks, make([]int64, u.rows))
	}
	block, i := u.n/u.rows, u.n%u.rows
	u.n++
	u.marks[block][i] = mark
	return u.values[block][i*u.each : (i+1)*u.each]
}

// at is the record of a number, from 0.
func (u *undoLog) at(n int) (values []float32, mark int64) {
	block, i := n/u.rows, n%u.rows
	return u.values[block][i*u.each : (i+1)*u.each], u.marks[block][i]
}

// bytes is what all blocks take.
func (u *undoLog) bytes() int64 {
	return int64(len(u.values)) * int64(u.rows) * int64(u.each*valueBytes+stepBytes)
}
