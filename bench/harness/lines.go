package harness

import (
	"slices"
	"time"
)

// lines are those that members say of events, which come out in the order of their times, whichever member was faster
// to say them. A line waits until no stream that is open can bring an earlier one: so nothing waits for a clock, and a
// line comes at the latest when those who could have said something before it have ended.
type lines struct {
	streams map[string]*stream
	waiting []timedLine // in the order of their times
}

// stream is a sequence of lines whose times rise. It is open while one of those that have fed it lives.
type stream struct {
	feeders map[*Handle]bool
	mark    int64 // of the last line: what comes from now on is later, or a repeat
}

type timedLine struct {
	at   int64 // nanoseconds since 1970
	text string
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
	if text == "" || at <= s.mark { // another member has said it
		return
	}
	s.mark = at
	place, _ := slices.BinarySearchFunc(l.waiting, at, func(line timedLine, at int64) int {
		if line.at <= at {
			return -1
		}
		return 1
	})
	l.waiting = slices.Insert(l.waiting, place, timedLine{at, text})
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
			at, _ := slices.BinarySearchFunc(l.waiting, s.mark, func(line timedLine, mark int64) int {
				if line.at <= mark {
					return -1
				}
				return 1
			})
			n = min(n, at)
		}
	}
	for _, line := range l.waiting[:n] {
		texts = append(texts, line.text)
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
