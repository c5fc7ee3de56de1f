package schema

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// badValues are what a field must not hold; none where it may hold anything.
func badValues(f reflect.StructField, t reflect.Type, check string) (all []any) {
	list, each, _ := strings.Cut(check, ",")
	switch t {
	case reflect.TypeFor[JobName](), reflect.TypeFor[Member]():
		return []any{"../../x", "A", strings.Repeat("x", 64)}
	case reflect.TypeFor[Batch]():
		return []any{uint64(batchEnd)}
	case reflect.TypeFor[*Job]():
		return []any{map[string]any{"name": "../../x"}}
	}
	switch t.Kind() {
	case reflect.String:
		all = []any{strings.Repeat("x", TextBytesMax+1)}
		if check == "" && slices.ContainsFunc([]string{"id", "server", "job", "name", "path", "resume", "url", "to"},
			func(word string) bool { return word == jsonName(f) }) {
			return []any{"checked by no tag"}
		}
		if check == "id" || check == "resume" {
			all = append(all, "../x", "x/y", "A", "x\x00")
		}
	case reflect.Int, reflect.Int64:
		if all = []any{int64(-1)}; check != "ns" {
			all = append(all, int64(math.MaxInt64))
		}
	case reflect.Uint16:
		all = []any{math.MaxUint16}
	case reflect.Slice:
		all = []any{slices.Repeat([]any{nil}, int(numberBounds[list])+1)}
		for _, bad := range badValues(f, t.Elem(), each) {
			all = append(all, []any{bad})
		}
	}
	return all
}

// eachField calls do with every field of a type, and of what it is made of; set puts a value there into a message.
func eachField(t reflect.Type, set func(any) any, do func(path string, f reflect.StructField, set func(any) any),
	path string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := jsonName(f)
		here := func(v any) any {
			whole := map[string]any{}
			for other := range t.NumField() { // names that must be there are
				if o := t.Field(other).Type; o == reflect.TypeFor[JobName]() || o == reflect.TypeFor[Member]() {
					whole[jsonName(t.Field(other))] = "x"
				}
			}
			whole[name] = v
			return set(whole)
		}
		do(path+name, f, here)
		inner, within := f.Type, here
		if inner.Kind() == reflect.Slice {
			inner, within = inner.Elem(), func(v any) any { return here([]any{v}) }
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[Job]() {
			eachField(inner, within, do, path+name+".")
		}
	}
}

// Every field of every control message, at any depth, is refused where it holds what it must not, by name. A new field
// whose type or tag says nothing of what it may hold fails here.
func TestEveryFieldIsChecked(t *testing.T) {
	fields := 0
	eachField(reflect.TypeFor[Control](), func(v any) any { return v }, func(path string, f reflect.StructField,
		set func(any) any) {
		for _, bad := range badValues(f, f.Type, f.Tag.Get("check")) {
			fields++
			body, err := json.Marshal(set(bad))
			if err != nil {
				t.Fatal(err)
			}
			var c Control
			if err := json.Unmarshal(body, &c); err != nil {
				continue // the type itself refuses it
			}
			if err := checkFields(reflect.ValueOf(c), ""); err == nil ||
				!strings.HasPrefix(strings.ReplaceAll(err.Error(), "[]", ""), path) {
				t.Errorf("%s %.60v: %v, want that it is refused by this name", path, bad, err)
			}
		}
		for _, tag := range strings.Split(f.Tag.Get("check"), ",") {
			_, number := numberBounds[tag]
			if _, text := textForms[tag]; tag != "" && !number && !text {
				t.Errorf("%s: no check %q", path, tag)
			}
		}
	}, "")
	if fields < 200 {
		t.Errorf("%d values of fields were tried", fields)
	}
}

// What is checked is what members and ps say today: the longest names, and every form of them.
func TestNamesThatAreLegal(t *testing.T) {
	long := strings.Repeat("z", 63)
	for _, name := range []string{"t0", "s4095", "coordinator", "all", "j-0123456789ab", "p-" + strings.Repeat("z", 61),
		long, "a", "0", "-"} {
		c := Control{Ended: &Ended{Member: Member(name)}}
		over := Control{Follow: &Follow{Over: []OverRun{{Job: JobName(name), Run: 1}}}}
		for _, one := range []Control{c, over} {
			if err := one.check(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
