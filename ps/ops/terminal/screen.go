package terminal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Screen is the width and the surroundings of what is shown.
type Screen struct {
	Width int // columns
	Zone  *time.Location
	Ps    string // the command ps as it was started; empty is ./bin/ps
}

// widthMin is what a screen is laid out for at least; a narrower terminal cuts it.
const widthMin = 20

// Lines lays a status out: the sentence, and below it the tables that have rows, the most important first. Trainers and
// shards are those of the first job.
func (s Screen) Lines(view *status.Status, events []status.Event) []Line {
	s.Width = max(s.Width, widthMin)
	if s.Zone == nil {
		s.Zone = time.UTC
	}
	lines := s.head(view)
	tables := []*table{s.problems(view), s.jobs(view)}
	if len(view.Jobs) > 0 {
		tables = append(tables, s.trainers(&view.Jobs[0]), s.shards(&view.Jobs[0]))
	}
	tables = append(tables, s.servers(view), s.gpus(view), s.durability(view), s.standby(view), s.standsBy(view),
		s.events(events))
	for _, t := range tables {
		if t != nil && len(t.rows) > 0 {
			lines = append(append(lines, nil), t.lines(s.Width)...)
		}
	}
	return lines
}

// head is what stands at the top whatever else is shown: who answers and the one sentence.
func (s Screen) head(view *status.Status) []Line {
	left := fmt.Sprintf("gradbus %s at %s", clean(view.Version), clean(view.Server))
	at := clock(view.NowMS, s.Zone)
	lines := []Line{Line{{pad(cut(left, s.Width-len(at)-gap), s.Width-len(at), false), Bold}, {at, Dim}}.fit(s.Width)}
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
	if p := first(view); p != nil && p.SinceMS > 0 {
		text := fmt.Sprintf("since %s, for %s", clock(p.SinceMS, s.Zone), span(max(0, view.NowMS-p.SinceMS)))
		if more := "; more: " + cmp.Or(s.Ps, "./bin/ps") + " runbook " + clean(p.Runbook); p.Runbook != "" &&
			len(text)+len(more)+gap <= s.Width {
			text += more
		}
		lines = append(lines, Line{{"  " + text, Dim}}.fit(s.Width))
	}
	return lines
}

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

// level is the cell of an icon.
func level(l status.Level) Span {
	icon, _, style := mark(l)
	return Span{icon, style}
}

func cell(text string) Span { return Span{Text: text} }

// ranks of levels, the worst first.
func rank(l status.Level) int {
	return slices.Index([]status.Level{status.Critical, status.Warning, status.Info, status.OK}, l)
}

// problems are those that the sentence at the top does not tell.
func (s Screen) problems(view *status.Status) *table {
	if len(view.Problems) < 2 {
		return nil
	}
	t := &table{columns: []column{{}, {head: "ALSO"}, {head: "FOR", right: true, keep: 1}}}
	for _, p := range view.Problems[1:] {
		_, _, style := mark(p.Level)
		t.rows = append(t.rows, []Span{level(p.Level), {cut(clean(p.Text), s.Width-16), style},
			{span(view.NowMS - p.SinceMS), Dim}})
	}
	return t
}

func (s Screen) jobs(view *status.Status) *table {
	t := &table{columns: []column{{}, {head: "JOB", max: 28, middle: true}, {head: "PHASE"}, {head: "BATCH", right: true},
		{head: "LEFT", right: true, keep: 5},
		{head: "LOSS", right: true}, {head: "NORM", right: true, keep: 3}, {head: "SAMPLES/S", right: true},
		{head: "MODE", keep: 2}, {head: "AGE", right: true, keep: 6}}}
	for i := range view.Jobs {
		j := &view.Jobs[i]
		name := Span{Text: clean(j.Name)}
		if i == 0 && len(view.Jobs) > 1 { // its trainers and shards are shown
			name.Style = Bold
		}
		batch := count(j.Batch)
		if j.Planned > 0 {
			batch += "/" + count(j.Planned)
		}
		left := none
		if j.LeftMS > 0 {
			left = span(j.LeftMS)
		}
		phase, told := cell(clean(j.Phase)), age(j.AgeMS)
		if j.EndedMS > 0 {
			told = Span{span(max(view.NowMS-j.EndedMS, 0)) + " ago", Dim} // the age that matters; it is told of for a while
		}
		switch j.End {
		case schema.EndFailed:
			phase = Span{string(j.End), Bad}
		case schema.EndStopped, schema.EndContinued:
			phase = cell(string(j.End))
		}
		t.rows = append(t.rows, []Span{level(j.Why.Level), name, phase, cell(batch), cell(left), cell(loss(j.Loss)),
			cell(loss(j.GradientNorm)), cell(number(float64(j.SamplesPerSecond))), cell(clean(j.Consistency + " " + j.Apply)),
			told})
	}
	return t
}

