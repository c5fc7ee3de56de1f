package schema

import (
	"fmt"
	"math"
	"reflect"
	"strings"
)

// bounds checks a value of one type, named at in a report. The checks are built once from the types, so that a new
// field needs no code; walking types and tags each time would cost ten times as much.
type bounds func(at string, v reflect.Value) error

// telemetryBounds checks a Telemetry.
var telemetryBounds = boundsOf(reflect.TypeFor[Telemetry]())

// boundsOf builds the check of a type; nil if there is nothing to check.
func boundsOf(t reflect.Type) bounds {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return checkInt
	case reflect.Float64:
		return checkReal
	case reflect.String:
		return checkWord
	case reflect.Map:
		return checkCounts
	case reflect.Pointer:
		return boundsOfPointer(t)
	case reflect.Slice:
		return boundsOfSlice(t)
	case reflect.Struct:
		return boundsOfStruct(t)
	}
	return nil
}

func boundsOfPointer(t reflect.Type) bounds {
	to := boundsOf(t.Elem())
	if to == nil {
		return nil
	}
	return func(at string, v reflect.Value) error {
		if v.IsNil() {
			return nil
		}
		return to(at, v.Elem())
	}
}

func boundsOfSlice(t reflect.Type) bounds {
	of, most := boundsOf(t.Elem()), boundOf(t.Elem())
	return func(at string, v reflect.Value) error {
		if n := v.Len(); n > most {
			return fmt.Errorf("%s of %d: want at most %d", at, n, most)
		}
		for i := 0; of != nil && i < v.Len(); i++ {
			if err := of(at, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func boundsOfStruct(t reflect.Type) bounds {
	type field struct {
		index int
		name  string
		check bounds
	}
	var fields []field
	for i := range t.NumField() {
		if check := boundsOf(t.Field(i).Type); check != nil {
			fields = append(fields, field{i, jsonName(t.Field(i)), check})
		}
	}
	return func(_ string, v reflect.Value) error {
		for i := range fields {
			f := &fields[i]
			if err := f.check(f.name, v.Field(f.index)); err != nil {
				return err
			}
		}
		return nil
	}
}

// checkInt and checkReal check that integers are not negative, and that seconds are finite and not negative.
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
