package fabric

import (
	"fmt"
	"testing"
	"time"
)

// Pauses between attempts to connect double up to a bound, and of many connections that were lost at once they lie all
// over the later half of it: attempts that follow each other, lines of a connection and connections differ.
func TestReconnectsAreSpread(t *testing.T) {
	const members, parts = 100, 10
	for attempts, most := range map[int]time.Duration{1: 50 * time.Millisecond, 2: 100 * time.Millisecond,
		5: 800 * time.Millisecond, 6: time.Second, 1000: time.Second} {
		var in [parts]int
		pauses := map[time.Duration]bool{}
		for i := range members {
			for line := range lineCount {
				name := fmt.Sprintf("job/t%d", i)
				p := line.reconnectAfter(name, attempts)
				if p < most/2 || p > most || p != line.reconnectAfter(name, attempts) {
					t.Fatalf("attempt %d of %s: %v, want the same between %v and %v each time", attempts, name, p, most/2, most)
				}
				pauses[p] = true
				in[min(int((p-most/2)*parts/(most/2)), parts-1)]++
			}
		}
		for i, n := range in {
			if n < members*int(lineCount)/parts/3 {
				t.Errorf("attempt %d: %d of %d in part %d of %d", attempts, n, members*lineCount, i, parts)
			}
		}
		if len(pauses) < members*int(lineCount)*9/10 {
			t.Errorf("attempt %d: %d pauses of %d are different", attempts, len(pauses), members*lineCount)
		}
	}
}