// ageShown is from when on an age is told: what is younger is of this moment.
const ageShown = 2500

func age(ms int64) Span {
	if ms < ageShown {
		return Span{"", Dim}
	}
	return Span{span(ms), Warn}
}

func (s Screen) trainers(j *status.Job) *table {
	t := &table{columns: []column{{}, {head: "TRAINER"}, {head: "STATE"}, {head: "BATCH", right: true, keep: 9},
		{head: "LAG", right: true}, {head: "HELD", right: true, keep: 12},
		{head: "DOES"}, {head: "SAMPLES/S", right: true, keep: 11}, {head: "LOSS", right: true, keep: 7},
		{head: "COMP", right: true, keep: 6}, {head: "SENT", right: true, keep: 4},
		{head: "PENDING", right: true, keep: 3}, {head: "RTT", right: true, keep: 8}, {head: "CPU", right: true, keep: 2},
		{head: "HOST", keep: 5, max: 24}, {head: "AGE", right: true, keep: 10}}}
	disks := slices.ContainsFunc(j.Trainers, func(r status.Trainer) bool { return len(r.Disks) > 0 })
	if disks {
		t.columns = append(t.columns, diskColumn())
	}
	skipped := slices.ContainsFunc(j.Trainers, func(r status.Trainer) bool { return r.LanesSkipped > 0 })
	if skipped { // lanes whose gradient was not finite
		t.columns = append(t.columns, column{head: "SKIPPED", right: true, keep: 7})
	}
	for _, r := range sorted(j.Trainers) {
		held := Span{none, Dim}
		if r.HeldMS > 0 {
			held = Span{span(r.HeldMS), Warn}
		}
		does := clean(r.Doing)
		if r.Shard != nil {
			does += fmt.Sprintf(" s%d", *r.Shard)
		}
		if r.DoingMS >= 1000 {
			does += " " + span(r.DoingMS)
		}
		t.rows = append(t.rows, []Span{level(r.Level), cell(clean(r.Member)), state(r), cell(count(r.Batch)),
			cell(count(r.Lag)), held,
			cell(does), cell(number(float64(r.SamplesPerSecond))), cell(loss(r.Loss)), cell(percent(r.Phases.Compute)),
			cell(rate(r.SentPerSecond)),
			cell(size(r.PendingBytes)), cell(seconds(r.RoundTripSeconds)), cell(cpu(r.CPU)), cell(hostAndID(r)), age(r.AgeMS)})
		if disks {
			t.also(disk(r.Disks))
		}
		if skipped {
			t.also(cell(count(r.LanesSkipped)))
		}
	}
	return t
}

// hostAndID is where to look for a trainer.
func hostAndID(r status.Trainer) string {
	if r.PID == 0 {
		return clean(r.Host)
	}
	return fmt.Sprintf("%s (%d)", cut(clean(r.Host), 16), r.PID)
}

func state(r status.Trainer) Span {
	_, _, style := mark(r.Level)
	if r.Level == status.OK || r.Level == status.Info {
		style = Plain
	}
	return Span{clean(r.State), style}
}

func cpu(x schema.Real) string { return fmt.Sprintf("%.2f", float64(x)) }

// sorted puts trainers first that others wait for, then those that are not well, then those furthest behind.
func sorted(trainers []status.Trainer) []status.Trainer {
	return slices.SortedStableFunc(slices.Values(trainers), func(a, b status.Trainer) int {
		return cmp.Or(cmp.Compare(b.HeldMS, a.HeldMS), cmp.Compare(rank(a.Level), rank(b.Level)), cmp.Compare(b.Lag, a.Lag))
	})
}

