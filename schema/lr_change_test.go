package schema

import (
	"strings"
	"testing"
)

func TestCheckScale(t *testing.T) {
	for _, c := range []struct {
		ask  ScaleLR
		want string // empty: it is taken
	}{
		{ScaleLR{Scale: 0}, ""}, {ScaleLR{Scale: 1e-6}, ""}, {ScaleLR{Scale: 1e6}, ""}, {ScaleLR{Scale: 0.5}, ""},
		{ScaleLR{Scale: 1e30, Force: true}, ""}, {ScaleLR{Scale: 1e-30, Force: true}, ""},
		{ScaleLR{Scale: 1e30},
			"would be 1e+30 times the manifest's, and are 0.25 times these now: want 0, or 1e-06 to 1e+06"},
		{ScaleLR{Scale: 9e-7}, "--force"},
	} {
		err := c.ask.CheckScale(0.25)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.ask, err, c.want)
		}
	}
}
