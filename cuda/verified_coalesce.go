package cuda

import "slices"

// CoalesceApply implements Backend. A block is of the call's keys as they come; checked is every row that is first
// named in it, with all its positions, so that a row has the same chance however often it is named.
func (v *Verified) CoalesceApply(a CoalesceApply) (int, error) {
	size := rowsInBlock(a.Dim)
	blocks := blocksOf(a.Keys.n, size)
	first, due := v.number(blocks)
	if !due || a.shape() != nil {
		return v.Backend.CoalesceApply(a)
	}
	t := v.borrow()
	defer v.giveBack(t)
	t.keys = t.keys[:0]
	rows := int64(a.Table.n / a.Dim)
	for at, ok := v.due(first, first+uint64(blocks)); ok; at, ok = v.due(at+1, first+uint64(blocks)) {
		lo := int(at-first) * size
		for i := lo; i < min(lo+size, a.Keys.n); i++ {
			if key := indexAt(a.Keys, i); key >= 0 && key < rows {
				t.keys = append(t.keys, key)
			}
		}
	}
	slices.Sort(t.keys)
	t.keys = slices.Compact(t.keys)
	t.gather(a.Keys)
	t.keepFirst(func(position int64) bool {
		at := first + uint64(position)/uint64(size)
		_, due := v.due(at, at+1)
		return due
	})

	inPlace, n := a.Out.is(a.Table), 0
	call := func() (err error) { n, err = v.Backend.CoalesceApply(a); return err }
	var refused error
	for lo := 0; inPlace && lo < len(t.keys) && refused == nil; lo += size {
		refused = v.again(t, &a, lo, min(lo+size, len(t.keys)), Vector{})
	}
	if err := call(); err != nil {
		return 0, err
	}
	if inPlace {
		return n, v.settle("coalesce apply", t, refused)
	}
	if n < 0 || n > a.OutKeys.n {
		return n,
			v.settle("coalesce apply", t, shapeError("coalesce apply", "%d distinct keys, in room for %d", n, a.OutKeys.n))
	}
	for lo := 0; lo < len(t.keys); lo += size {
		t.clear()
		if err := v.settle("coalesce apply", t, v.again(t, &a, lo, min(lo+size, len(t.keys)), a.OutKeys.Slice(0, n))); err !=
			nil {
			return n, err
		}
	}
	return n, nil
}

// gather finds the positions of t.keys among all keys: those of key i are t.order[t.offsets[i]:t.offsets[i+1]],
// ascending.
func (t *trial) gather(keys Vector) {
	const bits = 1 << 16
	t.filter = grow(t.filter, bits/64)
	clear(t.filter)
	place := func(key int64) uint64 { return uint64(key) * 0x9e3779b97f4a7c15 >> 48 }
	for _, key := range t.keys {
		t.filter[place(key)/64] |= 1 << (place(key) % 64)
	}
	t.sorted = t.sorted[:0]
	wanted := Int64s(t.keys)
	for i := range keys.n {
		key := indexAt(keys, i)
		if p := place(key); t.filter[p/64]>>(p%64)&1 != 0 {
			if rank := rankOf(wanted, key); rank >= 0 {
				t.sorted = append(t.sorted, pair{uint64(rank), int64(i)})
			}
		}
	}
	t.spare = grow(t.spare, len(t.sorted))
	sorted := sortPairs(t.sorted, t.spare)
	t.order, t.offsets = grow(t.order, len(sorted)), grow(t.offsets, len(t.keys)+1)
	rank := 0
	for i, p := range sorted {
		for ; rank <= int(p.key); rank++ {
			t.offsets[rank] = int64(i)
		}
		t.order[i] = p.row
	}
	for ; rank < len(t.offsets); rank++ {
		t.offsets[rank] = int64(len(sorted))
	}
}

// keepFirst keeps those keys whose first position is one of those wanted.
func (t *trial) keepFirst(wanted func(position int64) bool) {
	kept, end := 0, int64(0)
	for i, key := range t.keys {
		positions := t.order[t.offsets[i]:t.offsets[i+1]]
		if !wanted(positions[0]) {
			continue
		}
		t.keys[kept] = key
		t.offsets[kept] = end // which is at most what it was
		end += int64(copy(t.order[end:], positions))
		kept++
	}
	t.keys, t.offsets = t.keys[:kept], t.offsets[:kept+1]
	t.offsets[kept] = end
}

// again has the oracle do rows [lo, hi) of t.keys: it pools what is summed for each, in the same canonical order, and
// steps. found are the keys that the backend has written, where it has.
func (v *Verified) again(t *trial, a *CoalesceApply, lo, hi int, found Vector) error {
	t.begin(lo / rowsInBlock(a.Dim))
	count := hi - lo
	from, to := t.offsets[lo], t.offsets[hi]
	offsets := t.take(Int64, count+1)
	for i, at := range t.offsets[lo : hi+1] {
		view[int64](offsets)[i] = at - from
	}
	sums := t.take(Float32, count*a.Dim)
	if err := v.oracle.BagForward(BagForward{Dim: a.Dim, Mode: Sum, Padding: NoPadding, Rows: a.Rows,
		IDs: Int64s(t.order[from:to]), Offsets: offsets, Out: sums}); err != nil {
		return err
	}
	whole := ApplyRows{Slots: a.Slots, Steps: a.Steps, Out: a.Out, Dim: a.Dim}
	b := ApplyRows{Dim: a.Dim, Optimizer: a.Optimizer, Clip: a.Clip, Weight: a.Weight, NonFinite: a.NonFinite,
		Steps: a.Steps, Table: a.Table,
		Index: Int64s(t.keys[lo:hi]), Grad: sums}
	t.update(&b, &whole, part{from: lo, keys: b.Index, limit: a.Table.n / a.Dim, inPlace: a.Out.is(a.Table), found: found})
	return v.oracle.ApplyRows(b)
}
