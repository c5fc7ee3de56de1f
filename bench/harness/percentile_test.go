package harness

import (
	"fmt"
	"testing"
)

func TestPercentile(t *testing.T) {
	for _, c := range []struct{ p, want float64 }{{0, 1}, {50, 2.5}, {75, 3.25}, {100, 4}} {
		if got := Percentile([]float64{4, 1, 3, 2}, c.p); got != c.want {
			t.Errorf("p%v is %v, want %v", c.p, got, c.want)
		}
	}
	if fmt.Sprint(Percentile([]float64{7}, 95)) != "7" {
		t.Error("one value is every percentile")
	}
}
