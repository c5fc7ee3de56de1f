package state

import "gradbus/schema"

// SlotShape is a slot of an optimizer as snapshots have it, for who must know their sizes before the first piece comes.
type SlotShape struct {
	Name   string
	PerRow bool // one value a row of a table; of a dense parameter every slot has one an element
}

// Width is how many values of the slot a row of so many columns has.
func (s SlotShape) Width(columns int) int {
	if s.PerRow {
		return 1
	}
	return columns
}

// SlotsOf is the slots that pieces of a tensor with this optimizer have, in the optimizer's order; none of one that is
// not known.
//
//	SlotsOf(schema.Optimizer{Kind: schema.OptimizerSGD, Momentum: 0.9}) // []SlotShape{{Name: "momentum"}}
func SlotsOf(o schema.Optimizer) []SlotShape {
	r, err := newRule(o, nil, 0)
	if err != nil {
		return nil // registration refuses it
	}
	var shapes []SlotShape
	for _, s := range r.slots {
		shapes = append(shapes, SlotShape{s.name, s.perRow})
	}
	return shapes
}

// MarksRows says whether rows of a table with this optimizer have marks (Rows.Last).
func MarksRows(o schema.Optimizer) bool {
	r, err := newRule(o, nil, 0)
	return err == nil && (r.exact || r.marks)
}
