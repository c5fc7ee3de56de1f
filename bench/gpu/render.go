package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	sectionBegin = "<!-- gpu runs, written by go run ./bench/gpu -->\n"
	sectionEnd   = "<!-- end -->\n"
	// changeMarked is the share of the last figure from which a change is marked.
	changeMarked = 0.05
)

// insert replaces what a document has between the marks.
func insert(document []byte, section string) ([]byte, error) {
	before, rest, found := bytes.Cut(document, []byte(sectionBegin))
	_, after, ended := bytes.Cut(rest, []byte(sectionEnd))
	if !found || !ended {
		return nil, errors.New("no place for the runs on GPUs: want the line " + strings.TrimSpace(sectionBegin) +
			" and behind it " + strings.TrimSpace(sectionEnd))
	}
	return slices.Concat(before, []byte(sectionBegin), []byte(section), []byte(sectionEnd), after), nil
}

// render writes the newest file of each card, the newest card first, next to what was predicted and the file before.
func (r records) render() string {
	var out strings.Builder
	seen := map[string]bool{}
	for i, file := range slices.Backward(r.files) {
		card := file[0].Card
		if seen[card] {
			continue
		}
		seen[card] = true
		var last []phase
		for _, older := range slices.Backward(r.files[:i]) {
			if older[0].Card == card {
				last = older
				break
			}
		}
		r.renderFile(&out, file, last)
	}
	return out.String()
}

func (r records) renderFile(out *strings.Builder, file, last []phase) {
	fmt.Fprintf(out, "\n#### %s, %s\n\n", file[0].Card, file[0].Date.UTC().Format("2 January 2006"))
	if last != nil {
		fmt.Fprintf(out, "Last time is %s. ", last[0].Date.UTC().Format("2 January 2006"))
	}
	fmt.Fprintf(out, "Changes above %.0f %% are bold.\n\n", 100*changeMarked)
	out.WriteString("| phase | commit | driver | ok | failed | skipped | s | SM MHz | memory MHz |\n" +
		"|---|---|---|---|---|---|---|---|---|\n")
	for i := range file {
		p := &file[i]
		fmt.Fprintf(out, "| %s | `%.12s` | %s | %d | %d | %d | %.0f | %s | %s |\n", p.Phase, p.Commit, p.Driver,
			p.count(statusOK), p.count(statusFailed), p.count(statusSkipped), p.Seconds, p.clock("sm_mhz"),
			p.clock("memory_mhz"))
	}
	for i := range file {
		p := &file[i]
		for _, s := range p.Steps {
			if s.Status != statusOK {
				title := strings.ToUpper(s.Status[:1]) + s.Status[1:]
				fmt.Fprintf(out, "\n%s in %s: %s: %s\n", title, p.Phase, s.Name, oneLine(s.Reason))
			}
		}
	}
	for i := range file {
		for _, s := range file[i].Steps {
			if len(s.Figures) > 0 {
				r.renderStep(out, &file[i], s, last)
			}
		}
	}
	out.WriteString("\n")
}

// renderStep writes the figures of a step as a table.
func (r records) renderStep(out *strings.Builder, p *phase, s step, last []phase) {
	fmt.Fprintf(out, "\n| %s, %s | predicted | measured | last time | change |\n", p.Phase, s.Name)
	out.WriteString("|---|---|---|---|---|\n")
	for _, name := range r.names(p, s, last) {
		expected, measured, before, change := "", "", "", ""
		if v, ok := r.predicted[p.Card][key(p, s, name)]; ok {
			expected = number(v)
		}
		old, now := find(last, p.Phase, s.Name, name), find([]phase{*p}, p.Phase, s.Name, name)
		if old != nil {
			before = number(old.Value) + " " + old.Unit
		}
		if now != nil {
			measured = number(now.Value) + " " + now.Unit
			if now.Low != nil {
				measured += " (" + number(*now.Low) + " to " + number(*now.High) + ")"
			}
		}
		if old != nil && now != nil && old.Unit == now.Unit {
			change = changed(old.Value, now.Value)
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", name, expected, measured, before, change)
	}
}

// key is the name of a figure in the file of predictions.
func key(p *phase, s step, name string) string { return p.Phase + "/" + s.Name + "/" + name }

// names are those of the figures of a step: measured ones, then those of last time and predicted ones that are missing.
func (r records) names(p *phase, s step, last []phase) []string {
	var all []string
	add := func(name string) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, f := range s.Figures {
		add(f.Name)
	}
	for _, older := range last {
		for _, before := range older.Steps {
			for _, f := range before.Figures {
				if older.Phase == p.Phase && before.Name == s.Name {
					add(f.Name)
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.predicted[p.Card])) {
		if name, found := strings.CutPrefix(k, key(p, s, "")); found {
			add(name)
		}
	}
	return all
}

// find is a figure of a file, nil where it has none.
func find(file []phase, ofPhase, ofStep, name string) *figure {
	for _, p := range file {
		for _, s := range p.Steps {
			for i := range s.Figures {
				if p.Phase == ofPhase && s.Name == ofStep && s.Figures[i].Name == name {
					return &s.Figures[i]
				}
			}
		}
	}
	return nil
}

// changed is by how much a figure has changed, bold where that is much.
func changed(before, now float64) string {
	if before == 0 {
		return ""
	}
	share := now/before - 1
	text := fmt.Sprintf("%+.1f %%", 100*share)
	if math.Abs(share) > changeMarked {
		return "**" + text + "**"
	}
	return text
}

func (p *phase) count(status string) (n int) {
	for _, s := range p.Steps {
		if s.Status == status {
			n++
		}
	}
	return n
}

// clock is a clock before and after the phase, empty where the driver did not tell it.
func (p *phase) clock(name string) string {
	before, ok := p.ClocksBefore[name]
	after, and := p.ClocksAfter[name]
	if !ok || !and {
		return ""
	}
	return number(before) + ", " + number(after)
}

// number has four digits that count, and commas between thousands.
func number(v float64) string {
	digits := strconv.FormatFloat(v, 'g', 4, 64)
	if math.Abs(v) >= 1000 {
		digits = strconv.FormatFloat(v, 'f', 0, 64)
		for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
			digits = digits[:at] + "," + digits[at:]
		}
	}
	return digits
}

func oneLine(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
}
