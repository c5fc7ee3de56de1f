package testkit

import (
	"testing"
	"time"
)

// A clock that is set shows another date, and no time has passed.
func TestClock(t *testing.T) {
	var c Clock
	for _, by := range []time.Duration{time.Hour, -25 * time.Hour, 24 * time.Hour, 0} {
		before := c.Now()
		c.Jump(by)
		after := c.Now()
		passed := after.Sub(before)
		if passed < 0 || passed > patience {
			t.Errorf("set by %s, %s have passed", by, passed)
		}
		if dates := after.Round(0).Sub(before.Round(0)); (dates - passed - by).Abs() > patience {
			t.Errorf("set by %s, the dates are %s apart", by, dates)
		}
	}
	if off := c.Now().Round(0).Sub(time.Now().Round(0)).Abs(); off > patience {
		t.Errorf("set forward and back it is off by %s", off)
	}
}
