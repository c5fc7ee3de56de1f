package terminal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// jobOf is the job whose trainers and shards a screen shows: the run of that key (status.Job.Series: a name is its
// latest run), else the first; nil where there is none.
func jobOf(view *status.Status, key string) *status.Job {
	for i := range view.Jobs {
		if view.Jobs[i].Series == key {
			return &view.Jobs[i]
		}
	}
	if len(view.Jobs) == 0 {
		return nil
	}
	return &view.Jobs[0]
}

func (s Screen) sections(view *status.Status, events []status.Event) []section {
	job := jobOf(view, s.Job)
	var all []section
	add := func(v View, t *table) {
		if (s.View == ViewAll || s.View == v) && t != nil && len(t.rows) > 0 {
			all = append(all, newSection(t, s.Width))
		}
	}
	if s.View == ViewAll {
		add(ViewAll, s.problems(view))
		add(ViewAll, s.jobs(view, job))
		if s.roomy() { // else the age alone is among the jobs
			add(ViewAll, s.durability(view))
			add(ViewAll, s.standby(view))
		}
		if s.roomy() || len(view.Jobs) == 0 {
			add(ViewAll, s.standsBy(view))
		}
	}
	if job != nil {
		add(ViewTrainers, s.trainers(job))
		add(ViewShards, s.shards(job))
	}
	add(ViewServers, s.servers(view))
	add(ViewGPUs, s.gpus(view))
	add(ViewEvents, s.events(events))
	if len(all) == 0 && s.View != ViewAll {
		return []section{{head: Line{{"no " + s.View.String(), Dim}}}}
	}
	return all
}

// rows is how many rows a view of one section has.
func (s Screen) rows(view *status.Status, events []status.Event) int {
	if s.View == ViewAll {
		return 0
	}
	n := 0
	for _, c := range s.filled().sections(view, events) {
		n += len(c.rows)
	}
	return n
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
		text := clean(p.Text)
		if p.Symptom { // of the one above
			text = "└ " + text
		}
		t.rows = append(t.rows, []Span{level(p.Level), {cut(text, s.Width-16), style}, {span(view.NowMS - p.SinceMS), Dim}})
	}
	return t
}

func (s Screen) jobs(view *status.Status, shown *status.Job) *table {
	t := &table{columns: []column{{}, {head: "JOB", max: 28, middle: true}, {head: "PHASE"}, {head: "BATCH", right: true},
		{head: "LEFT", right: true, keep: 5},
		{head: "LOSS", right: true}, {head: "NORM", right: true, keep: 3}, {head: "SAMPLES/S", right: true},
		{head: "MODE", keep: 2}, {head: "AGE", right: true, keep: 6}}}
	durable := !s.roomy() && slices.ContainsFunc(view.Jobs, func(j status.Job) bool { return toldOf(&j) })
	if durable {
		t.columns = append(t.columns, column{head: "DURABLE", right: true, keep: 4})
	}
	standby := !s.roomy() && slices.ContainsFunc(view.Jobs, func(j status.Job) bool { return j.Standby != nil })
	if standby {
		t.columns = append(t.columns, column{head: "STANDBY", right: true, keep: 4})
	}
	for i := range view.Jobs {
		j := &view.Jobs[i]
		name := Span{Text: clean(j.Name)}
		if j == shown && len(view.Jobs) > 1 {
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
		if durable {
			t.also(durableAge(j))
		}
		if standby {
			t.also(standbyAge(j))
		}
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
	for _, r := range s.sorted(j.Trainers) {
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

func (s Screen) sorted(trainers []status.Trainer) []status.Trainer {
	order := slices.Clone(trainers)
	slices.SortStableFunc(order, func(a, b status.Trainer) int {
		switch s.Order {
		case ByLag:
			return cmp.Or(cmp.Compare(b.HeldMS, a.HeldMS), cmp.Compare(rank(a.Level), rank(b.Level)), cmp.Compare(b.Lag, a.Lag))
		case ByRate:
			return cmp.Compare(a.SamplesPerSecond, b.SamplesPerSecond)
		}
		return 0
	})
	return order
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
