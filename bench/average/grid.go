package average

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// print draws the table as a grid under its title.
func (t Table) print(to io.Writer, title string) error {
	rows := make([][]string, len(t))
	for i, r := range t {
		rows[i] = append(rows[i], r.Name)
		for _, v := range r.numbers() {
			rows[i] = append(rows[i], cell(v))
		}
	}
	_, err := fmt.Fprintf(to, "%s\n%s", title, grid(columns[:], rows))
	return err
}

func cell(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}

// grid draws cells in boxes, the head set off from the rest; the first column is text, the others numbers.
func grid(head []string, rows [][]string) string {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	var out strings.Builder
	rule := func(of string) {
		for _, w := range widths {
			out.WriteString("+" + strings.Repeat(of, w+2))
		}
		out.WriteString("+\n")
	}
	line := func(row []string) {
		for i, text := range row {
			left := 0
			if gap := widths[i] - utf8.RuneCountInString(text); i > 0 {
				left = gap
			}
			fmt.Fprintf(&out, "| %s%-*s ", strings.Repeat(" ", left), widths[i]-left, text)
		}
		out.WriteString("|\n")
	}
	rule("-")
	line(head)
	rule("=")
	for _, row := range rows {
		line(row)
		rule("-")
	}
	return out.String()
}
