package config

import (
	"strings"
	"testing"
)

// A flag that changes nothing is refused wherever it comes from, unless it has its default without being asked for.
func TestRefuseIdle(t *testing.T) {
	rules := func(when bool) []Idle {
		return []Idle{{false, []string{"listen"}, "never said"},
			{when, []string{"shards", "lr"}, "insecure servers have none: want --insecure=false"}}
	}
	for _, c := range []struct {
		line, environment, want string
		when                    bool
	}{
		{"", "", "", true},
		{"--listen 127.0.0.1:1", "", "", true},
		{"--shards 3", "", "", false},
		{"--shards 3", "", "--shards 3: insecure servers have none: want --insecure=false", true},
		{"--shards 2", "", "--shards 2: insecure", true}, // the default, and asked for
		{"", "7", "--lr 7: insecure", true},
		{"", "20", "", true}, // the default, of all commands that have the flag
	} {
		t.Run(c.line+c.environment, func(t *testing.T) {
			if c.environment != "" {
				t.Setenv("GRADBUS_LR", c.environment)
			}
			var s settings
			flags := flagsOf(&s)
			if err := flags.Parse(strings.Fields(c.line)); err != nil {
				t.Fatal(err)
			}
			if err := Load(flags, nobody(t)); err != nil {
				t.Fatal(err)
			}
			err := RefuseIdle(flags, rules(c.when))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
