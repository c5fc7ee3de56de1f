package ops

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// runbooksPage is the page of the runbooks, in the dress of the page. Like the page's own files it is that of every
// gradbus, and no token is asked for it: links in alerts lead here.
func runbooksPage(text string) *file {
	return newFile("runbooks.html", []byte(`<!doctype html><html lang="en"><head><meta charset="utf-8">`+
		`<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="dark light">`+
		`<title>Runbooks – gradbus</title><link rel="icon" href="data:,"><link rel="stylesheet" href="assets/page.css">`+
		`<script src="assets/theme.js"></script></head><body><header class="top"><p class="home"><a href="./">gradbus</a></p>`+
		`</header><main class="leaf">`+markdown(text)+"</main></body></html>\n"))
}

// markdown is the HTML of what runbooks hold: headings, paragraphs and lists. A heading of the second level is an
// anchor.
func markdown(text string) string {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		block = strings.TrimSpace(block)
		marks := len(block) - len(strings.TrimLeft(block, "#"))
		heading := strings.TrimSpace(block[marks:])
		switch {
		case block == "":
		case marks == 2:
			fmt.Fprintf(&b, `<h2 id="%s">%s</h2>`, html.EscapeString(heading), inline(heading))
		case marks > 0:
			fmt.Fprintf(&b, "<h%d>%s</h%d>", marks, inline(heading), marks)
		case strings.HasPrefix(block, "- "):
			b.WriteString("<ul>")
			for item := range strings.SplitSeq("\n"+block, "\n- ") {
				if item = strings.TrimSpace(item); item != "" {
					b.WriteString("<li>" + inline(item) + "</li>")
				}
			}
			b.WriteString("</ul>")
		default:
			b.WriteString("<p>" + inline(block) + "</p>")
		}
	}
	return b.String()
}

var inlined = regexp.MustCompile("`([^`]+)`" + `|\[([^\]]+)\]\((#[a-z0-9-]+)\)`)

// inline is a line of text with its `code`, and links to other runbooks; all else is shown as it stands.
func inline(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range inlined.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(html.EscapeString(text[at:m[0]]))
		if m[2] >= 0 {
			b.WriteString("<code>" + html.EscapeString(text[m[2]:m[3]]) + "</code>")
		} else {
			fmt.Fprintf(&b, `<a href="%s">%s</a>`, text[m[6]:m[7]], html.EscapeString(text[m[4]:m[5]]))
		}
		at = m[1]
	}
	b.WriteString(html.EscapeString(text[at:]))
	return b.String()
}
