package harness

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestFlagValues(t *testing.T) {
	var s seconds
	for text, want := range map[string]time.Duration{"30": 30 * time.Second, "0.5": 500 * time.Millisecond,
		"2m": 2 * time.Minute} {
		if err := s.Set(text); err != nil || time.Duration(s) != want {
			t.Errorf("%s is %v, %v: want %v", text, time.Duration(s), err, want)
		}
	}
	if s.Set("soon") == nil || s.Set("1e40") == nil {
		t.Error("no error for a time that is none")
	}
	var v *bool
	m := maybe{&v}
	if m.String() != "" || m.Set("false") != nil || v == nil || *v || m.String() != "false" || m.Set("perhaps") == nil {
		t.Errorf("sparse is %v", v)
	}
}

// A declaration gives the flag, its default and what it accepts, of embedded settings too.
func TestSettings(t *testing.T) {
	type Part struct {
		Every time.Duration `flag:"every" default:"30" range:"1s 1h0m0s" unit:"s" help:"SECONDS: between two"`
	}
	type settings struct {
		Count int    `flag:"count" default:"3" range:"1 8" help:"N: how many"`
		Mode  string `flag:"mode" default:"async" words:"async sync" help:"MODE: which"`
		Part
	}
	var s settings
	SetDefaults(&s)
	if want := (settings{3, "async", Part{30 * time.Second}}); s != want || CheckSettings(&s) != nil {
		t.Errorf("defaults %+v, %v: want %+v", s, CheckSettings(&s), want)
	}
	for line, want := range map[string]string{"--count=0": "count 0: want 1 to 8", "--every=2h": "every 2h0m0s: want 1s to 1h0m0s",
		"--mode=asinc": `mode "asinc": want async or sync (did you mean --mode async?)`} {
		of, set := s, pflag.NewFlagSet("", pflag.ContinueOnError)
		AddFlags(set, &of)
		if err := set.Parse([]string{line}); err != nil {
			t.Fatal(err)
		}
		if err := CheckSettings(&of); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
		if !strings.Contains(set.FlagUsages(), "--count N") {
			t.Errorf("no placeholder in\n%s", set.FlagUsages())
		}
	}
}
