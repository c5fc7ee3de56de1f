package terminal

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Style is how a piece of text looks. Nothing is said by style alone: it repeats what an icon and a word say.
type Style uint8

// Styles.
const (
	Plain Style = iota
	Bold
	Dim
	Good
	Notice
	Warn
	Bad
	stylesEnd
)

// codes are the attributes of each style, in the sixteen colours that every terminal has, so that its own palette
// holds.
var codes = [stylesEnd]string{Plain: "", Bold: "1", Dim: "2", Good: "32", Notice: "36", Warn: "33", Bad: "1;31"}

// Span is text in one style, without line breaks.
type Span struct {
	Text  string
	Style Style
}

// Line is one line of a screen.
type Line []Span

// String is the line without its styles and without spaces at its end.
func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return strings.TrimRight(b.String(), " ")
}

// Join gives lines as text, with the attributes of their styles where colour is asked for.
func Join(lines []Line, colour bool) string {
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if !colour {
			b.WriteString(l.String())
			continue
		}
		for _, s := range l {
			if code := codes[s.Style]; code != "" && s.Text != "" {
				b.WriteString("\x1b[" + code + "m" + s.Text + "\x1b[0m")
			} else {
				b.WriteString(s.Text)
			}
		}
	}
	return b.String()
}

// clean makes text of others safe to show.
func clean(text string) string { return schema.Printable(text) }

// width is the number of columns that text takes.
func width(text string) int {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return ansi.StringWidth(text)
		}
	}
	return len(text) // most is plain, and a screen has thousands of pieces
}

// cut shortens text to a number of columns, and shows that it did.
func cut(text string, columns int) string {
	if columns <= 0 {
		return ""
	}
	if width(text) <= columns {
		return text
	}
	return ansi.Truncate(text, columns, "…")
}

// cutMiddle shortens text to a number of columns, of which a third or so is the text's end.
func cutMiddle(text string, columns int) string {
	n := width(text)
	if n <= columns || columns < 4 {
		return cut(text, columns)
	}
	end := columns / 3
	return cut(text, columns-end) + ansi.TruncateLeft(text, n-end, "")
}

// pad fills text with spaces to a number of columns, at its right or, for numbers, at its left.
func pad(text string, columns int, right bool) string {
	n := columns - width(text)
	switch {
	case n <= 0:
		return text
	case right:
		return strings.Repeat(" ", n) + text
	}
	return text + strings.Repeat(" ", n)
}

// fit cuts a line to a number of columns.
func (l Line) fit(columns int) Line {
	var out Line
	for _, s := range l {
		if w := width(s.Text); w <= columns {
			out, columns = append(out, s), columns-w
			continue
		}
		return append(out, Span{cut(s.Text, columns), s.Style})
	}
	return out
}

// wrap breaks text at spaces into lines of at most so many columns. A longer word is cut.
func wrap(text string, columns int) []string {
	var lines []string
	at := ""
	for _, word := range strings.Fields(text) {
		word = cut(word, columns)
		switch {
		case at == "":
			at = word
		case width(at)+1+width(word) <= columns:
			at += " " + word
		default:
			lines, at = append(lines, at), word
		}
	}
	if at != "" {
		lines = append(lines, at)
	}
	return lines
}

// mark is the icon, word and style of a level.
func mark(l status.Level) (icon, word string, style Style) {
	switch l {
	case status.OK:
		return "✓", "OK", Good
	case status.Info:
		return "·", "INFO", Notice
	case status.Warning:
		return "!", "WARNING", Warn
	case status.Critical:
		return "✗", "CRITICAL", Bad
	}
	return "?", strings.ToUpper(clean(string(l))), Plain
}

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

// rowsMax bounds the rows of a table: all are in the answer of --json.
const rowsMax = 32

// lines gives the head and at most rowsMax rows, all cut to a width.
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
	for _, row := range t.rows[:min(len(t.rows), rowsMax)] {
		lines = append(lines, t.line(row, widths, shown, columns))
	}
	if more := len(t.rows) - rowsMax; more > 0 {
		lines = append(lines, Line{{fmt.Sprintf("  … %d more", more), Dim}})
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

// none stands for what is not known.
const none = "–"

// number writes a value with at most four significant digits and a unit prefix of thousands: 1234567 is 1.235M.
func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 0):
		return fmt.Sprintf("%+f", x)[:4]
	}
	return scaled(x, 1000, []string{"", "k", "M", "G", "T", "P"})
}

// size writes a number of bytes in powers of 1024: 1.5 MiB.
func size(n int64) string {
	return scaled(float64(n), 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB"})
}

// rate writes bytes a second in powers of 1000, as networks are measured and as the page does: 1.5 MB/s.
func rate(x schema.Real) string {
	f := float64(x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return scaled(f, 1000, []string{" B/s", " kB/s", " MB/s", " GB/s", " TB/s", " PB/s"})
}

func scaled(x, base float64, units []string) string {
	u := 0
	// What would be rounded up to the next unit belongs there: 1023.99 KiB is 1.0 MiB.
	for ; math.Abs(x) >= base-0.5 && u < len(units)-1; u++ {
		x /= base
	}
	digits := 0
	if whole := math.Abs(x); u > 0 || whole != math.Trunc(whole) {
		digits = 1
		if whole >= 99.95 {
			digits = 0
		}
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + units[u]
}

// count writes a whole number, its digits in groups of three.
func count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// loss writes a loss or a norm with four significant digits.
func loss(x *schema.Real) string {
	if x == nil {
		return none
	}
	f := float64(*x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

// span writes a length of time so that it is read at a glance: 3 ms, 1.2 s, 18 s, 3m20s, 2h05m, 4d03h.
func span(ms int64) string {
	switch s := ms / 1000; {
	case ms < 0:
		return "0 s"
	case ms < 1000:
		return fmt.Sprintf("%d ms", ms)
	case s < 10:
		return fmt.Sprintf("%d.%d s", s, ms/100%10)
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 7200:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 48*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	default:
		return fmt.Sprintf("%dd%02dh", s/86400, s%86400/3600)
	}
}

// seconds writes a short time that is measured in seconds: a round trip.
func seconds(x schema.Real) string {
	f := float64(x)
	switch {
	case f == 0:
		return none
	case math.IsNaN(f) || math.IsInf(f, 0):
		return number(f)
	case f < 1e-3:
		return fmt.Sprintf("%.0f µs", f*1e6)
	case f < 1:
		return fmt.Sprintf("%.1f ms", f*1e3)
	}
	return span(int64(f * 1000))
}

// percent writes a share.
func percent(x schema.Real) string {
	f := float64(x)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return number(f)
	}
	return fmt.Sprintf("%.0f %%", f*100)
}

// clock is the time of day at a moment, in the zone of whoever looks.
func clock(ms int64, zone *time.Location) string {
	return time.UnixMilli(ms).In(zone).Format("15:04:05")
}
