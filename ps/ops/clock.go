package ops

import "time"

// clock gives the Tracker its times: those of the machine's clock, which may be set while jobs run, but never falling.
// Set forward, they leap with it, which the Tracker takes for a pause of the process. Set back, they go on, a tenth
// slower, until it has caught up: if they stood still for an hour, nobody would be found silent for an hour.
type clock struct {
	began time.Time
	read  time.Duration // since began, at the latest call, by the monotonic clock
	shown time.Time     // then
}

// at is a moment, as time.Now has told it, as the Tracker sees it.
func (c *clock) at(t time.Time) time.Time { return c.advance(t.Sub(c.began), t.Round(0)) }

func (c *clock) advance(since time.Duration, wall time.Time) time.Time {
	passed := max(0, since-c.read) // a report may have waited while a view was made
	c.read += passed
	if c.shown = c.shown.Add(passed - passed/10); wall.After(c.shown) {
		c.shown = wall
	}
	return c.shown
}
