package harness

import (
	"slices"
	"time"
)

// lines are those that members say of events, which come out in the order of their times, whichever member was faster
// to say them. A line waits until no stream that is open can bring an earlier one: so nothing waits for a clock, and a
// line comes at the latest when all members with earlier lines have ended.
type lines struct {
	streams map[string]*stream
	waiting []timedLine // in the order of their times
	given   int64       // time of the last that is ready
}

// stream is a sequence of lines whose times rise. It is open while one of those that have fed it lives.
type stream struct {
	feeders map[*Handle]bool
	mark    int64 // of the latest line: what its member says from now on is later
}

type timedLine struct {
	at           int64 // nanoseconds since 1970
	stream, text string
}

// feed takes a line of a stream from a member, or, where the text is empty, the word that the member feeds it.
func (l *lines) feed(from *Handle, name string, at int64, text string) {
	if l.streams == nil {
		l.streams = map[string]*stream{}
	}
	s := l.streams[name]
	if s == nil {
		s = &stream{feeders: map[*Handle]bool{}}
		l.streams[name] = s
	}
	if !from.hasEnded() {
		s.feeders[from] = true
	}
	said := func(line timedLine) bool { return line.at == at && line.stream == name }
	if text == "" || at <= l.given || slices.ContainsFunc(l.waiting, said) { // by another member
		return
	}
	s.mark = max(s.mark, at)
	place := l.before(at)
	l.waiting = slices.Insert(l.waiting, place, timedLine{at, name, text})
}

// before is how many of those that wait are not later than a time.
func (l *lines) before(at int64) int {
	n, _ := slices.BinarySearchFunc(l.waiting, at, func(line timedLine, at int64) int {
		if line.at <= at {
			return -1
		}
		return 1
	})
	return n
}

// end closes the streams that a member fed alone.
func (l *lines) end(from *Handle) {
	for _, s := range l.streams {
		delete(s.feeders, from)
	}
}

// ready gives the lines that no open stream can bring an earlier one than, and forgets them.
func (l *lines) ready() (texts []string) {
	n := len(l.waiting)
	for _, s := range l.streams {
		if len(s.feeders) > 0 {
			n = min(n, l.before(s.mark))
		}
	}
	for _, line := range l.waiting[:n] {
		texts, l.given = append(texts, line.text), line.at
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	return texts
}

// clockOf gives the times of the lines that a member says of itself: each later than the last.
type clockOf struct{ last int64 }

func (c *clockOf) next(at time.Time) int64 {
	c.last = max(at.UnixNano(), c.last+1)
	return c.last
}
