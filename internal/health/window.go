package health

import "time"

// window remembers a counter over a span of time, so that its rise can be told. It holds at most windowPoints points:
// one that comes within a windowPoints-th of the span after another takes its place.
type window struct {
	points []point
}

type point struct {
	at    time.Time
	value uint64
}

const windowPoints = 60

// rise adds a value and says by how much the counter has risen over the last span. A counter that fell, since the GPU
// was reset, begins anew.
func (w *window) rise(now time.Time, value uint64, span time.Duration) uint64 {
	if n := len(w.points); n > 0 && value < w.points[n-1].value {
		w.points = w.points[:0]
	}
	old := 0
	for old < len(w.points) && now.Sub(w.points[old].at) > span {
		old++
	}
	w.points = append(w.points[:0], w.points[old:]...)
	if n := len(w.points); n < 2 || now.Sub(w.points[n-2].at) >= span/windowPoints {
		w.points = append(w.points, point{now, value})
	} else {
		w.points[n-1] = point{now, value}
	}
	return value - w.points[0].value
}

// slots remember for how much of a span something was so, in slots of a windowPoints-th of it: of each the share of
// samples that said so.
type slots struct {
	all [windowPoints]slot
}

type slot struct {
	number  int64 // of slots from 1970
	so, all int64 // samples
}

// add adds a sample and says for how much of the last span it was so.
func (s *slots) add(now time.Time, so bool, span time.Duration) time.Duration {
	width := int64(span) / windowPoints
	number := now.UnixNano() / width
	at := &s.all[number%windowPoints]
	if at.number != number {
		*at = slot{number: number}
	}
	at.all++
	if so {
		at.so++
	}
	var sum int64
	for _, at := range s.all {
		if at.so > 0 && number-at.number < windowPoints {
			sum += width * at.so / at.all
		}
	}
	return time.Duration(sum)
}
