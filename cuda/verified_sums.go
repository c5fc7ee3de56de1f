package cuda

import (
	"math"
	"sort"
)

// Average implements Backend.
func (v *Verified) Average(a Average) error {
	c := cut{a.Out.n, verifyValues}
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil {
		return v.Backend.Average(a)
	}
	inPlace := false
	for i := range a.Terms {
		inPlace = inPlace || a.Terms[i].Values.is(a.Out)
	}
	return v.check("average", first, c.blocks(), inPlace, func() error { return v.Backend.Average(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Terms, b.Out = t.slices(a.Terms, lo, hi), t.take(a.Out.dtype, hi-lo)
			t.note(part{what: "sum", got: a.Out, want: b.Out, from: lo, n: 1})
			return v.oracle.Average(b)
		})
}

// Copy implements Backend. What was copied needs no oracle.
func (v *Verified) Copy(to, from Vector) error {
	c := cut{to.n, verifyValues}
	first, due := v.number(c.blocks())
	if !due || copyShape(to, from) != nil {
		return v.Backend.Copy(to, from)
	}
	return v.check("copy", first, c.blocks(), false, func() error { return v.Backend.Copy(to, from) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			t.note(part{what: "copy", got: to, want: from.Slice(lo, hi), from: lo, n: 1})
			return nil
		})
}

// Merge implements Backend. Its blocks are of the rows that come out: the keys from one block's first to before the
// next one's first are merged again, so that one that is missing is found as well.
func (v *Verified) Merge(a Merge) (int, error) {
	n, err := v.Backend.Merge(a)
	if err != nil {
		return n, err
	}
	size := rowsInBlock(a.Dim)
	first, due := v.number(max(blocksOf(n, size), 1)) // of no rows, there may have to be some
	if !due {
		return n, nil
	}
	t := v.borrow()
	defer v.giveBack(t)
	if n < 0 || n > a.OutKeys.n {
		return n, v.settle("merge", t, shapeError("merge", "%d distinct keys, in room for %d", n, a.OutKeys.n))
	}
	keys, end := view[uint64](a.OutKeys)[:n], first+uint64(max(blocksOf(n, size), 1))
	for at, ok := v.due(first, end); ok; at, ok = v.due(at+1, end) {
		t.clear()
		t.begin(int(at - first))
		if err := v.settle("merge", t, v.mergeAgain(t, &a, keys, size)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// mergeAgain has the oracle make a block of rows of a merge.
func (v *Verified) mergeAgain(t *trial, a *Merge, keys []uint64, size int) error {
	lo, hi := t.block*size, min((t.block+1)*size, len(keys))
	least, most := uint64(0), uint64(math.MaxUint64)
	if lo > 0 {
		least = keys[lo]
	}
	if hi < len(keys) {
		most = keys[hi] - 1
	}
	t.rows = t.rows[:0]
	room := 0
	for i := range a.Terms {
		term := &a.Terms[i]
		all := view[uint64](term.Keys)
		from := sort.Search(len(all), func(i int) bool { return all[i] >= least })
		to := max(sort.Search(len(all), func(i int) bool { return all[i] > most }), from)
		to = min(to, from+size+1) // one more than there can be in a block shows that too many are missing
		room += to - from
		t.rows = append(t.rows,
			RowsTerm{term.First, term.Count, term.Keys.Slice(from, to), term.Rows.Slice(from*a.Dim, to*a.Dim)})
	}
	b := *a
	b.Terms, b.OutKeys, b.OutRows = t.rows, t.take(Uint64, room), t.take(a.OutRows.dtype, room*a.Dim)
	n, err := v.oracle.Merge(b)
	if err != nil {
		return err
	}
	if n != hi-lo { // the first that is missing, or too many
		i, made := 0, view[uint64](b.OutKeys)[:n]
		for i < min(n, hi-lo) && made[i] == keys[lo+i] {
			i++
		}
		e := &MismatchError{What: "keys", block: t.block, Position: lo + i, Width: 1, Key: -1, dType: Uint64}
		if lo+i < hi {
			e.got = rawBytes(Uint64s([]uint64{keys[lo+i]}))
		}
		if i < n {
			e.want = rawBytes(Uint64s([]uint64{made[i]}))
		}
		return e
	}
	t.note(part{what: "keys", got: a.OutKeys, want: b.OutKeys.Slice(0, n), from: lo, n: 1})
	t.note(part{what: "sum", got: a.OutRows, want: b.OutRows.Slice(0, n*a.Dim), from: lo, n: a.Dim, keys: b.OutKeys,
		limit: anyKey})
	return nil
}
