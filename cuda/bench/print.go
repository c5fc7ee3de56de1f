package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// PrintJSON writes the results as exactly one line.
func PrintJSON(to io.Writer, all []Result) error {
	line, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// Print writes the results as a table for people.
func Print(to io.Writer, all []Result) error {
	if len(all) == 0 {
		return nil
	}
	first := all[0]
	if _, err := fmt.Fprintf(to, "backend %s (%s), threads %d; times are medians, bytes count each distinct row once\n",
		first.Backend, first.ISA, first.Threads); err != nil {
		return err
	}
	if first.Quick {
		if _, err := fmt.Fprintln(to, "quick: small sizes and short runs; these figures mean little"); err != nil {
			return err
		}
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\trows\tdim\tbags\tlength\tn\tterms\tids\tdistinct\ttype\ttime\tMB\tGB/s\tof stream\t")
	for _, r := range all {
		cells := []string{r.Op}
		for _, n := range []int{r.Rows, r.Dim, r.Bags, r.Length, r.N, r.Terms} {
			cells = append(cells, orDash(n))
		}
		ids := r.IDs
		if ids == "" {
			ids = "-"
		}
		cells = append(cells, ids, orDash(r.Distinct), r.DType, duration(r.Seconds),
			fmt.Sprintf("%.1f", float64(r.Bytes)/1e6), fmt.Sprintf("%.2f", r.GBPerSecond), fmt.Sprintf("%.2f", r.ShareOfStream))
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	return w.Flush()
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return thousands(n)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// duration is a time with its unit, to four digits.
func duration(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.3f s", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.2f us", seconds*1e6)
}
