package rules

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// block is a piece of a Markdown document: a paragraph or an item of a list, a heading, a row of a table, or a block of
// code.
type block struct {
	kind  blockKind
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
	item  = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	fence = regexp.MustCompile("^\\s*```")
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
	for _, line := range strings.Split(document, "\n") {
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
			now = begin(block{kind: code, words: strings.Trim(trimmed, "`")})
		case trimmed == "" || strings.HasPrefix(trimmed, "<!--"):
			now = nil
		case strings.HasPrefix(line, "#"):
			begin(block{kind: heading, text: strings.TrimSpace(strings.TrimLeft(line, "#"))})
			now = nil
		case strings.HasPrefix(trimmed, "|"):
			begin(block{kind: row, text: trimmed})
			now = nil
		case now == nil || item.MatchString(line):
			now = begin(block{text: strings.TrimSpace(item.ReplaceAllString(line, ""))})
		default:
			now.text += " " + trimmed
		}
	}
	return all
}

var (
	image = regexp.MustCompile(`!\[[^]]*\](\([^)]*\))?`)
	link  = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	tag   = regexp.MustCompile(`</?[a-z][^>]*>`)
	span  = regexp.MustCompile("`+[^`]*`+")
)

// visible is a text as a reader sees it: without targets of links, pictures, tags and marks.
func visible(text string) string {
	text = link.ReplaceAllString(image.ReplaceAllString(text, ""), "$1")
	return strings.NewReplacer("`", "", "**", "", `\|`, "|").Replace(tag.ReplaceAllString(text, ""))
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
