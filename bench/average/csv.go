package average

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gradbus/internal/atomicfile"
)

// Save writes the table as a CSV file, numbers with all their digits. What a table lacks is an empty field.
func (t Table) Save(path string) error {
	if err := atomicfile.Write(path, 0o666, t.write); err != nil {
		return fmt.Errorf("save table %s: %w", path, err)
	}
	return nil
}

func (t Table) write(to io.Writer) error {
	w := csv.NewWriter(to)
	_ = w.Write(columns[:]) // what fails is found by Error below
	for _, r := range t {
		fields := []string{r.Name}
		for _, v := range r.numbers() {
			text := ""
			if !math.IsNaN(v) {
				text = strconv.FormatFloat(v, 'g', -1, 64)
			}
			fields = append(fields, text)
		}
		_ = w.Write(fields)
	}
	w.Flush()
	return w.Error()
}

// LoadTable reads a file that Save wrote. Errors name the file, the line and what would be right.
func LoadTable(path string) (Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("table %q: want a CSV file that --csv wrote: %w", path, reason(err))
	}
	defer f.Close()
	r := csv.NewReader(io.LimitReader(f, fileBytesMax))
	r.FieldsPerRecord = -1
	var t Table
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		line, _ := r.FieldPos(0)
		switch {
		case line == 1 && !slices.Equal(fields, columns[:]):
			return nil, fmt.Errorf("%s: line 1: %.60q: want the columns %s", path, strings.Join(fields, ","),
				strings.Join(columns[:], ","))
		case line == 1:
			continue
		case len(fields) != len(columns):
			return nil, fmt.Errorf("%s: line %d: %d fields: want %d", path, line, len(fields), len(columns))
		}
		row, err := parseRow(fields)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, line, err)
		}
		t = append(t, row)
	}
	if t == nil {
		return nil, fmt.Errorf("%s: no metrics: want a CSV file that --csv wrote", path)
	}
	return t, nil
}

func parseRow(fields []string) (Row, error) {
	r := Row{Name: fields[0]}
	for i, to := range []*float64{&r.Min, &r.Max, &r.Mean, &r.Variance, &r.Stdev} {
		*to = math.NaN()
		if text := fields[1+i]; text != "" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return r, fmt.Errorf("%s %q: want a number, or nothing", columns[1+i], text)
			}
			*to = v
		}
	}
	return r, nil
}

// Diff is a less b, metric by metric, in the order of a; metrics of one of them alone are named apart.
func Diff(a, b Table) (differences Table, onlyA, onlyB []string) {
	find := func(t Table, name string) int { return slices.IndexFunc(t, func(r Row) bool { return r.Name == name }) }
	for _, r := range a {
		at := find(b, r.Name)
		if at < 0 {
			onlyA = append(onlyA, r.Name)
			continue
		}
		o := b[at]
		differences = append(differences, Row{r.Name, r.Min - o.Min, r.Max - o.Max, r.Mean - o.Mean, r.Variance - o.Variance,
			r.Stdev - o.Stdev})
	}
	for _, r := range b {
		if find(a, r.Name) < 0 {
			onlyB = append(onlyB, r.Name)
		}
	}
	return differences, onlyA, onlyB
}

// DiffFiles prints the difference of two files, and saves it where output is not empty.
func DiffFiles(a, b, output string, to io.Writer) error {
	first, err := LoadTable(a)
	if err != nil {
		return err
	}
	second, err := LoadTable(b)
	if err != nil {
		return err
	}
	differences, onlyA, onlyB := Diff(first, second)
	if output != "" {
		if err := differences.Save(output); err != nil {
			return err
		}
	}
	if err := differences.Print(to, fmt.Sprintf("%s less %s (ms)", a, b)); err != nil {
		return err
	}
	for _, only := range []struct {
		file  string
		names []string
	}{{a, onlyA}, {b, onlyB}} {
		for _, name := range only.names {
			if _, err := fmt.Fprintf(to, "only in %s: %s\n", only.file, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveTables writes the tables of one kind of member into a folder: each rank's, and that of all.
func saveTables(folder, kind string, ranks []ranked, all Metrics) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("save tables: %w", err)
	}
	for _, r := range ranks {
		if err := r.metrics.table().Save(filepath.Join(folder, fmt.Sprintf("%s_%d.csv", kind, r.rank))); err != nil {
			return err
		}
	}
	return all.table().Save(filepath.Join(folder, kind+"_all.csv"))
}

// ranked is the metrics of one member.
type ranked struct {
	rank    int
	metrics Metrics
}
