package metrics

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"

	"gradbus/schema"
)

// family is one metric: its name, its type and what it says.
type family struct {
	name   string
	kind   dto.MetricType
	help   string
	labels []string // besides those of its subject

	typeName string // of kind, as it is written
}

// figure is a family that is read from a T.
type figure[T any] struct {
	family
	read  func(T, *row)
	at    int   // index in the sheet
	order []int // of the table's labels and then its own, by name
}

// table is what is told of subjects of one sort.
type table[T any] struct {
	labels  []string // that name the subject
	figures []figure[T]
}

// counter and gauge are families with one sample for each subject.
func counter[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_COUNTER, help: help}, read: func(s T, r *row) { r.value(read(s)) }}
}

func gauge[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_GAUGE, help: help}, read: func(s T, r *row) { r.value(read(s)) }}
}

// counters and gauges are families with any number of samples for each subject, told apart by labels.
func counters[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_COUNTER, help: help, labels: labels}, read: read}
}

func gauges[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_GAUGE, help: help, labels: labels}, read: read}
}

// summary is a number of observations and their sum, without quantiles.
func summary[T any](name, help string, read func(T) (count uint64, sum float64)) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_SUMMARY, help: help}, read: func(s T, r *row) { r.summary(read(s)) }}
}

// row takes the samples of one family and one subject.
type row struct {
	on     *sheet
	at     int // of the family on the sheet
	labels []string
	order  []int    // of the subject's labels and then these, by name
	base   []string // the subject's labels, as they are written
	whole  string   // all of them, where there are no others
}

// value adds a sample. values are those of the family's own labels, in their order.
func (r *row) value(v float64, values ...string) { r.sample("", v, values) }

// summary adds a sample of a summary.
func (r *row) summary(count uint64, sum float64) {
	r.sample("_sum", sum, nil)
	r.sample("_count", float64(count), nil)
}

// sample writes a line: the family's name and what is put behind it, labels by name, and the value.
func (r *row) sample(suffix string, v float64, values []string) {
	name := r.on.of[r.at].name
	if len(values) != len(r.labels) {
		panic("metrics: " + name + " has other labels than it says") // the tables and their readers are of this package
	}
	b := append(append(r.on.text[r.at], name...), suffix...)
	if len(values) == 0 {
		b = append(b, r.whole...)
	} else {
		sign := byte('{')
		for _, i := range r.order {
			b = append(b, sign)
			if sign = ','; i < len(r.base) {
				b = append(b, r.base[i]...)
			} else {
				b = appendLabel(b, r.labels[i-len(r.base)], values[i-len(r.base)])
			}
		}
		b = append(b, '}')
	}
	b = append(appendValue(append(b, ' '), v), '\n')
	r.on.text[r.at] = b
}

// appendLabel writes a label and its value.
func appendLabel(b []byte, name, value string) []byte {
	b = append(append(b, name...), '=', '"')
	for _, c := range []byte(label(value)) {
		switch c {
		case '\\':
			b = append(b, '\\', '\\')
		case '\n':
			b = append(b, '\\', 'n')
		case '"':
			b = append(b, '\\', '"')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendValue writes a number as Prometheus has it.
func appendValue(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 { // as most are, and quicker; so AppendFloat would write them, too, but for the sign of -0
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// byName are the indexes of names in the order of these.
func byName(names []string) []int {
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	return order
}

// label makes a value fit for a label: UTF-8, and no longer than texts of the protocol.
func label(value string) string { return schema.Clip(value) }

// sheet is one scrape: the text of a family for every row of every table, in the order of their names.
type sheet struct {
	of   []family
	text [][]byte        // of the samples of a family; empty where it has none
	seen map[string]bool // subjects that are on it: a second of the same labels would spoil the whole scrape
}

// sheets makes empty ones, and keeps those that were used: a scrape has thousands of samples, as one a second later has.
type sheets struct {
	of   []family
	used sync.Pool
}

func (s *sheets) new() *sheet {
	if used, ok := s.used.Get().(*sheet); ok {
		clear(used.seen)
		for i := range used.text {
			used.text[i] = used.text[i][:0]
		}
		return used
	}
	return &sheet{of: s.of, text: make([][]byte, len(s.of)), seen: map[string]bool{}}
}

// done takes back a sheet that nobody reads any more.
func (s *sheets) done(with *sheet) { s.used.Put(with) }

// appendFamily writes the i-th family, where it has samples.
func (s *sheet) appendFamily(b []byte, i int) []byte {
	if len(s.text[i]) == 0 {
		return b
	}
	f := &s.of[i]
	b = append(append(append(append(b, "# HELP "...), f.name...), ' '), f.help...)
	b = append(append(append(append(b, "\n# TYPE "...), f.name...), ' '), f.typeName...)
	return append(append(b, '\n'), s.text[i]...)
}

// write puts a subject on the sheet, once. values are those of the table's labels, and are made fit for them.
func (t *table[T]) write(to *sheet, subject T, values ...string) {
	if len(t.figures) == 0 {
		return
	}
	for i := range values {
		values[i] = label(values[i]) // before they are compared
	}
	key := t.figures[0].name + "\xff" + strings.Join(values, "\xff")
	if to.seen[key] {
		return
	}
	to.seen[key] = true
	r := &row{on: to, base: make([]string, len(values))}
	for i, value := range values {
		r.base[i] = string(appendLabel(nil, t.labels[i], value))
	}
	if len(values) > 0 {
		sorted := make([]string, 0, len(values))
		for _, i := range byName(t.labels) {
			sorted = append(sorted, r.base[i])
		}
		r.whole = "{" + strings.Join(sorted, ",") + "}"
	}
	for i := range t.figures {
		f := &t.figures[i]
		r.at, r.labels, r.order = f.at, f.labels, f.order
		f.read(subject, r)
	}
}

// truth is a bool as Prometheus has it.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
