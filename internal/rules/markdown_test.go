package rules

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// block is a piece of a Markdown document: a paragraph or an item of a list, a heading, a row of a table, or a block of
// code.
type block struct {
	kind  blockKind
	line  int    // of its first line, from 1
	text  string // its lines; those of a paragraph are joined by spaces
	words string // behind the fence of code: sh, console, ...
}

type blockKind int

const (
	paragraph blockKind = iota
	heading
	row
	code
)

var (
	item      = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	fence     = regexp.MustCompile("^\\s*```")
	separator = regexp.MustCompile(`^\|[-:| ]+\|$`)
)

// blocks cuts a document up. What is generated, between `<!-- families` or `<!-- gpu runs` and `<!-- end -->`, is left
// out.
func blocks(document string) []block {
	var all []block
	var now *block // the paragraph or code that goes on
	begin := func(b block) *block {
		all = append(all, b)
		return &all[len(all)-1]
	}
	generated := false
	for i, line := range strings.Split(document, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case now != nil && now.kind == code:
			if fence.MatchString(line) {
				now = nil
			} else {
				now.text += line + "\n"
			}
		case strings.HasPrefix(trimmed, "<!-- families"), strings.HasPrefix(trimmed, "<!-- gpu runs"):
			generated, now = true, nil
		case strings.HasPrefix(trimmed, "<!-- end"):
			generated = false
		case generated:
		case fence.MatchString(line):
			now = begin(block{kind: code, line: i + 1, words: strings.Trim(trimmed, "`")})
		case trimmed == "" || strings.HasPrefix(trimmed, "<!--"):
			now = nil
		case strings.HasPrefix(line, "#"):
			begin(block{kind: heading, line: i + 1, text: strings.TrimSpace(strings.TrimLeft(line, "#"))})
			now = nil
		case strings.HasPrefix(trimmed, "|"):
			begin(block{kind: row, line: i + 1, text: trimmed})
			now = nil
		case now == nil || item.MatchString(line):
			now = begin(block{line: i + 1, text: strings.TrimSpace(item.ReplaceAllString(line, ""))})
		default:
			now.text += " " + trimmed
		}
	}
	return all
}

var (
	image     = regexp.MustCompile(`!\[[^]]*\](\([^)]*\))?`)
	link      = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	tag       = regexp.MustCompile(`</?[a-z][^>]*>`)
	span      = regexp.MustCompile("`+[^`]*`+")
	onlySpans = regexp.MustCompile("^(`[^`]*`([,;: ]|and|or)*)+$")
)

// visible is a text as a reader sees it: without targets of links, pictures, tags and marks.
func visible(text string) string {
	text = link.ReplaceAllString(image.ReplaceAllString(text, ""), "$1")
	return strings.NewReplacer("`", "", "**", "", `\|`, "|").Replace(tag.ReplaceAllString(text, ""))
}

var sentenceEnd = regexp.MustCompile(`[.!?][)"'*]*\s+`)

// longSentences are the sentences of a text that have more than so many words. A piece of code is one word.
func longSentences(text string, wordsMax int) []string {
	text = strings.ReplaceAll(visible(span.ReplaceAllString(text, "X")), "*", "")
	var long []string
	for _, sentence := range sentenceEnd.Split(text, -1) {
		words := 0
		for _, word := range strings.Fields(sentence) {
			if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				words++
			}
		}
		if words > wordsMax {
			long = append(long, fmt.Sprintf("%d words: %s", words, sentence))
		}
	}
	return long
}

// cells are those of a row of a table.
func cells(text string) []string {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "|"), "|")
	guarded := span.ReplaceAllStringFunc(text, func(s string) string { return strings.ReplaceAll(s, "|", "\x00") })
	parts := strings.Split(strings.ReplaceAll(guarded, `\|`, "\x00"), "|")
	for i, p := range parts {
		parts[i] = strings.TrimSpace(strings.ReplaceAll(p, "\x00", "|"))
	}
	return parts
}

// form is what a document is held to; what is 0 is not.
type form struct {
	lines   int // of the document
	columns int // of a line outside tables and code
	words   int // of a sentence
	cell    int // characters of a cell of a table, unless it has names in code only
}

// formOf lists where a document is not of its form.
func formOf(path, document string, f form) []string {
	var wrong []string
	add := func(line int, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s:%d: ", path, line)+fmt.Sprintf(format, args...))
	}
	if n := strings.Count(document, "\n"); f.lines > 0 && n > f.lines {
		add(n, "%d lines, want at most %d", n, f.lines)
	}
	lines := strings.Split(document, "\n")
	for _, b := range blocks(document) {
		switch b.kind {
		case row:
			if separator.MatchString(b.text) {
				continue
			}
			for _, c := range cells(b.text) {
				if n := utf8.RuneCountInString(visible(c)); f.cell > 0 && n > f.cell && !onlySpans.MatchString(c) {
					add(b.line, "a cell of %d characters, want at most %d: %s", n, f.cell, c)
				}
			}
		case paragraph:
			for _, s := range longSentences(b.text, f.words) {
				if f.words > 0 {
					add(b.line, "a sentence of %s", s)
				}
			}
			for i := b.line - 1; f.columns > 0 && i < len(lines) && strings.TrimSpace(lines[i]) != "" &&
				(i == b.line-1 || !item.MatchString(lines[i]) && !fence.MatchString(lines[i]) &&
					!strings.HasPrefix(lines[i], "|")); i++ {
				if n := utf8.RuneCountInString(lines[i]); n > f.columns && !unbreakable(lines[i], f.columns) {
					add(i+1, "%d columns, want at most %d", n, f.columns)
				}
			}
		}
	}
	return wrong
}

// unbreakable tells whether a line is one link, picture or word that has no place to be broken at.
func unbreakable(line string, columns int) bool {
	rest := strings.TrimSpace(link.ReplaceAllString(image.ReplaceAllString(line, "X"), "X"))
	return utf8.RuneCountInString(line) > columns && !strings.Contains(rest, " ")
}

// anchors are the ends of links that lead to a document's headings, as GitHub makes them.
func anchors(document string) map[string]bool {
	all := map[string]bool{}
	for _, b := range blocks(document) {
		if b.kind != heading {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, visible(b.text))
		for n, as := 1, name; ; n++ {
			if !all[as] {
				all[as] = true
				break
			}
			as = fmt.Sprintf("%s-%d", name, n)
		}
	}
	return all
}
