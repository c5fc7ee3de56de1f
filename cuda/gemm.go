package cuda

// Gemm is C = op(A) x op(B) + Bias, or C += that with Accumulate: A is [M, K] ([K, M] where TransA), B [K, N] ([N, K]
// where TransB), Bias [N] or none, added to each row, C [M, N]. With K = 0 the product is zero. With ReLU, C is max(C,
// 0) in the end; not with Accumulate.
//
//	A = {{1, 2}}, B = {{3, 4}, {5, 6}}, Bias = {10, 20}   ->   C = {{23, 36}}
type Gemm struct {
	M, N, K        int
	TransA, TransB bool
	Accumulate     bool
	ReLU           bool
	A, B, Bias, C  []float32
}

func (a *Gemm) check() error {
	const op = "gemm"
	if err := firstOf(tensor(op, "a", a.A, a.M, a.K), tensor(op, "b", a.B, a.K, a.N),
		tensor(op, "c", a.C, a.M, a.N)); err != nil {
		return err
	}
	if a.Bias != nil {
		if err := tensor(op, "bias", a.Bias, a.N); err != nil {
			return err
		}
	}
	if a.ReLU && a.Accumulate {
		return argumentError(op, "ReLU and Accumulate together")
	}
	return separate(op, "c", a.C, a.A, a.B, a.Bias)
}

// Gemm: see the type.
func (d *Dense) Gemm(a Gemm) error {
	if err := a.check(); err != nil {
		return err
	}
	if len(a.C) == 0 {
		return nil
	}
	if a.K == 0 {
		a.zeroProduct()
		return nil
	}
	return d.products.gemm(&a)
}

// zeroProduct is a product over nothing: the bias alone.
func (a *Gemm) zeroProduct() {
	if !a.Accumulate {
		clear(a.C)
	}
	if a.Bias != nil {
		for m := range a.M {
			add(a.C[m*a.N:][:a.N], a.Bias)
		}
	}
	if a.ReLU {
		goMaps{}.reluForward(a.C, a.C)
	}
}

// addBias is Y = X + Bias for each row: X and Y [Rows, Columns], Bias [Columns]. Y may be X.
//
//	X = {{1, 2}, {3, 4}}, Bias = {10, 20}   ->   Y = {{11, 22}, {13, 24}}
type addBias struct {
	rows, columns int
	x, bias, y    []float32
}

// addBias: see the type.
func (d *Dense) addBias(a addBias) error {
	const op = "add bias"
	if err := firstOf(tensor(op, "x", a.x, a.rows, a.columns), tensor(op, "bias", a.bias, a.columns),
		tensor(op, "y", a.y, a.rows, a.columns), separate(op, "y", a.y, a.bias), inPlace(op, "y", a.y, a.x)); err != nil {
		return err
	}
	d.maps.addBias(&a)
	return nil
}

// ColumnSums is Out[j] = the sum over i of X[i, j], in canonical order; X is [Rows, Columns], Out [Columns]. It is the
// gradient of a bias.
//
//	X = {{1, 2}, {3, 4}}   ->   Out = {4, 6}
type ColumnSums struct {
	Rows, Columns int
	X, Out        []float32
}

// ColumnSums: see the type.
func (d *Dense) ColumnSums(a ColumnSums) error {
	const op = "column sums"
	if err := firstOf(tensor(op, "x", a.X, a.Rows, a.Columns), tensor(op, "out", a.Out, a.Columns),
		separate(op, "out", a.Out, a.X)); err != nil {
		return err
	}
	if a.Columns > 0 {
		d.maps.columnSums(&a)
	}
	return nil
}
