// Package docs has the documents that are part of the program, so that they are at hand where it is.
package docs

import (
	_ "embed"
	"strings"
)

//go:embed runbooks.md
var runbooks string

// Runbooks is the text of runbooks.md: a list of all problem codes, then a section with instructions for each.
func Runbooks() string { return runbooks }

// Runbook is the section of Runbooks about a code; false where there is none.
func Runbook(code string) (string, bool) {
	heading := "\n## " + code + "\n"
	_, text, ok := strings.Cut(runbooks, heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return heading[1:] + text, ok
}
