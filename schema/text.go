package schema

import (
	"strings"
	"unicode"
)

// Printable makes text of others safe to show: on one line, and nothing in it that a terminal acts upon or that hides.
//
//	Printable("t1\n\x1b[2Jgone") == "t1 ?[2Jgone"
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, text)
}
