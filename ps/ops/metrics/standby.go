package metrics

import (
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// standbyFigures tell who would go on with a job. There are none where nobody has ever stood by.
func standbyFigures() []figure[job] {
	return []figure[job]{
		gauges("gradbus_job_standby_ready", "Whether the job would go on elsewhere, if its ps, or one of several, were lost "+
			"now; absent where none has stood by, or none can.", nil,
			able(func(b *status.Standby, r *row) { r.value(truth(b.Ready)) })),
		gauges("gradbus_job_standby_version", "The newest version that a ps that stands by has whole, or several together.",
			nil, whole(func(b *status.Standby, r *row) { r.value(float64(b.Version)) })),
		gauges("gradbus_job_standby_age_seconds", "Time since that became whole there: what the loss of a ps costs, "+
			"about.", nil, whole(func(b *status.Standby, r *row) { r.value(float64(b.AgeMS) / 1000) })),
		gauges("gradbus_job_standby_seconds", "Time that telling the last version took.", nil,
			whole(func(b *status.Standby, r *row) { r.value(float64(b.TookMS) / 1000) })),
		counters("gradbus_job_standby_bytes_total", "Bytes that were told to each ps that stands by.", nil,
			able(func(b *status.Standby, r *row) { r.value(float64(b.Bytes)) })),
		gauges("gradbus_job_standby_unready_seconds", "For how long the job would not have gone on elsewhere, though it was "+
			"to; 0 where it would.", nil,
			able(func(b *status.Standby, r *row) { r.value(float64(b.UnreadyMS) / 1000) })),
		gauges("gradbus_job_standby_late_seconds", "For how long trainers have been past that version; 0 where they are not.",
			nil, able(func(b *status.Standby, r *row) { r.value(float64(b.LateMS) / 1000) })),
	}
}

// able reads from a running job that somebody can stand by for, where somebody has; whole from one of which who stands
// by has a version.
func able(of func(*status.Standby, *row)) func(job, *row) {
	return func(j job, r *row) {
		if j.shown != nil && j.shown.Standby != nil && j.shown.Standby.Off == "" {
			of(j.shown.Standby, r)
		}
	}
}

func whole(of func(*status.Standby, *row)) func(job, *row) {
	return able(func(b *status.Standby, r *row) {
		if b.Version > 0 {
			of(b, r)
		}
	})
}

// standsByFigures tell of the ps that this one stands by for.
func standsByFigures() []figure[server] {
	return []figure[server]{
		gauges("gradbus_ps_standby_reached", "Whether the ps that this one stands by for answers; absent where it stands "+
			"by for none, or several do for each other.", nil, func(s server, r *row) {
			if b := s.s.StandsBy; b != nil && !b.Peers {
				r.value(truth(b.Reached))
			}
		}),
		gauges("gradbus_ps_standby_job_ready", "Whether what this ps is to have of a job of others is there, to go on with.",
			[]string{"job_name"}, held(func(h *schema.HeldReport) float64 { return truth(h.Version > 0) })),
		gauges("gradbus_ps_standby_job_version", "The version of that; 0 where none is there.",
			[]string{"job_name"}, held(func(h *schema.HeldReport) float64 { return float64(h.Version) })),
	}
}

func held(of func(*schema.HeldReport) float64) func(server, *row) {
	return func(s server, r *row) {
		if s.s.StandsBy == nil {
			return
		}
		for i := range s.s.StandsBy.Jobs {
			h := &s.s.StandsBy.Jobs[i]
			r.value(of(h), string(h.Job))
		}
	}
}
