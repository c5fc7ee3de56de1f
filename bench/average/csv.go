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
	"gradbus/internal/regular"
)

// save writes the table as a CSV file, numbers with all their digits. What a table lacks is an empty field.
func (t Table) save(path string) error {
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

// loadTable reads a file that Save wrote. Errors name the file, the line and what would be right.
func loadTable(path string) (Table, error) {
	f, err := regular.Open(path)
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

// difference is one table less another.
type difference struct {
	Table                          // in the order of the first, under its names
	Other                 []string // what the second calls each row of Table
	OnlyFirst, OnlySecond []string // metrics of the first, and of the second, that the other lacks
}

// diff is a less b, metric by metric. The name of an all-reduce has in it what carried the gradients: nats here, gloo
// or nccl in the original. A metric whose name b lacks is taken with one whose name is the same but for that.
func diff(a, b Table) (d difference) {
	other, taken := make([]int, len(a)), make([]bool, len(b)) // of b, by row of a: -1 for none
	for i := range other {
		other[i] = -1
	}
	for _, of := range []func(name string) string{func(name string) string { return name }, anyTransport} {
		for i := range a {
			for at := 0; at < len(b) && other[i] < 0; at++ {
				if !taken[at] && of(a[i].Name) == of(b[at].Name) {
					other[i], taken[at] = at, true
				}
			}
		}
	}
	for i, r := range a {
		if other[i] < 0 {
			d.OnlyFirst = append(d.OnlyFirst, r.Name)
			continue
		}
		o := b[other[i]]
		d.Other = append(d.Other, o.Name)
		d.Table = append(d.Table, Row{r.Name, r.Min - o.Min, r.Max - o.Max, r.Mean - o.Mean, r.Variance - o.Variance,
			r.Stdev - o.Stdev})
	}
	for i, r := range b {
		if !taken[i] {
			d.OnlySecond = append(d.OnlySecond, r.Name)
		}
	}
	return d
}

// anyTransport is the name of a metric without what carries the gradients.
//
//	hook_future_metric,nats_dense_allreduce   ->   hook_future_metric,_dense_allreduce
func anyTransport(name string) string {
	group, metric, _ := strings.Cut(name, ",")
	if at := strings.IndexByte(metric, '_'); at > 0 && strings.HasSuffix(metric, "_allreduce") {
		return group + "," + metric[at:]
	}
	return name
}

// DiffFiles prints the difference of two files, and saves it where output is not empty.
func DiffFiles(a, b, output string, to io.Writer) error {
	first, err := loadTable(a)
	if err != nil {
		return err
	}
	second, err := loadTable(b)
	if err != nil {
		return err
	}
	d := diff(first, second)
	if output != "" {
		if err := d.save(output); err != nil {
			return err
		}
	}
	if err := d.print(to, fmt.Sprintf("%s less %s (ms)", a, b)); err != nil {
		return err
	}
	var notes strings.Builder
	for i, r := range d.Table {
		if r.Name != d.Other[i] {
			fmt.Fprintf(&notes, "%s: less %s\n", r.Name, d.Other[i])
		}
	}
	for _, only := range []struct {
		file  string
		names []string
	}{{a, d.OnlyFirst}, {b, d.OnlySecond}} {
		for _, name := range only.names {
			fmt.Fprintf(&notes, "only in %s: %s\n", only.file, name)
		}
	}
	_, err = io.WriteString(to, notes.String())
	return err
}

// saveTables writes the tables of one kind of member into a folder: each rank's, and that of all.
func (t *tables) save(folder string) error {
	if len(t.ranks) == 0 {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("save tables: %w", err)
	}
	for i, rank := range t.ranks {
		if err := t.each[i].save(filepath.Join(folder, fmt.Sprintf("%s_%d.csv", t.kind, rank))); err != nil {
			return err
		}
	}
	return t.all.save(filepath.Join(folder, t.kind+"_all.csv"))
}

// ranked is the metrics of one member.
type ranked struct {
	rank    int
	metrics metrics
}
