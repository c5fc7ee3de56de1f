package terminal

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"gradbus/ps/ops/status"
)

// Order is how trainers are sorted.
type Order uint8

// Orders of trainers.
const (
	ByLag  Order = iota // those that others wait for first, then those furthest behind
	ByName              // t0, t1, ...
	ByRate              // the slowest first
	ordersEnd
)

func (o Order) String() string { return [...]string{"lag", "name", "rate"}[o] }

// View says which sections are shown.
type View uint8

// Views: all sections, or one of them with as many rows as there is room for.
const (
	ViewAll View = iota
	ViewTrainers
	ViewShards
	ViewServers
	ViewGPUs
	ViewEvents
	viewsEnd
)

func (v View) String() string {
	return [...]string{"all", "trainers", "shards", "servers", "GPUs", "events"}[v]
}

// Screen is what is asked of a screen. The zero value but for Width is one of a status as it is, of any height.
type Screen struct {
	Width  int // columns
	Height int // lines; 0 is as many as it takes
	Zone   *time.Location
	Job    string // whose trainers and shards are shown, by its key; one that is not there stands for the first
	Order  Order
	View   View
	Scroll int // rows of a view of one section that are above the screen

	// Lost says why no newer status is there, and for how long; empty while there is one every second.
	Lost   string
	LostMS int64
	Ps     string // the command ps as it was started; empty is ./bin/ps
	// Keys asks for a last line that names the keys.
	Keys bool
}

// widthMin is what a screen is laid out for at least; a narrower terminal cuts it.
const widthMin = 20

// Lines lays a status out. With a height there are exactly so many lines.
func (s Screen) Lines(view *status.Status, events []status.Event) []Line {
	s = s.filled()
	top := s.head(view)
	sections := s.sections(view, events)
	if s.Height == 0 {
		return append(top, stack(sections, true)...)
	}
	room := s.Height - len(top)
	if s.Keys {
		room--
	}
	lines := append(top, s.within(sections, room)...)
	bottom := s.Height
	if s.Keys {
		bottom--
	}
	for len(lines) < bottom {
		lines = append(lines, nil)
	}
	lines = lines[:max(bottom, 0)]
	if s.Keys {
		lines = append(lines, s.keys(view))
	}
	return lines
}

// filled has defaults where nothing was said.
func (s Screen) filled() Screen {
	s.Width = max(s.Width, widthMin)
	if s.Zone == nil {
		s.Zone = time.UTC
	}
	return s
}

// head is what stands at the top whatever else is shown: who answers and the one sentence.
func (s Screen) head(view *status.Status) []Line {
	left := fmt.Sprintf("gradbus %s at %s", clean(view.Version), clean(view.Server))
	at := clock(view.NowMS, s.Zone)
	lines := []Line{Line{{pad(cut(left, s.Width-len(at)-gap), s.Width-len(at), false), Bold}, {at, Dim}}.fit(s.Width)}
	if s.Lost != "" {
		lines = append(lines,
			Line{{"? STALE ", Warn}, {fmt.Sprintf("for %s: %s", span(s.LostMS), clean(s.Lost)), Warn}}.fit(s.Width))
	}
	if view.Injected {
		lines = append(lines,
			Line{{"! INJECTED ", Warn}, {"some of these faults were asked for by --inject", Warn}}.fit(s.Width))
	}
	icon, word, style := mark(view.Why.Level)
	lead := icon + " " + word + " "
	lines = append(lines, s.wrapped(lead, clean(view.Why.Text), style)...)
	if action := view.Why.Action; action != "" && !strings.Contains(view.Why.Text, action) {
		lines = append(lines, s.wrapped("→ ", clean(action), Plain)...)
	}
	if p := first(view); p != nil && p.SinceMS > 0 && s.roomy() {
		text := fmt.Sprintf("since %s, for %s", clock(p.SinceMS, s.Zone), span(max(0, view.NowMS-p.SinceMS)))
		if more := "; more: " + cmp.Or(s.Ps, "./bin/ps") + " runbook " + clean(p.Runbook); p.Runbook != "" &&
			len(text)+len(more)+gap <= s.Width {
			text += more
		}
		lines = append(lines, Line{{"  " + text, Dim}}.fit(s.Width))
	}
	return lines
}

