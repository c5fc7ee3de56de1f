package terminal

import (
	"strings"

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
