package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Rates are the samples per second of the runs of one contender, in the order in which they ran.
type Rates struct {
	Name  string    `json:"name"`
	Rates []float64 `json:"rates"`
}

// Median is the middle rate, or the mean of the two in the middle; 0 where there are none.
func (r Rates) Median() float64 {
	n := len(r.Rates)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.Rates))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Comparison is the result of a benchmark of two contenders, run in turn on the same data.
type Comparison struct {
	Gradbus  Rates   `json:"gradbus"`
	Baseline *Rates  `json:"baseline,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"` // of the medians
	Last     Result  `json:"last"`            // of gradbus
}

// Compare sets the ratio. The baseline may be nil.
func Compare(gradbus Rates, baseline *Rates, last Result) Comparison {
	c := Comparison{Gradbus: gradbus, Baseline: baseline, Last: last}
	if baseline != nil && baseline.Median() > 0 {
		c.Ratio = gradbus.Median() / baseline.Median()
	}
	return c
}

// Print writes the comparison for people.
func (c Comparison) Print(to io.Writer) error {
	var b strings.Builder
	line := func(r Rates) {
		fmt.Fprintf(&b, "%-31s  median %9s samples/s, runs", r.Name, Thousands(r.Median()))
		for _, x := range r.Rates {
			fmt.Fprintf(&b, " %s", Thousands(x))
		}
		b.WriteString("\n")
	}
	line(c.Gradbus)
	if c.Baseline != nil {
		line(*c.Baseline)
		fmt.Fprintf(&b, "%-31s  %.2f\n", "ratio", c.Ratio)
	}
	fmt.Fprintf(&b, "%-31s  %s\n", "seconds of a trainer", c.Last.Time)
	if c.Last.LanesSkipped > 0 {
		fmt.Fprintf(&b, "%-31s  %d of the last run, whose gradients were not finite\n", "lanes skipped", c.Last.LanesSkipped)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// plus adds a share of u to t.
func (t Time) plus(u Time, share float64) Time {
	return Time{Keys: t.Keys + u.Keys*share, Rows: t.Rows + u.Rows*share, Compute: t.Compute + u.Compute*share,
		Send: t.Send + u.Send*share, Results: t.Results + u.Results*share}
}

// String is seconds by what they were spent on.
func (t Time) String() string {
	return fmt.Sprintf("%.2f computing, %.2f sending, %.2f waiting for rows, %.2f waiting for results, %.2f finding keys",
		t.Compute, t.Send, t.Rows, t.Results, t.Keys)
}
