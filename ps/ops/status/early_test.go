package status

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"
)

// beginnings is how many are simulated.
var beginnings = flag.Int("beginnings", 300, "number of noisy beginnings of runs to simulate")

// begin plays a run second by second and says when it was found to be slow first; 0 for never.
func begin(seconds int, whole bool, period int64, rate func(second int) float64) (p pace, found int) {
	const start = 1_700_000_040_000
	for s := range seconds {
		now := start + int64(s)*1000
		if f := rate(s); f >= 0 { // else it is not in a run at that moment
			p.add(now, real(f), true)
		}
		if _, slow := p.look(now, period, whole); slow && found == 0 {
			found = s
		}
	}
	return p, found
}

// A run has a rate after 20 seconds and half a minute of it, and is slow when most of 20 seconds were at little more
// than half of it.
func TestSlowFromTheBeginning(t *testing.T) {
	t.Parallel()
	falls := func(at int, to float64) func(int) float64 {
		return func(s int) float64 {
			if s >= at {
				return 100 * to
			}
			return 100
		}
	}
	for _, c := range []struct {
		name      string
		at, until int // when it is found, at the earliest and the latest; 0 is never
		period    int64
		whole     bool
		rate      func(int) float64
	}{
		{"to a quarter after a minute", 74, 80, 100, true, falls(60, 0.25)},
		{"to a quarter after two minutes", 134, 140, 100, true, falls(120, 0.25)},
		{"to a half", 74, 80, 100, true, falls(60, 0.5)},
		{"to 0.6", 0, 0, 100, true, falls(60, 0.6)},
		{"to nothing for fifteen seconds, which is told of otherwise", 0, 0, 100, true,
			func(s int) float64 { return map[bool]float64{true: 0, false: 100}[s >= 60 && s < 75] }},
		{"to nothing, for ten seconds", 0, 0, 100, true,
			func(s int) float64 { return map[bool]float64{true: 0, false: 100}[s >= 60 && s < 70] }},
		{"at once after the warm-up", 0, 0, 100, true, falls(40, 0.25)},
		{"one of its trainers has done its part", 0, 0, 100, false, falls(60, 0.25)},
		{"batches of three seconds", 0, 0, 3000, true, falls(60, 0.25)},
		{"faster and faster", 0, 0, 100, true, func(s int) float64 { return float64(s) }},
		{"slower and slower", 0, 0, 100, true, func(s int) float64 { return 100 * math.Pow(0.97, float64(s)) }},
		{"one epoch from memory, the next from the disk", 114, 120, 100, true, falls(100, 0.3)},
		{"from memory for half a minute", 0, 0, 100, true, falls(30, 0.2)},
		{"evaluation in between", 0, 0, 100, true,
			func(s int) float64 { return map[bool]float64{true: -1, false: 100}[s%60 > 30] }},
	} {
		if _, found := begin(180, c.whole, c.period, c.rate); found < c.at || found > c.until {
			t.Errorf("%s: found after %d s, want %d to %d", c.name, found, c.at, c.until)
		}
	}
}

// What was slow in its first minutes is forgiven after half an hour, and then is what is usual; it is over before that
// when the rate is back.
func TestSlowFromTheBeginningEnds(t *testing.T) {
	t.Parallel()
	slowFor := func(until int) func(int) float64 {
		return func(s int) float64 { return map[bool]float64{true: 25, false: 100}[s >= 60 && s < until] }
	}
	p, found := begin(240, true, 100, slowFor(120))
	if found == 0 || p.slow || p.typical() != 0 {
		t.Errorf("back at its rate: found after %d s, slow %v, usual %v", found, p.slow, p.typical())
	}
	if p, _ = begin(1700, true, 100, slowFor(1700)); !p.slow || p.typical() != 100 || p.onset < 1_700_000_040_000+55_000 ||
		p.onset > 1_700_000_040_000+65_000 {
		t.Errorf("not back: slow %v, usual %v, since %d", p.slow, p.typical(), p.onset)
	}
	if p, _ = begin(2200, true, 100, slowFor(2200)); p.slow || p.typical() != 25 {
		t.Errorf("after half an hour: slow %v, usual %v", p.slow, p.typical())
	}
}

// noisy is the beginning of a run that goes as it should: it warms up for up to 40 seconds, is up to three times as
// fast for the first seconds as data come from memory, reads its first epoch slowly, stands still for seconds now and
// then as runs do that save, collect garbage or load, and has noise that lasts.
func noisy(seed uint64) func(int) float64 {
	r := rand.New(rand.NewPCG(seed, 6))
	warm, warmRate := r.IntN(40), r.Float64()
	burst, burstRate := 0, 1.0
	if r.IntN(4) == 0 {
		burst, burstRate = warm+r.IntN(15), 1+2*r.Float64()
	}
	epoch, epochRate := 20+r.IntN(160), 1.0
	if r.IntN(2) == 0 {
		epochRate = 0.3 + 0.7*r.Float64()
	}
	stops, longest := r.Float64()/30, 1+r.IntN(8)
	sigma, lasts := 0.4*r.Float64(), 0.9*r.Float64()
	noise, still := 0.0, 0
	return func(s int) float64 {
		noise = lasts*noise + sigma*math.Sqrt(1-lasts*lasts)*r.NormFloat64()
		rate := 1000 * math.Exp(noise)
		switch {
		case s < warm:
			rate *= warmRate
		case s < burst:
			rate *= burstRate
		}
		if s < epoch {
			rate *= epochRate
		}
		if still--; still > 0 {
			return rate * 0.05
		}
		if r.Float64() < stops {
			still = 1 + r.IntN(longest)
		}
		return rate
	}
}

// Fewer than one in a thousand noisy beginnings is taken for a slowdown, and most slowdowns to a quarter are found. Of
// 100,000 it is one, and of as many slowdowns three quarters are found.
func TestNoisyBeginnings(t *testing.T) {
	t.Parallel()
	wrong, missed, late := 0, 0, 0
	for seed := range *beginnings {
		rate := noisy(uint64(seed))
		if _, found := begin(180, true, 100, rate); found > 0 {
			wrong++
			t.Logf("seed %d is slow after %d s", seed, found)
		}
		rate = noisy(uint64(seed))
		at := 90 + seed%60
		_, found := begin(at+45, true, 100, func(s int) float64 {
			f := rate(s)
			if s >= at {
				f *= 0.25
			}
			return f
		})
		if found == 0 {
			missed++
		} else if found > at+25 {
			late++
		}
	}
	t.Logf("of %d: %d taken for slow, %d slowdowns not found, %d after more than 25 s", *beginnings, wrong, missed, late)
	if wrong*1000 >= *beginnings || missed*2 > *beginnings {
		t.Errorf("of %d beginnings %d were taken for a slowdown, and %d slowdowns were not found", *beginnings, wrong, missed)
	}
}
