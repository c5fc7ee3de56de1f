package schema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// plan is how values of one type are checked, written and read in a pulse. Plans are made once from the types, since what encoding/json and
// a walk over the types take for every pulse again is most of what it costs to be watched.
//
// What is written is encoding/json's to the byte. What is read is only what is written like that: names in the order of their fields, no white
// space, plain ASCII. Of anything else read says no, and encoding/json reads it, or says what is wrong with it.
type plan struct {
	check func(at string, v reflect.Value) error // by the name of the field; nil where there is nothing to check
	write func(b []byte, v reflect.Value) ([]byte, error)
	read  func(s *scanner, v reflect.Value) bool
}

// pulsePlan is that of Pulse.
var pulsePlan = planOf(reflect.TypeFor[Pulse]())

// planOf makes a plan. A type that no pulse has may be written and read by encoding/json alone, and is checked by nobody.
func planOf(t reflect.Type) plan {
	if t == reflect.TypeFor[Real]() {
		return plan{checkReal, func(b []byte, v reflect.Value) ([]byte, error) { return appendReal(b, v.Float()), nil }, readReal}
	}
	if marshals(t) {
		return leftToJSON()
	}
	switch t.Kind() {
	case reflect.Bool:
		return plan{nil, func(b []byte, v reflect.Value) ([]byte, error) { return strconv.AppendBool(b, v.Bool()), nil }, readBool}
	case reflect.Int, reflect.Int64:
		return plan{checkInt, func(b []byte, v reflect.Value) ([]byte, error) { return strconv.AppendInt(b, v.Int(), 10), nil }, readInt}
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		return plan{nil, func(b []byte, v reflect.Value) ([]byte, error) { return strconv.AppendUint(b, v.Uint(), 10), nil }, readUint}
	case reflect.String:
		return plan{checkWord, writeString, readString}
	case reflect.Pointer:
		return planOfPointer(t)
	case reflect.Slice:
		return planOfSlice(t)
	case reflect.Map:
		if t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.Uint64 {
			return plan{checkCounts, writeCounts, readCounts}
		}
	case reflect.Struct:
		return planOfStruct(t)
	}
	return leftToJSON()
}

