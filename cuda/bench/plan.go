package bench

import (
	"fmt"
	"slices"

	"gradbus/cuda"
)

// Kinds of ids.
const (
	idsUniform   = "uniform"
	idsZipf      = "zipf"
	idsAscending = "ascending"
)

// spec is one measurement to make. What is zero does not apply to its operation.
type spec struct {
	op           string
	rows, dim    int
	bags, length int
	n, terms     int
	ids          string
	dtype        cuda.DType
}

func (s spec) String() string {
	text := s.op
	for _, p := range []struct {
		name  string
		value int
	}{{"rows", s.rows}, {"dim", s.dim}, {"bags", s.bags}, {"length", s.length}, {"n", s.n}, {"terms", s.terms}} {
		if p.value > 0 {
			text += fmt.Sprintf(" %s %s", p.name, thousands(p.value))
		}
	}
	if s.ids != "" {
		text += " " + s.ids
	}
	if s.dtype != cuda.Float32 {
		text += " " + s.dtype.String()
	}
	return text
}

// Ops are the names of the operations that Run measures, but for the streams, which it always does.
func Ops() []string {
	var names []string
	for _, s := range plan(true) {
		if !slices.Contains(names, s.op) {
			names = append(names, s.op)
		}
	}
	return names
}

const (
	million = 1000 * 1000
	// 25 MB of float32, as much as data-parallel training sends at a time.
	averageValues = 25 * million / 4
)

// streams are what shares refer to: read is a search for a NaN that is not there, copy is a copy. Each is of 1 GiB.
func streams(quick bool) []spec {
	n := 1 << 28
	if quick {
		n = 1 << 24
	}
	return []spec{{op: opRead, n: n}, {op: opCopy, n: n}}
}

// plan lists the measurements, those of one table next to each other, since it is kept from one to the next.
func plan(quick bool) []spec {
	tables, dims, scale := []int{million, 10 * million}, []int{16, 64, 128, 256}, 1
	if quick {
		tables, dims, scale = []int{million / 10}, []int{64}, 20
	}
	var all []spec
	for _, rows := range tables {
		for _, dim := range dims {
			for _, ids := range []string{idsUniform, idsZipf} {
				all = append(all,
					spec{op: "bag_forward", rows: rows, dim: dim, bags: 8192 / scale, length: 20, ids: ids},
					spec{op: "bag_forward", rows: rows, dim: dim, bags: 65536 / scale, length: 1, ids: ids})
			}
		}
	}
	for _, ids := range []string{idsUniform, idsZipf} {
		all = append(all, spec{op: "bag_forward", rows: 5 * million / scale, dim: 128, bags: 2048 / scale,
			length: 150, ids: ids})
	}
	for _, dtype := range []cuda.DType{cuda.Float16, cuda.BFloat16} {
		all = append(all, spec{op: "bag_forward", rows: million / scale, dim: 128, bags: 8192 / scale, length: 20,
			ids: idsUniform, dtype: dtype})
	}
	rows, n := million/scale, 8192*20/scale
	for _, ids := range []string{idsUniform, idsZipf} {
		all = append(all,
			spec{op: "bag_backward", rows: rows, dim: 64, bags: 8192 / scale, length: 20, ids: ids},
			spec{op: "coalesce", rows: rows, dim: 64, n: n, ids: ids},
			spec{op: "coalesce_apply", rows: rows, dim: 64, n: rows, ids: ids})
	}
	all = append(all,
		spec{op: "merge", rows: rows, dim: 64, n: n, terms: 8, ids: idsUniform},
		spec{op: "apply_rows", rows: rows, dim: 64, n: n, ids: idsAscending},
		spec{op: "apply_dense", n: 64 * million / scale},
		spec{op: "average", terms: 8, n: averageValues / scale},
		spec{op: "average_apply", terms: 8, n: averageValues / scale})
	if !quick {
		all = append(all, spec{op: "coalesce_apply", rows: 10 * million, dim: 64, n: million, ids: idsUniform},
			spec{op: "coalesce_apply", rows: 10 * million, dim: 64, n: million, ids: idsZipf})
	}
	return all
}
