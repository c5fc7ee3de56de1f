package status

import (
	"math"

	"gradbus/schema"
)

// Rings of points: seconds for ten minutes, means of ten seconds for three hours, means of a minute for two days.
const (
	secondsKept, tensKept, minutesKept = 600, 1080, 2880
)

// columnNames are the columns of a Series, in the order of values.
var columnNames = [columns]string{"batch", "loss", "norm", "samples", "keys", "lookup", "compute", "send", "result",
	"sent", "received", "pending", "refused", "resent"}

const columns = 14

// values are the columns of a point; NaN that was told is NaN, what was not told is not in has.
type values struct {
	at  int64
	has uint16
	v   [columns]float32
	n   float64 // batch, which float32 is too short for
}

// points is a ring.
type points struct {
	kept []values // grows up to most
	most int
	next int
}

func (r *points) add(v values) {
	if len(r.kept) < r.most {
		r.kept = append(r.kept, v)
		return
	}
	r.kept[r.next] = v
	r.next = (r.next + 1) % r.most
}

// each calls f in the order of time.
func (r *points) each(f func(*values)) {
	for i := range r.kept {
		f(&r.kept[(r.next+i)%len(r.kept)])
	}
}

// from is the time from which on every point is kept: 0 while none has been dropped.
func (r *points) from() int64 {
	if len(r.kept) == 0 || len(r.kept) < r.most {
		return 0
	}
	return r.kept[r.next].at
}

// series are a run's points of three grains.
type series struct {
	seconds, tens, minutes points
	ten, minute            mean
	last                   Point
	any                    bool
}

// mean adds up points of one stretch.
type mean struct {
	at     int64
	any    bool
	last   float64 // batch
	sum    [columns]float64
	n      [columns]int
	length int64
}

func (s *series) add(p Point) {
	if s.any && p.AtMS <= s.last.AtMS {
		return
	}
	if !s.any {
		s.seconds.most, s.tens.most, s.minutes.most = secondsKept, tensKept, minutesKept
		s.ten.length, s.minute.length = 10_000, 60_000
	}
	s.last, s.any = p, true
	v := valuesOf(&p)
	s.seconds.add(v)
	s.ten.add(&v, &s.tens)
	s.minute.add(&v, &s.minutes)
}

// add takes a point, and puts the mean of the stretch before into its ring when another begins.
func (m *mean) add(v *values, to *points) {
	at := v.at / m.length * m.length
	if m.any && at != m.at {
		to.add(m.take())
		*m = mean{length: m.length}
	}
	m.at, m.any, m.last = at, true, v.n
	for i := 1; i < columns; i++ {
		// one such second is no reason to hide sixty
		if f := float64(v.v[i]); v.has>>i&1 == 1 && !math.IsNaN(f) && !math.IsInf(f, 0) {
			m.sum[i] += f
			m.n[i]++
		}
	}
}

func (m *mean) take() values {
	v := values{at: m.at, has: 1, n: m.last}
	for i := 1; i < columns; i++ {
		if m.n[i] > 0 {
			v.v[i] = float32(m.sum[i] / float64(m.n[i]))
			v.has |= 1 << i
		}
	}
	return v
}

func valuesOf(p *Point) values {
	v := values{at: p.AtMS, has: 1, n: float64(p.Batch)}
	for i, f := range [...]*schema.Real{1: p.Loss, p.Norm, p.Samples, p.Keys, p.Lookup, p.Compute, p.Send, p.Result,
		p.Sent, p.Received, p.Pending, p.Refused, p.Resent} {
		if f != nil {
			v.v[i] = float32(*f)
			v.has |= 1 << i
		}
	}
	return v
}

// newest is the point of the latest second.
func (s *series) newest() (Point, bool) { return s.last, s.any }

// columns are the points after a time, of each time the finest that is kept; where the finer ones begin within a
// coarser one, that stays.
func (s *series) columns(job, run string, since int64) Series {
	out := Series{Job: job, RunID: run, AtMS: []int64{}, Columns: map[string][]*schema.Real{}}
	for _, name := range columnNames {
		out.Columns[name] = []*schema.Real{}
	}
	add := func(v *values) {
		if v.at <= since {
			return
		}
		out.AtMS = append(out.AtMS, v.at)
		for i, name := range columnNames {
			var f *schema.Real
			switch {
			case i == 0:
				f = real(v.n)
			case v.has>>i&1 == 1:
				f = real(float64(v.v[i]))
			}
			out.Columns[name] = append(out.Columns[name], f)
		}
	}
	second, ten := s.seconds.from(), s.tens.from()
	until := int64(0) // what was added so far
	s.minutes.each(func(v *values) {
		if v.at < ten && v.at < second {
			add(v)
			until = v.at + 60_000
		}
	})
	s.tens.each(func(v *values) {
		if v.at >= until && v.at < second {
			add(v)
			until = v.at + 10_000
		}
	})
	s.seconds.each(func(v *values) {
		if v.at >= until {
			add(v)
		}
	})
	return out
}
