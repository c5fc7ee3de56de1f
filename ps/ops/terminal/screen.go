package terminal

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// rowsMax bounds the rows of a table: the answer of --json has all.
const rowsMax = 32

// none stands for a value that is not known.
const none = "–"

// Text lays a status out: the sentence, and below it the tables that have rows. Trainers and shards are those of the
// first job. ps is the command as it was started.
func Text(view *status.Status, events []status.Event, zone *time.Location, ps string) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	writeHead(w, view, zone, ps)
	tables := []table{problems(view), jobs(view)}
	if len(view.Jobs) > 0 {
		tables = append(tables, trainers(&view.Jobs[0]), shards(&view.Jobs[0]))
	}
	tables = append(tables, servers(view), gpus(view), durability(view), replica(view), primaries(view),
		happened(events, zone))
	for _, t := range tables {
		t.write(w)
	}
	w.Flush()
	return text.String()
}

// clean makes text of other machines safe to show.
func clean(text string) string { return schema.Printable(text) }

// Icon returns the sign of a level.
func Icon(l status.Level) string {
	switch l {
	case status.OK:
		return "✓"
	case status.Info:
		return "·"
	case status.Warning:
		return "!"
	case status.Critical:
		return "✗"
	}
	return "?"
}

// writeHead writes what stands at the top whatever else is shown: the answering ps and the one sentence.
func writeHead(w io.Writer, view *status.Status, zone *time.Location, ps string) {
	at := func(ms int64) string { return time.UnixMilli(ms).In(zone).Format(time.TimeOnly) }
	fmt.Fprintf(w, "gradbus %s at %s, %s\n", clean(view.Version), clean(view.Server), at(view.NowMS))
	if view.Injected {
		fmt.Fprintln(w, "! INJECTED some of these faults were requested by --inject")
	}
	why := &view.Why
	fmt.Fprintf(w, "%s %s %s\n", Icon(why.Level), strings.ToUpper(clean(string(why.Level))), clean(why.Text))
	if why.Action != "" && !strings.Contains(why.Text, why.Action) {
		fmt.Fprintf(w, "→ %s\n", clean(why.Action))
	}
	i := slices.IndexFunc(view.Problems, func(p status.Problem) bool { return p.Code == why.Code && p.Job == why.Job })
	if i >= 0 && view.Problems[i].SinceMS > 0 {
		p := &view.Problems[i]
		fmt.Fprintf(w, "  since %s, for %s; more: %s runbook %s\n", at(p.SinceMS), status.Ago(view.NowMS-p.SinceMS), ps,
			clean(p.Runbook))
	}
}

// table is a heading and rows of cells.
type table struct {
	head []string
	rows [][]string
}

