// Package runbooks is what to do about each problem that a ps names: one page of Markdown for each code, part of the program, so that they
// are at hand where the program is. It knows nothing but its files. A newcomer may change any of them: their parts are those of the others,
// and they hold headings, paragraphs, lists, `code` and links to each other, which is what pages and terminals show.
package runbooks

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.md
var files embed.FS

// Files are the runbooks, CODE.md at the root.
func Files() fs.FS { return files }

// Names are the codes that have one, in order.
func Names() (names []string) {
	all, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the root of an embedded file system is there
	}
	for _, f := range all {
		names = append(names, strings.TrimSuffix(f.Name(), ".md"))
	}
	slices.Sort(names)
	return names
}

// Text is the runbook of a code, as Markdown; false where there is none.
func Text(name string) (string, bool) {
	data, err := files.ReadFile(name + ".md")
	return string(data), err == nil
}

// Title is what a runbook's first line says that its code means.
func Title(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	_, title, _ := strings.Cut(first, ": ")
	return title
}
