package terminal

import "strings"

// column is one column of a table.
type column struct {
	head  string
	right bool // for numbers
	keep  int  // columns with the lowest number go first where the width does not suffice; 0 never goes
	// max bounds the width; 0 is no bound but the table's
	max int
	// middle cuts what is too long in its middle: names differ at their ends
	middle bool
}

// table lays rows out in a width: as wide as its cells, columns that do not fit left out, the last that stays cut.
type table struct {
	columns []column
	rows    [][]Span
}

// also adds a cell to the last row.
func (t *table) also(cell Span) {
	last := &t.rows[len(t.rows)-1]
	*last = append(*last, cell)
}

// gap is the number of spaces between columns.
const gap = 2

// lines gives the head and the rows, all cut to a width.
func (t *table) lines(columns int) []Line {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = width(c.head)
		for _, row := range t.rows {
			widths[i] = max(widths[i], width(row[i].Text))
		}
		if c.max > 0 {
			widths[i] = min(widths[i], c.max)
		}
	}
	shown := t.choose(widths, columns)
	head := make([]Span, len(t.columns))
	for i, c := range t.columns {
		head[i] = Span{c.head, Dim}
	}
	lines := []Line{t.line(head, widths, shown, columns)}
	for _, row := range t.rows {
		lines = append(lines, t.line(row, widths, shown, columns))
	}
	return lines
}

// choose says which columns are shown.
func (t *table) choose(widths []int, columns int) []bool {
	shown, total := make([]bool, len(widths)), -gap
	for i, w := range widths {
		shown[i] = true
		total += w + gap
	}
	for total > columns {
		least := -1
		for i, c := range t.columns {
			if shown[i] && c.keep > 0 && (least < 0 || c.keep < t.columns[least].keep) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		shown[least] = false
		total -= widths[least] + gap
	}
	return shown
}

func (t *table) line(row []Span, widths []int, shown []bool, columns int) Line {
	var l Line
	for i, s := range row {
		if !shown[i] {
			continue
		}
		if len(l) > 0 {
			l = append(l, Span{Text: "  "})
		}
		shorten := cut
		if t.columns[i].middle {
			shorten = cutMiddle
		}
		l = append(l, Span{pad(shorten(s.Text, widths[i]), widths[i], t.columns[i].right), s.Style})
	}
	if n := len(l); n > 0 { // nothing stands behind the last: its cells are not padded, lest a short one be cut
		l[n-1].Text = strings.TrimRight(l[n-1].Text, " ")
	}
	return l.fit(columns)
}
