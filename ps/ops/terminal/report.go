package terminal

import (
	"strings"

	"gradbus/ps/ops/status"
)

// Finding is one line of an examination: what was found, and where that is not as it should be, what would be right.
type Finding struct {
	Level status.Level `json:"level"` // OK, Info (cannot be known, or is not used), Warning or Critical
	Name  string       `json:"name"`  // of what was examined, short
	Text  string       `json:"text"`
	Want  string       `json:"want,omitempty"`
}

// Worst is the worst level of findings; OK where there are none.
func Worst(all []Finding) status.Level {
	worst := status.OK
	for _, f := range all {
		if rank(f.Level) < rank(worst) {
			worst = f.Level
		}
	}
	return worst
}

// Report lays findings out, each on as few lines as its text takes.
func Report(all []Finding, columns int) []Line {
	names := 0
	for _, f := range all {
		names = max(names, width(f.Name))
	}
	var lines []Line
	for _, f := range all {
		icon, word, style := mark(f.Level)
		lead := icon + " " + pad(word, len("CRITICAL"), false) + "  " + pad(clean(f.Name), names, false) + "  "
		room := max(columns-width(lead), widthMin)
		for i, text := range wrap(clean(f.Text), room) {
			if i == 0 {
				lines = append(lines, Line{{icon + " " + pad(word, len("CRITICAL"), false), style},
					{"  " + pad(clean(f.Name), names, false) + "  ", Bold}, {text, Plain}}.fit(columns))
				continue
			}
			lines = append(lines, Line{{strings.Repeat(" ", width(lead)) + text, Plain}}.fit(columns))
		}
		if f.Want != "" {
			for i, text := range wrap(clean(f.Want), max(room-2, widthMin)) {
				arrow := "→ "
				if i > 0 {
					arrow = "  "
				}
				lines = append(lines, Line{{strings.Repeat(" ", width(lead)) + arrow + text, style}}.fit(columns))
			}
		}
	}
	return lines
}