// marshals reports whether a type has JSON of its own.
func marshals(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// leftToJSON leaves a value to encoding/json.
func leftToJSON() plan {
	return plan{write: writeForeign, read: func(*scanner, reflect.Value) bool { return false }}
}

func writeForeign(b []byte, v reflect.Value) ([]byte, error) {
	text, err := json.Marshal(v.Interface())
	return append(b, text...), err
}

func planOfPointer(t reflect.Type) plan {
	to := planOf(t.Elem())
	p := plan{
		write: func(b []byte, v reflect.Value) ([]byte, error) {
			if v.IsNil() {
				return append(b, "null"...), nil
			}
			return to.write(b, v.Elem())
		},
		read: func(s *scanner, v reflect.Value) bool {
			if s.take("null") {
				return true
			}
			v.Set(reflect.New(t.Elem()))
			return to.read(s, v.Elem())
		},
	}
	if to.check != nil {
		p.check = func(at string, v reflect.Value) error {
			if v.IsNil() {
				return nil
			}
			return to.check(at, v.Elem())
		}
	}
	return p
}

func planOfSlice(t reflect.Type) plan {
	of, most := planOf(t.Elem()), boundOf(t.Elem())
	if t.Elem().Kind() == reflect.Uint8 {
		return leftToJSON() // which JSON has as text
	}
	return plan{
		check: func(at string, v reflect.Value) error {
			if n := v.Len(); n > most {
				return fmt.Errorf("%s of %d: want at most %d", at, n, most)
			}
			for i := 0; of.check != nil && i < v.Len(); i++ {
				if err := of.check(at, v.Index(i)); err != nil {
					return err
				}
			}
			return nil
		},
		write: func(b []byte, v reflect.Value) (_ []byte, err error) {
			if v.IsNil() {
				return append(b, "null"...), nil
			}
			b = append(b, '[')
			for i := range v.Len() {
				if i > 0 {
					b = append(b, ',')
				}
				if b, err = of.write(b, v.Index(i)); err != nil {
					return b, err
				}
			}
			return append(b, ']'), nil
		},
		read: func(s *scanner, v reflect.Value) bool {
			if s.take("null") {
				return true
			}
			if !s.take("[") {
				return false
			}
			if s.take("]") {
				v.Set(reflect.MakeSlice(t, 0, 0))
				return true
			}
			for n := 0; ; n++ {
				v.Grow(1)
				v.SetLen(n + 1)
				v.Index(n).SetZero()
				if !of.read(s, v.Index(n)) {
					return false
				}
				if s.take("]") {
					return true
				}
				if !s.take(",") {
					return false
				}
			}
		},
	}
}

// planField is a field of a struct.
type planField struct {
	plan
	index     int
	name      string
	head      string // its name as it is written: quotes, and a colon
	omitEmpty bool
	omitZero  bool
}

func (f *planField) omitted(v reflect.Value) bool {
	switch {
	case f.omitEmpty && (v.Kind() == reflect.Slice || v.Kind() == reflect.Map):
		return v.Len() == 0
	case f.omitEmpty && v.Kind() == reflect.Struct:
		return false // as encoding/json has it
	}
	return (f.omitEmpty || f.omitZero) && v.IsZero()
}

func planOfStruct(t reflect.Type) plan {
	var fields []planField
	checked := false
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous || name == "" || name == "-" {
			return leftToJSON() // whatever encoding/json makes of it
		}
		to := planField{plan: planOf(f.Type), index: i, name: name, head: `"` + name + `":`}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "omitempty":
				to.omitEmpty = true
			case "omitzero":
				to.omitZero = true
			case "string":
				to.plan = quoted(to.plan)
			}
		}
		checked = checked || to.check != nil
		fields = append(fields, to)
	}
	p := plan{
		write: func(b []byte, v reflect.Value) ([]byte, error) { return writeFields(b, v, fields) },
		read:  func(s *scanner, v reflect.Value) bool { return readFields(s, v, fields) },
	}
	if checked {
		p.check = func(_ string, v reflect.Value) error {
			for i := range fields {
				if f := &fields[i]; f.check != nil {
					if err := f.check(f.name, v.Field(f.index)); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	return p
}

// quoted is a number as text.
func quoted(of plan) plan {
	return plan{
		check: of.check,
		write: func(b []byte, v reflect.Value) ([]byte, error) {
			b, err := of.write(append(b, '"'), v)
			return append(b, '"'), err
		},
		read: func(s *scanner, v reflect.Value) bool { return s.take(`"`) && of.read(s, v) && s.take(`"`) },
	}
}

func writeFields(b []byte, v reflect.Value, fields []planField) (_ []byte, err error) {
	b = append(b, '{')
	first := true
	for i := range fields {
		f := &fields[i]
		value := v.Field(f.index)
		if f.omitted(value) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		if b, err = f.write(append(b, f.head...), value); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendReal writes a number as Real.MarshalJSON does.
func appendReal(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"+Inf"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Inf"`...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

func writeString(b []byte, v reflect.Value) ([]byte, error) { return appendString(b, v.String()) }

func appendString(b []byte, text string) ([]byte, error) {
	for i := range len(text) {
		if c := text[i]; !plain(c) || c == '<' || c == '>' || c == '&' {
			quoted, err := json.Marshal(text)
			return append(b, quoted...), err
		}
	}
	b = append(append(b, '"'), text...)
	return append(b, '"'), nil
}

// plain reports whether a byte stands for itself within a text.
func plain(c byte) bool { return c >= ' ' && c <= '~' && c != '"' && c != '\\' }

func writeCounts(b []byte, v reflect.Value) (_ []byte, err error) {
	if v.IsNil() {
		return append(b, "null"...), nil
	}
	keys := make([]string, 0, v.Len())
	for _, key := range v.MapKeys() {
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendString(b, key); err != nil {
			return b, err
		}
		b = strconv.AppendUint(append(b, ':'), v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())).Uint(), 10)
	}
	return append(b, '}'), nil
}

// checkInt and checkReal: no whole number is below zero, and seconds are finite and not below zero either.
func checkInt(at string, v reflect.Value) error {
	if v.Int() < 0 {
		return fmt.Errorf("%s %d: want at least 0", at, v.Int())
	}
	return nil
}

func checkReal(at string, v reflect.Value) error {
	if f := v.Float(); strings.HasSuffix(at, "_seconds") && !(f >= 0 && f <= math.MaxFloat64) {
		return fmt.Errorf("%s %v: want a time of at least 0", at, f)
	}
	return nil
}
