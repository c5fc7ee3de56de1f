package config

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Idle is a rule of a command: flags that would change nothing in some setting. They are refused there rather than
// ignored, since who gives one expects something of it.
type Idle struct {
	When  bool // the setting is there
	Flags []string
	Why   string // they change nothing, and what would be right
}

// RefuseIdle fails where a flag was given that changes nothing: on the command line, or by environment or file with
// another value than its default. The error says flag, value, and what would be right. A rule about a flag that the
// command does not have is a defect of the program, and panics.
func RefuseIdle(set *pflag.FlagSet, rules []Idle) error {
	var refused error
	for _, rule := range rules {
		for _, name := range rule.Flags {
			f := set.Lookup(name)
			if f == nil {
				panic("a rule about --" + name + ", which there is not")
			}
			if rule.When && Given(f) && refused == nil {
				refused = fmt.Errorf("--%s %s: %s", name, f.Value, rule.Why)
			}
		}
	}
	return refused
}

// Given tells whether a flag stands on the command line, or has another value than its default from elsewhere.
func Given(f *pflag.Flag) bool { return f.Changed || f.Value.String() != f.DefValue }
