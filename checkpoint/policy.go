package checkpoint

import (
	"fmt"
	"strconv"
	"time"
)

// Policy is where and how often versions of jobs are written down. The zero value writes nothing.
type Policy struct {
	Dir     string        // the folder; empty: nothing is written
	Every   time.Duration // between two versions, 1 s to 24 h; 0 means 10 s, unless Batches is set
	Batches int           // the same as a number of batches; 0 means by time alone
	Keep    int           // checkpoints of a job that stay, 2 to 1000; older ones are removed. 0 means 2
}

// Bounds of a Policy.
const (
	everyMin     = time.Second
	everyMax     = 24 * time.Hour
	everyDefault = 10 * time.Second
	keepMax      = 1000
)

// WithDefaults puts in what zero means.
func (p Policy) WithDefaults() Policy {
	if p.Batches == 0 && p.Every == 0 {
		p.Every = everyDefault
	}
	if p.Keep == 0 {
		p.Keep = KeepMin
	}
	return p
}

// SetInterval sets how often from what a person writes: a time, as "10s", or a number of batches, as "500".
func (p *Policy) SetInterval(text string) error {
	p.Every, p.Batches = 0, 0
	var err error
	if p.Batches, err = strconv.Atoi(text); err == nil && p.Batches > 0 {
		return nil
	}
	p.Batches = 0
	if p.Every, err = time.ParseDuration(text); err != nil || p.Every <= 0 {
		return fmt.Errorf("%q: want a time, as 10s, or a number of batches, as 500", text)
	}
	return nil
}

// Interval is how often, for people.
func (p *Policy) Interval() string {
	if p.Batches > 0 {
		return fmt.Sprintf("%d batches", p.Batches)
	}
	return p.Every.String()
}

// Check lists what is wrong, each with the field, its value and what would be right. The policy is one with defaults.
func (p Policy) Check() (wrong []error) {
	if p.Every != 0 && (p.Every < everyMin || p.Every > everyMax) {
		wrong = append(wrong, fmt.Errorf("checkpoint_every %s: want %s to %s", p.Every, everyMin, everyMax))
	}
	if p.Batches < 0 {
		wrong = append(wrong, fmt.Errorf("checkpoint_batches %d: want 1 or more, or 0 for by time alone", p.Batches))
	}
	if p.Keep < KeepMin || p.Keep > keepMax {
		wrong = append(wrong, fmt.Errorf("checkpoint_keep %d: want %d to %d", p.Keep, KeepMin, keepMax))
	}
	return wrong
}

// incrementsMax bounds how many increments are over a full checkpoint: a restore reads all of them.
const incrementsMax = 32

// Growth is what a durable version goes on from, and what tells whether the next one is to be an increment over it. The
// zero value is that of no version.
type Growth struct {
	full    int64 // bytes of the full checkpoint; 0: there is none
	over    int64 // of the increments over it
	length  int   // how many they are
	touched int64 // what the newest increment took, or would have taken
}

// GoesOn says whether an increment over it is worth while: until all of them take as much as a full checkpoint, so that
// a restore reads twice that at most.
func (g Growth) GoesOn() bool {
	return g.full > 0 && g.length < incrementsMax && g.over+g.touched < g.full
}

// With is the growth with a further version, of so many bytes. touched is what an increment takes, or would have taken;
// 0: that is not known, so it is all.
func (g Growth) With(increment bool, bytes, touched int64) Growth {
	if !increment {
		return Growth{full: bytes, touched: touched}
	}
	return Growth{full: g.full, over: g.over + bytes, length: g.length + 1, touched: touched}
}
