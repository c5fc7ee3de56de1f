package nn

import (
	"errors"
	"fmt"

	"gradbus/cuda"
	"gradbus/philox"
)

// BagLayer pools embedding rows into one of Dim values a sample, as the first layer of a module; see Bags for what it
// takes in place of x. Its rows are a parameter, [Rows, Dim] called "weight", that begins normal with deviation 1 as in
// PyTorch, and whose gradient has a row for each of them, zero where no sample has the id. Or they are Served: those of
// a table that the session looked up, Bags.Rows. Then there is no parameter, and Net.GradX makes Backward give gradX
// [n, Dim], the gradient of what was pooled, which is what trainer.LaneStep.BagGrad takes with the same offsets.
//
// A bag without ids is a zero row. The mean divides the sum once. Sums are canonical.
type BagLayer struct {
	Rows   int     `json:"rows,omitempty"` // 0 where served
	Dim    int     `json:"dim"`
	Mode   BagMode `json:"mode,omitempty"` // "sum", also "", or "mean"
	Served bool    `json:"served,omitempty"`
}

// BagMode says how rows become one.
type BagMode string

// Modes of a BagLayer.
const (
	BagSum  BagMode = "sum"
	BagMean BagMode = "mean"
)

func (l BagLayer) Parameters() []Parameter { return parametersOf(l) }

func (l BagLayer) parameters() []Parameter {
	if l.Served {
		return nil
	}
	return []Parameter{{Name: "weight", Shape: []int{l.Rows, l.Dim}, Kind: philox.Normal, Scale: 1}}
}

// OutShape takes samples without a shape: they are Bags.
func (l BagLayer) OutShape(in []int) ([]int, error) {
	if len(in) != 0 {
		return nil, badInput("embedding_bag", in, "none, since samples are bags")
	}
	return []int{l.Dim}, nil
}

func (l BagLayer) append(to []placed, prefix string) []placed {
	return append(to, placed{l, prefix})
}

func (l BagLayer) config() (string, any) { return "embedding_bag", l }

func (l BagLayer) check() error {
	const name = "embedding_bag"
	if l.Mode != "" && l.Mode != BagSum && l.Mode != BagMean {
		return fmt.Errorf("%w: %s mode %q: want %q or %q", ErrConfig, name, l.Mode, BagSum, BagMean)
	}
	least, most := 1, sizeMax
	if l.Served {
		least, most = 0, 0
	}
	return firstError(between(name, "dim", l.Dim, 1, sizeMax), between(name, "rows", l.Rows, least, most))
}

func (l BagLayer) layout(cuda.Layout) (cuda.Layout, bool) { return cuda.NCHW, true }

func (l BagLayer) work(e Env, _ site) work {
	mode := cuda.Sum
	if l.Mode == BagMean {
		mode = cuda.Mean
	}
	return &bagWork{spec: l, bag: NewEmbeddingBag(e.Backend, l.Dim, mode)}
}

type bagWork struct {
	spec BagLayer
	bag  *EmbeddingBag
	y    []float32
}

func (w *bagWork) keepsY() bool { return false }
func (w *bagWork) values() int  { return w.spec.Dim }

func (w *bagWork) forward(p *pass, _ []float32) ([]float32, error) {
	rows := p.bags.Rows
	if !w.spec.Served {
		if rows != nil {
			return nil, fmt.Errorf("%w: rows given to a bag that has its own: want a served one", ErrShape)
		}
		rows = p.params[0]
	}
	w.y = grown(w.y, p.n*w.spec.Dim)
	return w.y, w.bag.Forward(rows, p.bags.IDs, p.bags.Offsets, w.y)
}

func (w *bagWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !w.spec.Served {
		grad, err := p.gradOf(0)
		if err != nil {
			return nil, err
		}
		if grad != nil {
			keys, rows, err := w.bag.backward(w.spec.Rows, p.bags.IDs, p.bags.Offsets, gradY)
			if err != nil {
				return nil, err
			}
			clear(grad)
			for i, key := range keys {
				copy(grad[int(key)*w.spec.Dim:][:w.spec.Dim], rows[i*w.spec.Dim:])
			}
		}
		p.finish(0)
		if p.wantX {
			return nil, errors.New("a bag of a table of its own has no gradient but that of its rows")
		}
	}
	return gradY, nil
}