// add adds a row, in whose cells nothing remains that a terminal would act upon.
func (t *table) add(l status.Level, cells ...string) {
	row := []string{Icon(l)}
	for _, c := range cells {
		row = append(row, clean(c))
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n\t%s\n", strings.Join(t.head, "\t"))
	for _, row := range t.rows[:min(len(t.rows), rowsMax)] {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if more := len(t.rows) - rowsMax; more > 0 {
		fmt.Fprintf(w, "… %d more\n", more)
	}
}

// rank orders levels, the worst first.
func rank(l status.Level) int {
	return slices.Index([]status.Level{status.Critical, status.Warning, status.Info, status.OK}, l)
}

// problems returns the table of problems but the one of the sentence at the top.
func problems(view *status.Status) table {
	t := table{head: []string{"ALSO", "FOR"}}
	for i := 1; i < len(view.Problems); i++ {
		p := &view.Problems[i]
		t.add(p.Level, p.Text, status.Ago(view.NowMS-p.SinceMS))
	}
	return t
}

func jobs(view *status.Status) table {
	t := table{head: []string{"JOB", "PHASE", "BATCH", "LEFT", "LOSS", "SAMPLES/S", "MODE", "AGE"}}
	for i := range view.Jobs {
		j := &view.Jobs[i]
		batch, phase, told := status.Count(float64(j.Batch)), j.Phase, age(j.AgeMS)
		if j.Planned > 0 {
			batch += "/" + status.Count(float64(j.Planned))
		}
		if j.EndedMS > 0 {
			told = status.Ago(view.NowMS-j.EndedMS) + " ago"
		}
		if j.End != "" && j.End != schema.EndCompleted {
			phase = string(j.End)
		}
		t.add(j.Why.Level, j.Name, phase, batch, since(j.LeftMS), orNone(j.Loss), status.Figure(float64(j.SamplesPerSecond)),
			j.Consistency+" "+j.Apply, told)
	}
	return t
}

// age is empty for what is of this moment.
func age(ms int64) string {
	if ms < 2500 {
		return ""
	}
	return status.Ago(ms)
}

// since is a length of time, or none.
func since(ms int64) string {
	if ms <= 0 {
		return none
	}
	return status.Ago(ms)
}

func orNone(x *schema.Real) string {
	if x == nil {
		return none
	}
	return status.Figure(float64(*x))
}

func percent(x schema.Real) string { return fmt.Sprintf("%.0f %%", 100*float64(x)) }

// rate is bytes a second.
func rate(x schema.Real) string {
	if f := float64(x); f >= 0 && f < 1<<62 {
		return status.Amount(int64(f)) + "/s"
	}
	return none
}

// trainers are those first that others wait for, then the ones with problems.
func trainers(j *status.Job) table {
	t := table{head: []string{"TRAINER", "STATE", "BATCH", "HELD", "DOES", "SAMPLES/S", "LOSS", "HOST", "DISK FREE", "AGE"}}
	order := slices.SortedStableFunc(slices.Values(j.Trainers), func(a, b status.Trainer) int {
		return cmp.Or(cmp.Compare(b.HeldMS, a.HeldMS), cmp.Compare(rank(a.Level), rank(b.Level)))
	})
	for i := range order {
		r := &order[i]
		does, host := r.Doing, r.Host
		if r.Shard != nil {
			does += fmt.Sprintf(" s%d", *r.Shard)
		}
		if r.DoingMS >= 1000 {
			does += " " + status.Ago(r.DoingMS)
		}
		if r.PID != 0 {
			host += fmt.Sprintf(" (%d)", r.PID)
		}
		t.add(r.Level, r.Member, r.State, status.Count(float64(r.Batch)), since(r.HeldMS), does,
			status.Figure(float64(r.SamplesPerSecond)), orNone(r.Loss), host, disk(r.Disks), age(r.AgeMS))
	}
	return t
}

func shards(j *status.Job) table {
	t := table{head: []string{"SHARD", "SERVER", "VERSION", "LOAD", "IN", "STAGED", "HELD", "PROMISED", "WAITS FOR", "AGE"}}
	order := slices.SortedStableFunc(slices.Values(j.Shards), func(a, b status.Shard) int {
		return cmp.Compare(rank(a.Level), rank(b.Level))
	})
	for i := range order {
		r := &order[i]
		waits := ""
		switch {
		case len(r.WaitsFor) > 0:
			waits = status.Ago(r.WaitsMS) + " for " + strings.Join(r.WaitsFor, " ")
		case !r.Ready:
			waits = "not ready"
		case r.Idle != "":
			waits = "idle: " + r.Idle
		}
		t.add(r.Level, r.Member, r.Server, status.Count(float64(r.Version)), percent(r.Load), rate(r.BytesPerSecond),
			status.Amount(r.StagedBytes), status.Amount(r.HeldBytes), status.Amount(r.MemoryBytes), waits, age(r.AgeMS))
	}
	return t
}

func servers(view *status.Status) table {
	t := table{head: []string{"SERVER", "IN", "REFUSED/S", "RESIDENT", "PROMISED", "DISK FREE", "PAGE", "AGE"}}
	for i := range view.Servers {
		r := &view.Servers[i]
		promised := status.Amount(r.PromisedBytes)
		if r.MemoryMaxBytes > 0 {
			promised += " of " + status.Amount(r.MemoryMaxBytes)
		}
		t.add(r.Level, strings.TrimSpace(r.ID+" "+r.State), rate(r.BytesPerSecond),
			status.Figure(float64(r.RefusedPerSecond)), status.Amount(r.ResidentBytes), promised, disk(r.Disks), r.Page,
			age(r.AgeMS))
	}
	return t
}

// disk is the file system that has least left.
func disk(all []status.Disk) string {
	if len(all) == 0 {
		return none
	}
	least := slices.MinFunc(all,
		func(a, b status.Disk) int { return cmp.Compare(a.FreeBytes-a.NeedBytes, b.FreeBytes-b.NeedBytes) })
	return status.Amount(least.FreeBytes) + " of " + status.Amount(least.TotalBytes)
}

func gpus(view *status.Status) table {
	t := table{head: []string{"GPU", "HOST", "STATE", "TEMP", "USE", "MEMORY", "USERS", "REASON"}}
	for i := range view.GPUs {
		g := &view.GPUs[i]
		state, reason, temperature, use, memory := string(g.State), g.Reason, none, none, none
		if g.Injected {
			state += " (injected)"
		}
		if g.Action != "" {
			reason += " → " + g.Action
		}
		if g.Temperature != nil {
			temperature = status.Figure(float64(*g.Temperature)) + " °C"
		}
		if g.Utilisation != nil {
			use = percent(*g.Utilisation)
		}
		if g.MemoryUsed != nil && g.MemoryTotal != nil {
			memory = status.Amount(*g.MemoryUsed) + " of " + status.Amount(*g.MemoryTotal)
		}
		t.add(g.Level, fmt.Sprint(g.Index), g.Host, state, temperature, use, memory, strings.Join(g.Users, " "), reason)
	}
	return t
}

// happened lists events, the latest first.
func happened(events []status.Event, zone *time.Location) table {
	t := table{head: []string{"AT", "EVENT"}}
	for _, e := range slices.Backward(events) {
		t.add(e.Level, time.UnixMilli(e.AtMS).In(zone).Format(time.TimeOnly), e.Text)
	}
	return t
}

// durability returns the table of what survives the processes of each job.
func durability(view *status.Status) table {
	t := table{head: []string{"CHECKPOINTS", "DURABLE", "AGE", "SIZE", "TOOK", "EVERY", "FAILED", "WHY"}}
	for i := range view.Jobs {
		j, d := &view.Jobs[i], view.Jobs[i].Durability
		if d == nil || j.Phase == schema.PhaseEnded && d.Off != "" {
			continue
		}
		l, version, aged, bytes, every, failed := status.OK, "nothing", none, none, none, none
		if d.Version > 0 {
			version, aged, bytes = status.Count(float64(d.Version)), status.Ago(d.AgeMS), status.Amount(d.Bytes)
		}
		switch {
		case d.Off != "":
			l = status.Info
		case d.EveryMS > 0:
			every, failed = status.Ago(d.EveryMS), fmt.Sprint(d.Failures)
		default:
			every, failed = status.Count(float64(d.EveryBatches))+" batches", fmt.Sprint(d.Failures)
		}
		if d.Failure != "" {
			l = status.Warning
		}
		t.add(l, j.Name, version, aged, bytes, since(int64(1000*d.TookSeconds)), every, failed, cmp.Or(d.Off, d.Failure))
	}
	return t
}

// replica is where each job would go on if its ps were lost.
func replica(view *status.Status) table {
	t := table{head: []string{"REPLICA", "AT", "VERSION", "AGE", "TOOK", "TOLD", "WHY"}}
	for i := range view.Jobs {
		j, b := &view.Jobs[i], view.Jobs[i].Replica
		if b == nil {
			continue
		}
		l, version, aged := status.Warning, "nothing", none
		switch {
		case b.Off != "":
			l = status.Info
		case b.Ready:
			l = status.OK
		}
		if b.Version > 0 {
			version, aged = status.Count(float64(b.Version)), status.Ago(b.AgeMS)
		}
		var peers []string
		for _, k := range b.Kept {
			peers = append(peers, k.Server)
		}
		t.add(l, j.Name, cmp.Or(b.Server, strings.Join(peers, ", "), none), version, aged, since(int64(1000*b.TookSeconds)),
			status.Amount(int64(min(b.Bytes, 1<<62))), cmp.Or(b.Off, b.Failure))
	}
	return t
}

// primaries returns the table of the replicas of each ps that holds replicas for another.
func primaries(view *status.Status) table {
	t := table{head: []string{"REPLICAS FOR", "STATE", "JOB", "VERSION", "SERVER", "WHY"}}
	for i := range view.Servers {
		v, b := &view.Servers[i], view.Servers[i].Primary
		if b == nil {
			continue
		}
		state := "in reach"
		switch {
		case b.Refused != "":
			state = "refused"
		case !b.Reached && b.SilentMS > 0:
			state = "silent " + status.Ago(b.SilentMS)
		case !b.Reached:
			state = "not reached"
		}
		if len(b.Jobs) == 0 {
			t.add(status.Info, cmp.Or(b.URL, none), state, none, none, v.ID, b.Refused)
		}
		for _, h := range b.Jobs {
			l, version := status.OK, status.Count(float64(h.Version))
			if h.Version == 0 {
				l, version = status.Info, "nothing"
			}
			if h.Failure+h.Lost != "" {
				l = status.Warning
			}
			t.add(l, cmp.Or(strings.Join(h.Of, ", "), b.URL, none), state, string(h.Job), version, v.ID, cmp.Or(h.Failure, h.Lost))
		}
	}
	return t
}
