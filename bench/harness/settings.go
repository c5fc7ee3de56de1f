package harness

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"gradbus/internal/config"
	"gradbus/internal/connect"
)

// A setting of a benchmark is declared once, by the tag of a field of its configuration:
//
//	Trainers int           `flag:"trainers" default:"3" range:"1 256" help:"N: trainers"`
//	Mode     string        `flag:"mode" default:"async" words:"async sync" help:"MODE: when gradients are applied"`
//	Timeout  time.Duration `flag:"rpc-timeout" default:"30s" range:"1s 1h" unit:"s" help:"SECONDS: longest silence"`
//
// The tag gives the flag, its default, what it accepts, its help, and whether it is left out of the help (hidden). A
// duration with a unit accepts a number of seconds as well. A field of another struct adds the settings of that struct.

// eachSetting calls visit with every setting of a configuration, in the order of the fields.
func eachSetting(configuration any, visit func(name string, to any, tag reflect.StructTag)) {
	v := reflect.ValueOf(configuration).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch name := field.Tag.Get("flag"); {
		case name != "":
			visit(name, v.Field(i).Addr().Interface(), field.Tag)
		case field.Anonymous:
			eachSetting(v.Field(i).Addr().Interface(), visit)
		}
	}
}

// AddFlags adds the flags of a configuration to a command, with the values of the fields as defaults. The argument is a
// pointer to a struct.
func AddFlags(set *pflag.FlagSet, configuration any) {
	set.SortFlags = false
	eachSetting(configuration, func(name string, to any, tag reflect.StructTag) {
		addFlag(set, name, to, tag)
		if tag.Get("hidden") != "" {
			_ = set.MarkHidden(name) // it exists
		}
	})
}

func addFlag(set *pflag.FlagSet, name string, to any, tag reflect.StructTag) {
	help := tag.Get("help")
	if what, rest, more := strings.Cut(help, ": "); more && what == strings.ToUpper(what) {
		help = "`" + what + "`: " + rest
	}
	switch to := to.(type) {
	case *int:
		set.IntVar(to, name, *to, help)
	case *uint64:
		set.Uint64Var(to, name, *to, help)
	case *float64:
		set.Float64Var(to, name, *to, help)
	case *bool:
		set.BoolVar(to, name, *to, help)
	case *string:
		set.StringVar(to, name, *to, help)
	case *[]string:
		set.StringSliceVar(to, name, *to, help)
	case *time.Duration:
		if tag.Get("unit") != "" {
			set.Var((*seconds)(to), name, help)
			return
		}
		set.DurationVar(to, name, *to, help)
	case **bool:
		set.VarPF(maybe{to}, name, "", help).NoOptDefVal = "true"
	case *connect.Flags:
		to.AddServer(set, to.Server)
		set.Lookup(name).Usage = help
		to.AddData(set)
	default:
		panic(fmt.Sprintf("setting %s: no flag has the type %T", name, to))
	}
}

// SetDefaults gives every setting of a configuration its default. The argument is a pointer to a struct.
func SetDefaults(configuration any) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(set, configuration)
	eachSetting(configuration, func(name string, _ any, tag reflect.StructTag) {
		if text := tag.Get("default"); text != "" {
			if err := set.Set(name, text); err != nil {
				panic(err) // a constant
			}
		}
	})
}

// CheckSettings returns an error for the first setting whose value its declaration does not accept: the flag, the value
// and what would be right. The argument is a pointer to a struct.
func CheckSettings(configuration any) (wrong error) {
	eachSetting(configuration, func(name string, to any, tag reflect.StructTag) {
		if wrong != nil {
			return
		}
		value := reflect.ValueOf(to).Elem().Interface()
		if words := strings.Fields(tag.Get("words")); len(words) > 0 {
			wrong = oneOf(name, value.(string), words)
		}
		low, high, ranged := strings.Cut(tag.Get("range"), " ")
		if !ranged || wrong != nil {
			return
		}
		if x := number(fmt.Sprint(value)); !(x >= number(low) && x <= number(high)) {
			wrong = fmt.Errorf("%s %v: want %s to %s", name, value, low, high)
		}
	})
	return wrong
}

// number returns the value of a number, or of a duration in seconds.
func number(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return d.Seconds()
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err) // a constant, or what fmt wrote of a number
	}
	return x
}

// oneOf returns an error that names the flag, its value and what would be right, unless the value is one of the words.
func oneOf(flag, value string, words []string) error {
	if slices.Contains(words, value) {
		return nil
	}
	hint := ""
	if meant := config.Meant(value, words); meant != "" {
		hint = fmt.Sprintf(" (did you mean --%s %s?)", flag, meant)
	}
	return fmt.Errorf("%s %q: want %s%s", flag, value, strings.Join(words, " or "), hint)
}

// seconds is a flag that accepts a time with its unit, or a number of seconds.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }
func (s *seconds) Type() string   { return "seconds" }
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if v, e := strconv.ParseFloat(text, 64); e == nil && math.Abs(v) < 1e9 {
		d, err = time.Duration(v*float64(time.Second)), nil
	}
	if err != nil {
		return errors.New("want seconds, as in 30, or a time with its unit, as in 500ms")
	}
	*s = seconds(d)
	return nil
}

// maybe is a flag that is true or false, or was not given.
type maybe struct{ to **bool }

func (m maybe) String() string {
	if m.to == nil || *m.to == nil {
		return ""
	}
	return strconv.FormatBool(**m.to)
}
func (m maybe) Type() string { return "bool" }
func (m maybe) Set(text string) error {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("want true or false")
	}
	*m.to = &v
	return nil
}
