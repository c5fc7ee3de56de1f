package schema

import (
	"strings"
	"testing"
)

func TestCheckScale(t *testing.T) {
	for _, c := range []struct {
		scale float32
		want  string // empty: it is taken
	}{
		{0, ""}, {1e-6, ""}, {1e6, ""}, {0.5, ""},
		{1e30, "would be 1e+30 times the manifest's, and are 0.25 times these now: want 0, or 1e-06 to 1e+06"},
		{9e-7, "--force"},
	} {
		err := CheckScale(c.scale, 0.25)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.scale, err, c.want)
		}
	}
}
