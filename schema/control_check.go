package schema

import (
	"fmt"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"gradbus/lane"
)

// A control message may come from any client that reaches the server, and its contents become an index, a length, a
// path or an address. So every field is checked once, where the message is decoded, by its type and by its tag check:
//
//   - names of jobs and members, by their types, must be valid in subjects; an optional field may be empty
//   - signed numbers and lists have a bound that the tag names; the bound of a list's numbers follows a comma
//   - texts have at most TextBytesMax bytes, unless a tag names another form
//
// Numbers of batches and versions are below batchEnd. Runs, generations and the like may have any value. The receiver
// validates a manifest within a message, except the name of its job. TestEveryFieldIsChecked finds a field without a
// check.

// batchEnd is above every batch and version in a control message: sums of some of them do not overflow.
const batchEnd = 1 << 62

// VersionMax is the highest version that a control message may have.
const VersionMax Version = batchEnd - 1

// numberBounds are the upper bounds of signed numbers and of the lengths of lists, by the name in a tag. Both are at
// least 0.
var numberBounds = map[string]int64{
	"shards":  ShardsMax,
	"shard":   ShardsMax - 1,
	"lanes":   lane.LanesMax, // and so trainers
	"lane":    lane.LanesMax - 1,
	"parts":   2 * ShardsMax, // written and failed ones
	"jobs":    FollowMax,
	"runs":    KeptRunsMax,
	"changes": LRChangesMax,
	"serial":  1 << 53, // exact in JSON
	"bytes":   1 << 60,
	"ms":      1 << 43, // its nanoseconds fit into 64 bits
	"ns":      math.MaxInt64,
}

var resumeForm = regexp.MustCompile(`^[a-z0-9-]{0,127}$`)

// textForms check texts that are not meant for people, by the name in a tag.
var textForms = map[string]func(text string) error{
	"id": func(text string) error {
		if len(text) > ServerIDBytesMax || text != "" && !nameForm.MatchString(text) {
			return fmt.Errorf("want at most %d of a-z, 0-9 and -", ServerIDBytesMax)
		}
		return nil
	},
	"resume": func(text string) error {
		if !resumeForm.MatchString(text) {
			return fmt.Errorf("want at most 127 of a-z, 0-9 and -")
		}
		return nil
	},
	"url": func(text string) error {
		if _, err := url.Parse(text); err != nil || strings.ContainsFunc(text, unprintable) {
			return fmt.Errorf("want a URL")
		}
		return nil
	},
	"failure": func(text string) error {
		if len(text) > FailureBytesMax {
			return fmt.Errorf("want at most %d bytes", FailureBytesMax)
		}
		return nil
	},
}

// checkFields checks every field of a message, and names the first that is wrong.
func checkFields(message reflect.Value, at string) error {
	t := message.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := field{name: at + jsonName(f), check: f.Tag.Get("check"), optional: strings.Contains(options, "omitempty")}
		if err := one.verify(message.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// field is the check of one value.
type field struct {
	name     string // its path, for people
	check    string
	optional bool
}

func (f *field) wrong(value any, want string, args ...any) error {
	text := fmt.Sprint(value)
	return fmt.Errorf("%s %s: want %s", f.name, text[:min(len(text), 80)], fmt.Sprintf(want, args...))
}

func (f *field) verify(v reflect.Value) error {
	switch value := v.Interface().(type) {
	case *Job:
		if value == nil {
			return nil // the message's own check refuses it if it is required
		}
		name := field{name: f.name + ".name"}
		return name.verify(reflect.ValueOf(value.Name))
	case JobName:
		return f.isName(string(value))
	case Member:
		return f.isName(string(value))
	case Batch:
		if value >= batchEnd {
			return f.wrong(value, "less than %d", uint64(batchEnd))
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return f.verify(v.Elem())
	case reflect.Struct:
		return checkFields(v, f.name+".")
	case reflect.Slice:
		return f.verifyList(v)
	case reflect.Int, reflect.Int64, reflect.Uint16:
		n := v.Convert(reflect.TypeFor[int64]()).Int()
		if most := numberBounds[f.check]; n < 0 || n > most {
			return f.wrong(n, "0 to %d", most)
		}
	case reflect.String:
		return f.isText(v.String())
	}
	return nil
}

func (f *field) verifyList(v reflect.Value) error {
	list, each, _ := strings.Cut(f.check, ",")
	if most := numberBounds[list]; int64(v.Len()) > most {
		return f.wrong(v.Len(), "at most %d", most)
	}
	one := field{name: f.name + "[]", check: each}
	for i := range v.Len() {
		if err := one.verify(v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (f *field) isName(name string) error {
	if name == "" && f.optional {
		return nil
	}
	return CheckName(f.name, name)
}

func (f *field) isText(text string) error {
	if len(text) > TextBytesMax {
		return fmt.Errorf("%s: text of %d bytes: want at most %d", f.name, len(text), TextBytesMax)
	}
	if form := textForms[f.check]; form != nil {
		if err := form(text); err != nil {
			return f.wrong(fmt.Sprintf("%q", text), "%s", strings.TrimPrefix(err.Error(), "want "))
		}
	}
	return nil
}
