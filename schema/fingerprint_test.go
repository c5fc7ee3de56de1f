package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fingerprintFile holds the fingerprint of what this package reads, which this test writes with -rewrite.
const fingerprintFile = "fingerprint.go"

// protocolText is what two programs must have alike to speak: not the source's text, so that comments, and fields of
// JSON in another order, change nothing.
func protocolText(t *testing.T) string {
	t.Helper()
	fbs, err := os.ReadFile("gradbus.fbs")
	check(t, err)
	var b strings.Builder
	fmt.Fprintln(&b, protocolOfFrames(string(fbs)))
	for k := Kind(1); k <= kindMax; k++ {
		fmt.Fprintf(&b, "kind %d %v %v\n", k, k, rules[k])
	}
	for r := range Reason(ReasonCount) {
		fmt.Fprintf(&b, "reason %v\n", r)
	}
	for d := range dtypeMax + 1 {
		fmt.Fprintf(&b, "dtype %d %v\n", d, d)
	}
	fmt.Fprintf(&b, "version %d, control %s, refusal %s\n", WireVersion, jsonForm(reflect.TypeFor[Control](), nil),
		jsonForm(reflect.TypeFor[Refusal](), nil))
	return b.String()
}

// protocolOfFrames is the definition of frames without comments and layout. The order of its fields is the wire's.
func protocolOfFrames(fbs string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`//.*`).ReplaceAllString(fbs, "")), " ")
}

// jsonForm is a type as JSON has it: names and types of fields, in the order of the names. within are the structs that
// it stands in.
func jsonForm(t reflect.Type, within []reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonForm(t.Elem(), within)
	case reflect.Slice, reflect.Array:
		return "[]" + jsonForm(t.Elem(), within)
	case reflect.Map:
		return "map " + jsonForm(t.Key(), within) + " " + jsonForm(t.Elem(), within)
	case reflect.Struct:
		if at := slices.Index(within, t); at >= 0 {
			return fmt.Sprintf("struct %d up", len(within)-at)
		}
	default:
		return t.Kind().String()
	}
	var fields []string
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
			fields = append(fields, fmt.Sprintf("%s %s", f.Tag.Get("json"), jsonForm(f.Type, append(within, t))))
		}
	}
	slices.Sort(fields)
	return "{" + strings.Join(fields, "; ") + "}"
}

func TestFingerprint(t *testing.T) {
	sum := sha256.Sum256([]byte(protocolText(t)))
	want := hex.EncodeToString(sum[:8])
	if *rewrite && want != Fingerprint {
		text, err := os.ReadFile(fingerprintFile)
		check(t, err)
		check(t, os.WriteFile(fingerprintFile, []byte(strings.Replace(string(text), Fingerprint, want, 1)), 0o644))
		return
	}
	if want != Fingerprint {
		t.Errorf("%s has %s, and what travels now gives %s; where the change is meant, programs before it and after it do "+
			"not speak to each other: write it again by go test ./schema -run TestFingerprint -rewrite", fingerprintFile,
			Fingerprint, want)
	}
}

// The fingerprint sees names and types, and not how the source is laid out.
func TestFingerprintSees(t *testing.T) {
	type inner struct {
		A int `json:"a"`
	}
	type form struct {
		In   []inner `json:"in"`
		Name string  `json:"name,omitempty"`
	}
	type sameInAnotherOrder struct {
		Name JobName  `json:"name,omitempty"`
		In   []*inner `json:"in"` // with a comment
	}
	type otherName struct {
		In   []inner `json:"ins"`
		Name string  `json:"name,omitempty"`
	}
	type otherType struct {
		In   []inner `json:"in"`
		Name int     `json:"name,omitempty"`
	}
	type otherWithin struct {
		In []struct {
			A uint `json:"a"`
		} `json:"in"`
		Name string `json:"name,omitempty"`
	}
	of := func(v any) string { return jsonForm(reflect.TypeOf(v), nil) }
	if of(form{}) != of(sameInAnotherOrder{}) {
		t.Errorf("%s and %s differ", of(form{}), of(sameInAnotherOrder{}))
	}
	for _, other := range []any{otherName{}, otherType{}, otherWithin{}} {
		if of(form{}) == of(other) {
			t.Errorf("%T is not told apart: %s", other, of(other))
		}
	}
	const fbs = "table T { // what\n  a:uint; }"
	if protocolOfFrames(fbs) != protocolOfFrames("table T {\n a:uint; // which\n}") ||
		protocolOfFrames(fbs) == protocolOfFrames("table T { a:ulong; }") {
		t.Error("the definition of frames is not told apart by its fields alone")
	}
}

// A message of a program that reads another protocol is refused with both versions, in whatever form the rest is.
func TestProgramsThatDoNotSpeak(t *testing.T) {
	frame, err := EncodeControl(Head{}, Control{Join: &Join{Job: testJob(), Host: "box:1"}})
	check(t, err)
	v, err := Verify(frame, Limits{})
	check(t, err)
	if _, err := DecodeControl(&v); err != nil {
		t.Errorf("a join of this program: %v", err)
	}
	this := ThisProgram().String()
	for _, c := range []struct{ name, body, want string }{
		{"an older one", `{"join":{"job":null,"later":1}}`, this + " does not speak with " + OlderProgram +
			", which sent join: update that one"},
		{"a newer one", `{"speaks":{"version":"0.9.1","fingerprint":"ab","since":{"a":[1]}},"join":{"later":1}}`,
			this + " does not speak with gradbus 0.9.1 (protocol ab), which sent join: update the older one"},
		{"another build", `{"speaks":{"version":"` + ThisProgram().Version + `","fingerprint":"ab"},"drain":{}}`,
			"built from different sources, update the older one"},
		{"a message that is no greeting", `{"speaks":{"version":"0.9.1","fingerprint":"ab"},"later":{}}`, "gradbus 0.9.1"},
		{"what is no program's", `{"speaks":17,"join":{}}`, "gradbus  (protocol )"},
	} {
		v := bodyView(t, KindControl, c.body)
		if _, err := DecodeControl(v); ReasonOf(err) != ReasonUnknownVersion || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want unknown_version saying %q", c.name, err, c.want)
		}
	}
	for _, body := range []string{`{"start":{}}`, `{"refused":{"reason":"unknown_version","text":"update"}}`} {
		if _, err := DecodeControl(bodyView(t, KindControl, body)); err != nil {
			t.Errorf("%s, which older programs send and read: %v", body, err)
		}
	}
}
