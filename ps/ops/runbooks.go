package ops

import (
	"fmt"
	"html"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"gradbus/docs/runbooks"
)

// addRunbooks makes a page of each Markdown file, at /runbooks/NAME, and a list of them at /runbooks/. Like the other files of the page they
// are those of every gradbus, and no token is asked for them: links in alerts lead here.
func (f *files) addRunbooks(from fs.FS, words func(string) string) error {
	if from == nil {
		return nil
	}
	names, err := fs.Glob(from, "*.md") // sorted
	if err != nil {
		return fmt.Errorf("runbooks: %w", err)
	}
	if len(f.byPath)+len(names) > filesMax {
		return fmt.Errorf("runbooks: %d of them, want at most %d files in all", len(names), filesMax)
	}
	var list strings.Builder
	list.WriteString("<h1>Runbooks</h1><p>What to do about each problem that gradbus names, by its code.</p><dl>")
	for _, name := range names {
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return fmt.Errorf("runbooks: %w", err)
		}
		text := string(data)
		if words != nil {
			text = words(text)
		}
		code := strings.TrimSuffix(path.Base(name), ".md")
		fmt.Fprintf(&list, `<dt><a href="%s">%s</a></dt><dd>%s</dd>`, html.EscapeString(code), html.EscapeString(code), inline(runbooks.Title(text)))
		f.byPath["/runbooks/"+code] = newFile("runbook.html", []byte(leaf(code, markdown(text))))
	}
	list.WriteString("</dl>")
	f.byPath["/runbooks/"] = newFile("runbook.html", []byte(leaf("runbooks", list.String())))
	return nil
}

// leaf is a page of text, in the dress of the page.
func leaf(title, body string) string {
	return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">` +
		`<meta name="color-scheme" content="dark light"><title>` + html.EscapeString(title) + ` – gradbus</title>` +
		`<link rel="icon" href="data:,"><link rel="stylesheet" href="../assets/page.css"><script src="../assets/theme.js"></script></head>` +
		`<body><header class="top"><p class="home"><a href="../">gradbus</a></p><nav><a href="./">runbooks</a></nav></header><main class="leaf">` + body + "</main></body></html>\n"
}

// markdown is the HTML of what runbooks hold: headings, paragraphs and lists.
func markdown(text string) string {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		block = strings.TrimSpace(block)
		marks := len(block) - len(strings.TrimLeft(block, "#"))
		switch {
		case block == "":
		case marks > 0:
			fmt.Fprintf(&b, "<h%d>%s</h%d>", marks, inline(strings.TrimSpace(block[marks:])), marks)
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

var inlined = regexp.MustCompile("`([^`]+)`" + `|\[([^\]]+)\]\(([a-z0-9-]+)\.md\)`)

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
