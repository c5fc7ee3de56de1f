package checkpoint

import "testing"

// Increments go on until they cost as much as a full checkpoint, or are too many for a restore.
func TestChainsEnd(t *testing.T) {
	for want, c := range map[string]struct {
		full, increment, touched int64
	}{
		"never":                       {1000, 1000, 1000},
		"when they take as much":      {1000, 300, 300},
		"when they are that many":     {1000, 1, 1},
		"also where nothing is there": {0, 0, 0},
	} {
		k := Growth{}.With(false, c.full, c.touched)
		n := 0
		for ; k.GoesOn(); n++ {
			if k = k.With(true, c.increment, c.touched); k.over > k.full {
				t.Fatalf("%s: %+v", want, k)
			}
		}
		most := map[string]int{"never": 0, "when they take as much": 3, "when they are that many": incrementsMax,
			"also where nothing is there": 0}[want]
		if n != most {
			t.Errorf("%s: %d increments, want %d", want, n, most)
		}
		if k = k.With(false, 700, 50); k != (Growth{full: 700, touched: 50}) {
			t.Errorf("%s: a full one begins anew: %+v", want, k)
		}
	}
}
