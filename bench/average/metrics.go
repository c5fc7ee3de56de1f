package average

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Names of metrics: a group and what is measured, as in tables and files.
const (
	// from the start of a batch to the new version
	metricBatch   = "batch_level_metric,batch_all"
	metricForward = "forward_metric,forward_pass" // with the loss
	// with what is left of communication, and the optimizer
	metricBackward = "backward_metric,backward"
	// of a bucket, from its first trainer's whole gradient to its last one's
	metricStraggler = "parameter_server_straggler_metric,param_index_straggler"
	// of a bucket, from its first whole gradient until all were answered
	metricAnswered = "parameter_server_batch_metric,param_index_batch"
	// of a bucket, what a server computes once all gradients are there: the division, and of what it has not added up
	// before, the sum
	metricAverage = "method_metric,average computation"

	hookFuture = "hook_future_metric," // of a bucket, from the first byte sent to the whole result applied; asynchronous
	hookC10D   = "hook_c10d_metric,"   // the same of the second group
	transport  = "nats"                // what carries gradients here, in the place of gloo and nccl
)

// metrics are samples by name, each in milliseconds on the clock of one process.
type metrics map[string][]float64

func (m metrics) add(name string, d time.Duration) {
	m[name] = append(m[name], float64(d)/float64(time.Millisecond))
}

// merged is the samples of several together.
func merged(all []metrics) metrics {
	out := metrics{}
	for _, m := range all {
		for name, values := range m {
			out[name] = append(out[name], values...)
		}
	}
	return out
}

// Row is a line of a table: what the samples of one metric come to.
type Row struct {
	Name            string
	Min, Max, Mean  float64
	Variance, Stdev float64 // over n-1; NaN where there is one sample alone
}

// Table is rows in the order of their names.
type Table []Row

// table sums up metrics.
func (m metrics) table() Table {
	var t Table
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if values := m[name]; len(values) > 0 {
			t = append(t, rowOf(name, values))
		}
	}
	return t
}

// rowOf needs at least one sample.
func rowOf(name string, values []float64) Row {
	mean := 0.0
	for _, v := range values {
		mean += v
	}
	mean /= float64(len(values))
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	variance := squares / float64(len(values)-1) // 0/0 is NaN
	return Row{Name: name, Min: slices.Min(values), Max: slices.Max(values), Mean: mean, Variance: variance,
		Stdev: math.Sqrt(variance)}
}

// numbers are the columns behind the name.
func (r Row) numbers() []float64 {
	return []float64{r.Min, r.Max, r.Mean, r.Variance, r.Stdev}
}

// columns name a table's columns.
var columns = [...]string{"name", "min", "max", "mean", "variance", "stdev"}
