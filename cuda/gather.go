package cuda

func (a *Gather) shape() error {
	const op = "gather"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := firstOf(typed(op, "rows", a.Rows, floats), typed(op, "ids", a.IDs, indexes),
		typed(op, "out", a.Out, only(a.Rows.dtype)), checkFew(op, "ids", a.IDs.n)); err != nil {
		return err
	}
	if _, err := rowsOf(op, "rows", a.Rows.n, a.Dim); err != nil {
		return err
	}
	return firstOf(exactRows(op, "out", a.Out.n, a.IDs.n, a.Dim), apart(op, "out", a.Out, a.Rows, a.IDs))
}

func (a *Gather) data() error { return checkIDs("gather", a.IDs, int64(a.Rows.n/a.Dim), NoPadding) }

// Gather: see the interface.
func (r *reference) Gather(a Gather) error {
	r.calls.n.Add(1)
	return a.inGo()
}

func (a *Gather) inGo() error {
	if err := a.shape(); err != nil {
		return err
	}
	if err := a.data(); err != nil || a.IDs.n == 0 {
		return err
	}
	row := a.Dim * a.Rows.dtype.Bytes()
	if a.IDs.dtype == Int32 {
		gatherRows(a.Out.bytes(), a.Rows.bytes(), row, view[int32](a.IDs))
	} else {
		gatherRows(a.Out.bytes(), a.Rows.bytes(), row, view[int64](a.IDs))
	}
	return nil
}

func gatherRows[T int32 | int64](out, rows []byte, row int, ids []T) {
	for _, id := range ids {
		out = out[copy(out, rows[int(id)*row:(int(id)+1)*row]):]
	}
}
