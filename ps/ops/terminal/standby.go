package terminal

import (
	"cmp"
	"slices"
	"strings"

	"gradbus/ps/ops/status"
)

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

// standbyAge is how old the version is with which a job would go on elsewhere.
func standbyAge(j *status.Job) Span {
	switch b := j.Standby; {
	case b == nil || b.Off != "":
		return Span{none, Dim}
	case !b.Ready:
		return Span{"no", Warn}
	default:
		return cell(span(b.AgeMS))
	}
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
