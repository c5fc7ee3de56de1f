package cuda

// Optimizer is the rule by which a gradient moves parameters: SGD, RowwiseAdagrad or Adam. For each value, with the
// gradient g, d = g/weight, and d += WeightDecay*p where that is not 0. All is float32; a product is rounded before it is
// added.
type Optimizer interface {
	// SlotNames are the slots that a call must give, in the order of its documentation.
	SlotNames() []string
	kind() uint32
}

// SGD in PyTorch's form. On a row's first step m = d, else m = Momentum*m + (1-Dampening)*d; p -= LR * (Nesterov ?
// d + Momentum*m : m). Its slot is "momentum", as large as the parameters; with Momentum 0 there is none, and p -= LR*d.
//
// Source: torch.optim.SGD (Sutskever et al. 2013, with the learning rate outside the velocity).
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float32
	Nesterov                             bool
}

// RowwiseAdagrad keeps one number a row, in the float32 slot "sum": s += columns(d*d)/dim; p -= LR * (d/(sqrt(s) + Eps)).
// columns adds x[j], x[j+16], ... to the j-th of 16 partial sums, each from +0, and those pairwise: i with i+8, i+4, i+2,
// i+1; a fixed order that suits vectors of every width.
//
// Source: Duchi et al. 2011, one accumulator a row as in FBGEMM's table batched embeddings.
type RowwiseAdagrad struct {
	LR, Eps, WeightDecay float32
}

// Adam, with the slots "mean" and "square" as large as the parameters: mean = Beta1*mean + (1-Beta1)*d; square =
// Beta2*square + ((1-Beta2)*d)*d; p -= (LR/b1) * (mean/(sqrt(square)/b2 + Eps)), where b1 = 1 - Beta1^Step and b2 = sqrt(1
// - Beta2^Step) are made in float64 by repeated squaring and rounded once. Step counts from 1; sparse rows share it.
//
// Source: Kingma and Ba 2015; torch.optim.Adam, and torch.optim.SparseAdam for rows.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               uint64
}
