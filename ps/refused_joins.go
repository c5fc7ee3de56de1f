package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/schema"
)

// refusedShown is for how long after its last time a refused join is told of. Its bound is that of a report: what was
// refused longest ago makes way.
const refusedShown = 5 * time.Minute

// refusedJoins are the joins that were refused lately, each once: of the same job, for the same reason and field.
type refusedJoins struct {
	all     []schema.RefusedReport // the latest is last
	crowded time.Time              // when one last made way that had been refused within a second
}

// note counts a refusal. It reports whether to tell of it: of the first, the second, the fourth and so on, since a
// trainer that a service manager starts again and again is refused for ever. The table bounds what is told of others:
// for a second after one made way for another too soon, only those tell that were there a second before.
func (r *refusedJoins) note(now time.Time, job schema.JobName, host string, why *schema.Refused) (n uint64, tell bool) {
	if schema.CheckName("job", string(job)) != nil {
		return 0, false // no report could tell of it
	}
	one := schema.RefusedReport{Job: job, Reason: schema.Clip(why.Reason), Field: schema.Clip(why.Field),
		FirstMS: now.UnixMilli()}
	same := func(p schema.RefusedReport) bool {
		return p.Job == job && p.Reason == one.Reason && p.Field == one.Field
	}
	if i := slices.IndexFunc(r.all, same); i >= 0 {
		one = r.all[i]
		r.all = slices.Delete(r.all, i, i+1)
	} else if len(r.all) == schema.TelemetryRefusedMax {
		if now.Sub(time.UnixMilli(r.all[0].LastMS)) < time.Second {
			r.crowded = now
		}
		r.all = slices.Delete(r.all, 0, 1)
	}
	one.Host, one.Text, one.LastMS = schema.Clip(host), schema.Clip(why.Text), now.UnixMilli()
	one.Count++
	r.all = append(r.all, one)
	late := now.Sub(r.crowded) < time.Second && one.FirstMS > r.crowded.Add(-time.Second).UnixMilli()
	return one.Count, !late && one.Count&(one.Count-1) == 0
}

// lately forgets what is over, and gives the rest for a report.
func (r *refusedJoins) lately(now time.Time) []schema.RefusedReport {
	r.all = slices.DeleteFunc(r.all,
		func(p schema.RefusedReport) bool { return now.Sub(time.UnixMilli(p.LastMS)) > refusedShown })
	return slices.Clone(r.all)
}

// joinRefused notes a refusal for the report. It logs it, and tells the trainers that wait for the job to start, where
// note says so.
func (l *controlLoop) joinRefused(job schema.JobName, from schema.Member, host string, why *schema.Refused) {
	n, tell := l.refused.note(time.Now(), job, host, why)
	if !tell {
		return
	}
	l.server.log.Warn("join refused", "job", job, "member", from, "host", host, "reason", why.Reason, "text",
		why.Text, "times", n)
	if j := l.job(job); j != nil && j.coordinator.gathers() {
		told := *why
		told.Text = fmt.Sprintf("a trainer on %s was refused: %s", host, why.Text)
		l.send(job, j.run, schema.All, schema.Control{Refused: &told})
	}
}