func (s Screen) shards(j *status.Job) *table {
	t := &table{columns: []column{{}, {head: "SHARD"}, {head: "VERSION", right: true}, {head: "LAG", right: true},
		{head: "LOAD", right: true, keep: 9},
		{head: "IN", right: true, keep: 8}, {head: "ROUNDS/S", right: true, keep: 4}, {head: "STAGED", right: true, keep: 5},
		{head: "QUEUE", right: true, keep: 3}, {head: "HELD", right: true, keep: 9},
		{head: "PROMISED", right: true, keep: 9},
		{head: "WAITS FOR", keep: 10, max: 40}, {head: "SERVER", keep: 6, max: 28}, {head: "AGE", right: true, keep: 7}}}
	order := slices.Clone(j.Shards)
	slices.SortStableFunc(order, func(a, b status.Shard) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
	for _, r := range order {
		waits := ""
		if len(r.WaitsFor) > 0 {
			waits = span(r.WaitsMS) + " for " + clean(strings.Join(r.WaitsFor, " "))
		} else if !r.Ready {
			waits = "not ready"
		} else if r.Idle != "" {
			waits = "idle: " + clean(r.Idle)
		}
		t.rows = append(t.rows, []Span{level(r.Level), cell(clean(r.Member)), cell(count(r.Version)), cell(count(r.Lag)),
			cell(percent(r.Load)),
			cell(rate(r.BytesPerSecond)), cell(number(float64(r.RoundsPerSec))), cell(size(r.StagedBytes)),
			cell(size(r.QueueBytes)), cell(size(r.HeldBytes)), cell(size(r.MemoryBytes)),
			cell(waits), cell(clean(r.Server)), age(r.AgeMS)})
	}
	return t
}

func (s Screen) servers(view *status.Status) *table {
	t := &table{columns: []column{{}, {head: "SERVER", max: 32}, {head: "IN", right: true, keep: 6},
		{head: "REFUSED/S", right: true, keep: 7}, {head: "CPU", right: true, keep: 5},
		{head: "RESIDENT", right: true, keep: 4}, {head: "PROMISED", right: true, keep: 3},
		{head: "BACKEND", keep: 2, max: 30}, {head: "PAGE", keep: 1}, {head: "AGE", right: true, keep: 8}}}
	disks := slices.ContainsFunc(view.Servers, func(r status.Server) bool { return len(r.Disks) > 0 })
	if disks {
		t.columns = append(t.columns, diskColumn())
	}
	for _, r := range view.Servers {
		backend, _, _ := strings.Cut(r.Backend, ", ") // why it was chosen is on the page
		promised := size(r.PromisedBytes)
		if r.MemoryMaxBytes > 0 {
			promised += " of " + size(r.MemoryMaxBytes)
		}
		id := strings.TrimSpace(r.ID + " " + r.State)
		t.rows = append(t.rows, []Span{level(r.Level), cell(clean(id)), cell(rate(r.BytesPerSecond)),
			cell(number(float64(r.RefusedPerSecond))), cell(cpu(r.CPU)),
			cell(size(r.ResidentBytes)), cell(promised), cell(clean(backend)), cell(clean(r.Page)), age(r.AgeMS)})
		if disks {
			t.also(disk(r.Disks))
		}
	}
	return t
}

// diskColumn is the last of those whose process writes somewhere.
func diskColumn() column { return column{head: "DISK FREE", right: true, keep: 6} }

// diskAged is from when on the age of a disk's figures is told: they are asked for every ten seconds.
const diskAged = 30_000

// disk is the file system that has least left.
func disk(all []status.Disk) Span {
	if len(all) == 0 {
		return Span{none, Dim}
	}
	least := slices.MinFunc(all,
		func(a, b status.Disk) int { return cmp.Compare(a.FreeBytes-a.NeedBytes, b.FreeBytes-b.NeedBytes) })
	text := size(least.FreeBytes) + " of " + size(least.TotalBytes)
	switch {
	case least.AgeMS >= diskAged:
		return Span{text + ", " + span(least.AgeMS) + " ago", Warn}
	case least.FreeBytes < least.NeedBytes:
		return Span{text, Bad}
	}
	return cell(text)
}

func (s Screen) gpus(view *status.Status) *table {
	t := &table{columns: []column{{}, {head: "GPU", right: true}, {head: "STATE"}, {head: "REASON", keep: 9, max: 44},
		{head: "TEMP", right: true, keep: 8}, {head: "POWER", right: true, keep: 7},
		{head: "USE", right: true, keep: 6}, {head: "MEMORY", right: true, keep: 5}, {head: "NAME", keep: 2, max: 24},
		{head: "HOST", keep: 4, max: 20}, {head: "USERS", keep: 3, max: 24}, {head: "AGE", right: true, keep: 10}}}
	for _, g := range view.GPUs {
		state := clean(string(g.State))
		if g.Injected {
			state += " (injected)"
		}
		_, _, style := mark(g.Level)
		if g.Level == status.OK {
			style = Plain
		}
		reason := clean(g.Reason)
		if g.Action != "" {
			reason += " → " + clean(g.Action)
		}
		t.rows = append(t.rows, []Span{level(g.Level), cell(fmt.Sprint(g.Index)), {state, style}, cell(reason),
			cell(unit(g.Temperature, " °C")), cell(unit(g.PowerWatts, " W")),
			cell(share(g.Utilisation)), cell(part(g.MemoryUsed, g.MemoryTotal)), cell(clean(g.Name)), cell(clean(g.Host)),
			cell(clean(strings.Join(g.Users, " "))), age(g.AgeMS)})
	}
	return t
}

func unit(x *schema.Real, unit string) string {
	if x == nil {
		return none
	}
	return fmt.Sprintf("%.0f%s", float64(*x), unit)
}

func share(x *schema.Real) string {
	if x == nil {
		return none
	}
	return percent(*x)
}

func part(used, total *int64) string {
	switch {
	case used == nil:
		return none
	case total == nil:
		return size(*used)
	}
	return size(*used) + " of " + size(*total)
}

func (s Screen) events(events []status.Event) *table {
	t := &table{columns: []column{{}, {head: "AT"}, {head: "EVENT"}}}
	for _, e := range slices.Backward(events) {
		t.rows = append(t.rows, []Span{level(e.Level), {clock(e.AtMS, s.Zone), Dim}, cell(clean(e.Text))})
	}
	return t
}

// durability is what of each job outlives its processes.
func (s Screen) durability(view *status.Status) *table {
	t := &table{columns: []column{{}, {head: "CHECKPOINTS", max: 28, middle: true}, {head: "DURABLE", right: true},
		{head: "AGE", right: true}, {head: "SIZE", right: true, keep: 4}, {head: "TOOK", right: true, keep: 3},
		{head: "EVERY", right: true, keep: 2}, {head: "FAILED", right: true, keep: 5}}}
	why := slices.ContainsFunc(view.Jobs, func(j status.Job) bool {
		return toldOf(&j) && j.Durability.Off+j.Durability.Failure != ""
	})
	if why { // the beginning and the end of a long text say which file, and what is wrong with it
		t.columns = append(t.columns, column{head: "WHY", max: max(s.Width-40, widthMin), middle: true})
	}
	for i := range view.Jobs {
		j := &view.Jobs[i]
		if !toldOf(j) {
			continue
		}
		d := j.Durability
		sign, text := level(status.OK), Span{clean(d.Failure), Warn}
		if d.Off != "" {
			sign, text = level(status.Info), Span{clean(d.Off), Dim}
		} else if d.Failure != "" {
			sign = level(status.Warning)
		}
		version, aged, bytes, took, every, failed := "nothing", none, none, none, none, none
		if d.Version > 0 {
			version, aged, bytes = count(d.Version), span(d.AgeMS), size(d.Bytes)
		}
		if d.TookMS > 0 {
			took = span(d.TookMS)
		}
		if d.Off == "" {
			every, failed = everyOf(d), count(d.Failures)
		}
		t.rows = append(t.rows, []Span{sign, cell(clean(j.Name)), cell(version), cell(aged), cell(bytes), cell(took),
			cell(every), cell(failed)})
		if why {
			t.also(text)
		}
	}
	return t
}

// toldOf reports whether the durability of a job is shown: where it is known, and once it has ended where it has any.
func toldOf(j *status.Job) bool {
	return j.Durability != nil && (j.Phase != schema.PhaseEnded || j.Durability.Off == "")
}

// everyOf is how often a version is to be written.
func everyOf(d *status.Durability) string {
	if d.EveryMS > 0 {
		return span(d.EveryMS)
	}
	return fmt.Sprintf("%s batches", count(d.EveryBatches))
}

// standby is where each job would go on if its ps were lost.
func (s Screen) standby(view *status.Status) *table {
	t := &table{columns: []column{{}, {head: "STANDBY", max: 28, middle: true}, {head: "AT", max: 28, keep: 6},
		{head: "VERSION", right: true}, {head: "AGE", right: true}, {head: "TOOK", right: true, keep: 3},
		{head: "TOLD", right: true, keep: 2}}}
	why := slices.ContainsFunc(view.Jobs, func(j status.Job) bool {
		return j.Standby != nil && j.Standby.Off+j.Standby.Failure != ""
	})
	if why {
		t.columns = append(t.columns, column{head: "WHY", max: max(s.Width-56, widthMin), middle: true})
	}
	for i := range view.Jobs {
		j := &view.Jobs[i]
		b := j.Standby
		if b == nil {
			continue
		}
		sign := level(status.Warning)
		switch {
		case b.Off != "":
			sign = level(status.Info)
		case b.Ready:
			sign = level(status.OK)
		}
		version, aged, took, told := "nothing", none, none, none
		if b.Version > 0 {
			version, aged = count(b.Version), span(b.AgeMS)
		}
		if b.TookMS > 0 {
			took = span(b.TookMS)
		}
		if b.Bytes > 0 {
			told = size(int64(min(b.Bytes, 1<<62)))
		}
		t.rows = append(t.rows, []Span{sign, cell(clean(j.Name)), cell(standbyAt(b)), cell(version),
			cell(aged), cell(took), cell(told)})
		if why {
			t.also(reason(b.Off, b.Failure))
		}
	}
	return t
}

// standbyAt is who stands by for a job.
func standbyAt(b *status.Standby) string {
	var peers []string
	for _, k := range b.Kept {
		peers = append(peers, k.Server)
	}
	if b.Peers && b.Ready && len(peers) == 0 { // of a report that had no room for them
		return "several"
	}
	return clean(cmp.Or(b.Server, strings.Join(peers, ", "), "nobody"))
}

// reason is why something is not so: since it cannot be, or since it has failed.
func reason(off, failure string) Span {
	if off != "" {
		return Span{clean(off), Dim}
	}
	return Span{clean(failure), Warn}
}

// standsBy is what each ps that stands by for another has of its jobs.
func (s Screen) standsBy(view *status.Status) *table {
	server := 1
	if slices.ContainsFunc(view.Servers, func(v status.Server) bool { return v.StandsBy != nil && v.StandsBy.Peers }) {
		server = 9 // that keeps it
	}
	t := &table{columns: []column{{}, {head: "STANDS BY FOR", max: 32, middle: true}, {head: "STATE", keep: 5},
		{head: "JOB", max: 28, middle: true}, {head: "VERSION", right: true},
		{head: "WHY", max: max(s.Width-72, widthMin), middle: true, keep: 6}, {head: "SERVER", keep: server, max: 28}}}
	for i := range view.Servers {
		b := view.Servers[i].StandsBy
		if b == nil {
			continue
		}
		state := cell("in reach")
		switch {
		case b.Refused != "":
			state = Span{"refused", Warn}
		case !b.Reached && b.Peers:
			state = Span{"out of reach", Warn}
		case !b.Reached && b.SilentMS > 0:
			state = Span{"silent " + span(b.SilentMS), Warn}
		case !b.Reached:
			state = Span{"not there yet", Dim}
		}
		row := func(sign Span, of, name, version string, why Span) {
			t.rows = append(t.rows, []Span{sign, cell(clean(of)), state, cell(clean(name)), cell(version), why,
				cell(clean(view.Servers[i].ID))})
		}
		sign := level(status.Info)
		if b.Refused != "" {
			sign = level(status.Warning)
		}
		if len(b.Jobs) == 0 {
			row(sign, cmp.Or(b.URL, none), none, none, reason("", b.Refused))
		}
		for _, h := range b.Jobs {
			sign, version := level(status.OK), count(h.Version)
			if h.Version == 0 {
				sign, version = level(status.Info), "nothing"
			}
			if h.Failure+h.Lost != "" {
				sign = level(status.Warning)
			}
			row(sign, cmp.Or(strings.Join(h.Of, ", "), b.URL, none), h.Job, version, reason("", cmp.Or(h.Failure, h.Lost)))
		}
	}
	return t
}

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
