package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// absent stands for an entry that one side does not have.
const absent = "absent"

// Diff finds the first field, in the manifest's order, in which other differs from j: its JSON path (optimizer.lr,
// settings.batch_size, tables[0].rows), j's value and other's as compact JSON, or "absent".
//
//	if field, have, want, differs := registered.Diff(offered); differs { ... }
func (j *Job) Diff(other *Job) (field, have, want string, differs bool) {
	d := diff("", reflect.ValueOf(*j.normal()), reflect.ValueOf(*other.normal()))
	if d == nil {
		return "", "", "", false
	}
	return d.field, d.have, d.want, true
}

type difference struct{ field, have, want string }

func diff(path string, a, b reflect.Value) *difference {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if d := diff(join(path, jsonName(a.Type().Field(i))), a.Field(i), b.Field(i)); d != nil {
				return d
			}
		}
		return nil
	case reflect.Pointer:
		switch {
		case a.IsNil() && b.IsNil():
			return nil
		case a.IsNil():
			return &difference{path, absent, encoded(b)}
		case b.IsNil():
			return &difference{path, encoded(a), absent}
		}
		return diff(path, a.Elem(), b.Elem())
	case reflect.Slice:
		for i := range max(a.Len(), b.Len()) {
			at := fmt.Sprintf("%s[%d]", path, i)
			switch {
			case i >= a.Len():
				return &difference{at, absent, encoded(b.Index(i))}
			case i >= b.Len():
				return &difference{at, encoded(a.Index(i)), absent}
			}
			if d := diff(at, a.Index(i), b.Index(i)); d != nil {
				return d
			}
		}
		return nil
	case reflect.Map:
		return diffMaps(path, a, b)
	}
	if !a.Equal(b) {
		return &difference{path, encoded(a), encoded(b)}
	}
	return nil
}

// diffMaps compares maps by string, keys ascending.
func diffMaps(path string, a, b reflect.Value) *difference {
	var keys []string
	for _, k := range append(a.MapKeys(), b.MapKeys()...) {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		at, key := join(path, k), reflect.ValueOf(k)
		inA, inB := a.MapIndex(key), b.MapIndex(key)
		switch {
		case !inA.IsValid():
			return &difference{at, absent, encoded(inB)}
		case !inB.IsValid():
			return &difference{at, encoded(inA), absent}
		}
		if d := diff(at, inA, inB); d != nil {
			return d
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func encoded(v reflect.Value) string {
	b, err := json.Marshal(v.Interface())
	if err != nil { // a number that JSON cannot say
		return fmt.Sprint(v.Interface())
	}
	return string(b)
}
