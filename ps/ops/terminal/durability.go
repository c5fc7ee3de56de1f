package terminal

import (
	"fmt"
	"slices"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

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

// durableAge is how old the newest version of a job is that is durable.
func durableAge(j *status.Job) Span {
	switch d := j.Durability; {
	case !toldOf(j):
		return Span{none, Dim}
	case d.Version == 0:
		return Span{"nothing", Dim}
	case d.Failure != "":
		return Span{span(d.AgeMS), Warn}
	default:
		return cell(span(d.AgeMS))
	}
}

// everyOf is how often a version is to be written.
func everyOf(d *status.Durability) string {
	if d.EveryMS > 0 {
		return span(d.EveryMS)
	}
	return fmt.Sprintf("%s batches", count(d.EveryBatches))
}
