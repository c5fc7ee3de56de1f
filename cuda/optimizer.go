package cuda

// Optimizer is the rule by which a gradient moves parameters: SGD, Adagrad, RowwiseAdagrad, Adam, AdamW or FTRL. For
// each value, with the gradient g, d = g/weight, clipped where a Clip says so, and d += WeightDecay*p where that is not
// 0. All is float32; a product is rounded before it is added. NaN in d, p or a slot makes the value and its slots NaN,
// but for what the momentum of a first step replaces; Inf likewise, or it ends as one of both.
type Optimizer interface {
	// SlotNames are the slots that a call must give, in the order of its documentation.
	SlotNames() []string
	kind() uint32
}

// ClipKind is what a Clip does.
type ClipKind uint32

// The kinds of clipping.
const (
	ClipNone  ClipKind = iota
	ClipScale          // d *= By
	ClipValue          // d to [-By, By]
	ClipRow            // a row's d *= By/norm where its norm is above By; not of dense tensors, which have no rows
)

// Clip bounds d = g/weight, before weight decay; the zero value leaves it as it is. By is finite and above 0, of
// ClipScale at least 0, and 0 of ClipNone. The norm of a row is sqrt(columns(d*d)), see RowwiseAdagrad. NaN stays NaN;
// a row whose norm is Inf becomes 0 where it is finite and NaN where it is not; ClipValue makes Inf a bound. What
// NonFinite counts is d before it.
type Clip struct {
	Kind ClipKind
	By   float32
}

// SGD in PyTorch's form. On a row's first step m = d, else m = Momentum*m + (1-Dampening)*d; p -= LR * (Nesterov ?
// d + Momentum*m : m). Its slot is "momentum", as large as the parameters; with Momentum 0 there is none, and p -=
// LR*d.
//
// Source: torch.optim.SGD (Sutskever et al. 2013, with the learning rate outside the velocity).
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float32
	Nesterov                             bool
}

// RowwiseAdagrad keeps one number a row, in the float32 slot "sum": s += columns(d*d)/dim; p -= LR * (d/(sqrt(s) +
// Eps)). columns adds x[j], x[j+16], ... to the j-th of 16 partial sums, each from +0, and those pairwise: i with i+8,
// i+4, i+2, i+1; a fixed order that suits vectors of every width.
//
// Source: Duchi et al. 2011, one accumulator a row as in FBGEMM's table batched embeddings.
type RowwiseAdagrad struct {
	LR, Eps, WeightDecay float32
}

// Adagrad, with the slot "sum" as large as the parameters: s += d*d; p -= LR * (d/(sqrt(s) + Eps)). What s begins with
// is the caller's.
//
// Source: Duchi et al. 2011; torch.optim.Adagrad.
type Adagrad struct {
	LR, Eps, WeightDecay float32
}

// Adam, with the slots "mean" and "square" as large as the parameters: mean = Beta1*mean + (1-Beta1)*d; square =
// Beta2*square + ((1-Beta2)*d)*d; p -= (LR/b1) * (mean/(sqrt(square)/b2 + Eps)), where b1 = 1 - Beta1^Step and b2 =
// sqrt(1
// - Beta2^Step) are made in float64 by repeated squaring and rounded once. Step counts from 1; sparse rows share it.
//
// Source: Kingma and Ba 2015; torch.optim.Adam, and torch.optim.SparseAdam for rows.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               uint64
}

// AdamW is Adam whose decay does not pass through the means: p *= 1 - LR*WeightDecay, which is made in float64 and
// rounded once, in place of d += WeightDecay*p.
//
// Source: Loshchilov and Hutter 2019; torch.optim.AdamW.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               uint64
}

// FTRL is FTRL-proximal, with the slots "z" and "n" as large as the parameters, both 0 at first:
//
//	n' = n + d*d;  z' = (z + LR*d) - (sqrt(n') - sqrt(n))*p
//	p = 0 where |z'| <= LR*L1, else (sign(z')*LR*L1 - z') / (sqrt(n') + (Beta + LR*L2))
//
// z is LR times that of the paper, so that LR may change from step to step. A value with n = 0 has had no gradient: its
// z is taken to be the one that gives p, -(p*(Beta + LR*L2) + sign(p)*LR*L1), so that what is not zero at first need
// not begin again at zero; with n' = 0 it stays.
//
// Source: McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", algorithm 1, per-coordinate rates.
type FTRL struct {
	LR, Beta, L1, L2 float32
}