// heightRoomy is how many lines a screen has at least that says since when, and has the checkpoints of jobs: on a lower
// one each is worth more.
const heightRoomy = 30

func (s Screen) roomy() bool { return s.Height == 0 || s.Height >= heightRoomy }

// first is the problem that the sentence at the top is about; nil where there is none.
func first(view *status.Status) *status.Problem {
	for i := range view.Problems {
		if p := &view.Problems[i]; p.Code == view.Why.Code && p.Job == view.Why.Job {
			return p
		}
	}
	return nil
}

// sentenceLinesMax bounds how much of a screen one sentence takes.
const sentenceLinesMax = 3

// wrapped is a sentence on as many lines as it takes, under its first word.
func (s Screen) wrapped(lead, text string, style Style) []Line {
	indent := width(lead)
	parts := wrap(text, max(s.Width-indent, 8))
	if len(parts) > sentenceLinesMax {
		rest := strings.Join(parts[sentenceLinesMax-1:], " ")
		parts = append(parts[:sentenceLinesMax-1], cut(rest, s.Width-indent))
	}
	if len(parts) == 0 {
		parts = []string{""}
	}
	var lines []Line
	for i, p := range parts {
		before := lead
		if i > 0 {
			before = strings.Repeat(" ", indent)
		}
		lines = append(lines, Line{{before, style}, {p, style}}.fit(s.Width))
	}
	return lines
}

func (s Screen) keys(view *status.Status) Line {
	text := "q quit"
	if len(view.Jobs) > 1 {
		text += "  j next job"
	}
	return Line{{fmt.Sprintf("%s  v view: %s  s sort: %s  ↑↓ scroll", text, s.View, s.Order), Dim}}.fit(s.Width)
}

// section is a table of the screen: its head and its rows.
type section struct {
	head Line
	rows []Line
}

func newSection(t *table, width int) section {
	lines := t.lines(width)
	return section{lines[0], lines[1:]}
}

// shortened is at most n rows, the last of which says what is missing where something is.
func (c section) shortened(n int) []Line {
	if len(c.rows) <= n {
		return append([]Line{c.head}, c.rows...)
	}
	n = max(n, 1)
	lines := append([]Line{c.head}, c.rows[:n-1]...)
	return append(lines, Line{{fmt.Sprintf("  … %d more", len(c.rows)-n+1), Dim}})
}

// stack puts sections below each other.
func stack(sections []section, apart bool) []Line {
	var lines []Line
	for _, c := range sections {
		if apart {
			lines = append(lines, nil)
		}
		lines = append(lines, c.shortened(len(c.rows))...)
	}
	return lines
}

// least is how many lines sections take with at most so many rows each.
func least(sections []section, most int) (lines int) {
	for _, c := range sections {
		lines += 1 + min(len(c.rows), most)
	}
	return lines
}

// within fits sections into a number of lines: the longest give way first.
func (s Screen) within(sections []section, room int) []Line {
	if s.View != ViewAll && len(sections) == 1 {
		c := sections[0]
		visible := max(room-1, 1)
		from := max(0, min(s.Scroll, len(c.rows)-visible))
		c.rows = c.rows[from:]
		return c.shortened(visible)
	}
	longest, rows := 0, 0
	for _, c := range sections {
		longest, rows = max(longest, len(c.rows)), rows+len(c.rows)+1
	}
	if rows+len(sections) <= room {
		return stack(sections, true)
	}
	most := max(1, min(longest, room))
	for ; most > 1 && least(sections, most) > room; most-- {
	}
	var lines []Line
	for _, c := range sections {
		lines = append(lines, c.shortened(most)...)
	}
	return lines
}
