package metrics

import (
	"cmp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"gradbus/schema"
)

// family is one metric: its name, its type and what it says.
type family struct {
	name   string
	kind   dto.MetricType
	help   string
	labels []string // besides those of its subject
}

// figure is a family that is read from a T.
type figure[T any] struct {
	family
	read func(T, *row)
	at   int // index in the sheet
}

// table is what is told of subjects of one sort.
type table[T any] struct {
	labels  []string // that name the subject
	figures []figure[T]
}

// counter and gauge are families with one sample for each subject.
func counter[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_COUNTER, help: help},
		read: func(s T, r *row) { r.value(read(s)) }}
}

func gauge[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_GAUGE, help: help},
		read: func(s T, r *row) { r.value(read(s)) }}
}

// counters and gauges are families with any number of samples for each subject, told apart by labels.
func counters[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name, dto.MetricType_COUNTER, help, labels}, read: read}
}

func gauges[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name, dto.MetricType_GAUGE, help, labels}, read: read}
}

// summary is a number of observations and their sum, without quantiles.
func summary[T any](name, help string, read func(T) (count uint64, sum float64)) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_SUMMARY, help: help},
		read: func(s T, r *row) { r.summary(read(s)) }}
}

// row takes the samples of one family and one subject.
type row struct {
	on     *sheet
	into   *dto.MetricFamily
	kind   dto.MetricType
	base   []*dto.LabelPair // of the subject, by name
	labels []string
}

// value adds a sample. values are those of the family's own labels, in their order.
func (r *row) value(v float64, values ...string) {
	s := r.on.sample()
	s.value, s.metric.Label = v, r.pairs(values)
	if r.kind == dto.MetricType_COUNTER {
		s.counter.Value, s.metric.Counter = &s.value, &s.counter
	} else {
		s.gauge.Value, s.metric.Gauge = &s.value, &s.gauge
	}
	r.into.Metric = append(r.into.Metric, &s.metric)
}

// summary adds a sample of a summary.
func (r *row) summary(count uint64, sum float64) {
	r.into.Metric = append(r.into.Metric,
		&dto.Metric{Label: r.pairs(nil), Summary: &dto.Summary{SampleCount: &count, SampleSum: &sum}})
}

// pairs are the subject's labels and these, by name.
func (r *row) pairs(values []string) []*dto.LabelPair {
	if len(values) != len(r.labels) {
		// the tables and their readers are of this package
		panic("metrics: " + r.into.GetName() + " has other labels than it says")
	}
	if len(values) == 0 {
		return r.base
	}
	all := append(make([]*dto.LabelPair, 0, len(r.base)+len(values)), r.base...)
	return byName(appendPairs(all, r.labels, values))
}

func appendPairs(all []*dto.LabelPair, names, values []string) []*dto.LabelPair {
	for i := range names {
		value := label(values[i])
		all = append(all, &dto.LabelPair{Name: &names[i], Value: &value})
	}
	return all
}

func byName(pairs []*dto.LabelPair) []*dto.LabelPair {
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// label makes a value fit for a label: UTF-8, and no longer than texts of the protocol.
func label(value string) string { return schema.Clip(value) }

// sheet is one scrape: a family for every row of every table, in the order of their names.
type sheet struct {
	families []*dto.MetricFamily
	samples  []sample        // made together, since a scrape has thousands
	seen     map[string]bool // subjects that are on it: a second of the same labels would spoil the whole scrape
}

// sample is a sample with all that it points to.
type sample struct {
	metric  dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

// samplesAtOnce is how many are made together: some tens of KiB.
const samplesAtOnce = 128

func (s *sheet) sample() *sample {
	if len(s.samples) == 0 {
		s.samples = make([]sample, samplesAtOnce)
	}
	first := &s.samples[0]
	s.samples = s.samples[1:]
	return first
}

// sheets makes empty ones.
type sheets struct{ of []family }

func (s *sheets) new() *sheet {
	out := &sheet{families: make([]*dto.MetricFamily, len(s.of)), seen: map[string]bool{}}
	all := make([]dto.MetricFamily, len(s.of))
	for i := range s.of {
		f := &s.of[i]
		all[i].Name, all[i].Help, all[i].Type = &f.name, &f.help, &f.kind
		out.families[i] = &all[i]
	}
	return out
}

// filled are the families that have samples.
func (s *sheet) filled() []*dto.MetricFamily {
	return slices.DeleteFunc(s.families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
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
	base := byName(appendPairs(nil, t.labels, values))
	r := &row{on: to, base: base}
	for i := range t.figures {
		f := &t.figures[i]
		r.into, r.kind, r.labels = to.families[f.at], f.kind, f.labels
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
