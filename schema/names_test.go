package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// tokenNames is checkNames as one would first write it: by the tokens of encoding/json.
func tokenNames(d *json.Decoder, depth int) error {
	if depth > jsonDepthMax {
		return errors.New("deep")
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return err
			}
			s, _ := name.(string)
			if seen[s] || s != strings.ToLower(s) {
				return fmt.Errorf("name %q", s)
			}
			seen[s] = true
			if err := tokenNames(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Delim('['):
		for d.More() {
			if err := tokenNames(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	}
	return err
}

// agree checks that JSON is taken by both, or by neither; what is no JSON decodeJSON refuses either way.
func agree(t *testing.T, b []byte) {
	t.Helper()
	if !utf8.Valid(b) {
		return
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	want := tokenNames(d, 0) == nil
	got := checkNames(b) == nil // which must not panic, whatever it is given
	if json.Valid(b) && got != want {
		t.Errorf("%q: %v, by tokens %v", b, got, want)
	}
}

func TestNames(t *testing.T) {
	nested := func(n int, within string) string {
		return strings.Repeat(`{"a":`, n/2) + strings.Repeat("[", n-n/2) + within + strings.Repeat("]", n-n/2) +
			strings.Repeat("}", n/2)
	}
	var many strings.Builder
	for i := range 3 * fewNames {
		fmt.Fprintf(&many, `"n%d":[{"n%d":1}],`, i, i)
	}
	for text, want := range map[string]string{
		`{"a":1,"b":{"a":"a","b":["a","a"]},"c":[{"a":1},{"a":1}]}`: "",
		`{"a":1,"a":2}`:                   `"a" twice`,
		`{"a":{"b":1},"b":1,"a":2}`:       `"a" twice`,
		`{"a":1,"\u0061":2}`:              `"a" twice`,
		`{"é":1,"\u00e9":2}`:              `"é" twice`,
		`{"A":1}`:                         "lower case",
		`{"É":1}`:                         "lower case",
		`{"\u0041":1}`:                    "lower case",
		`{"a":"A","b":["B"]}`:             "",
		`{"\"":1,"\\":2,"\\\"":3}`:        "",
		`{"\\":1,"\\":2}`:                 "twice",
		`{"":1,"":2}`:                     "twice",
		` "A" `:                           "",
		`12`:                              "",
		nested(jsonDepthMax, "1"):         "",
		nested(jsonDepthMax+1, ""):        "",
		nested(jsonDepthMax+1, "1"):       "deeper",
		nested(jsonDepthMax+1, `"s"`):     "deeper",
		nested(1000, "1"):                 "deeper",
		"{" + many.String() + `"x":1}`:    "",
		"{" + many.String() + `"n0":1}`:   `"n0" twice`,
		"{" + many.String() + `"n100":1}`: `"n100" twice`,
		``:                                "EOF",
		`  `:                              "EOF",
		`{"a":1`:                          "EOF",
		`{"a`:                             "EOF",
		`{"a\"`:                           "EOF",
		`["a"`:                            "EOF",
	} {
		err := checkNames([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
		if errors.Is(err, io.EOF) != (want == "EOF") {
			t.Errorf("%.60q: %v", text, err)
		}
		agree(t, []byte(text))
	}
}

// Random texts of the characters that matter, against the tokens of encoding/json.
func TestNamesAgreeWithTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"{", "}", "[", "]", `"a":`, `"b":`, `"B":`, `"a"`, `"\""`, `"\\"`, `"\u0061":`, ",", ":", "1",
		"null", `"`, `\`, " ", "é", "{}", "[]"}
	valid := 0
	for range 200_000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		agree(t, []byte(b.String()))
		if json.Valid([]byte(b.String())) {
			valid++
		}
	}
	// Valid ones, which chance alone seldom makes.
	var value func(depth int) string
	value = func(depth int) string {
		var all []string
		switch n := r.IntN(4); {
		case depth > jsonDepthMax+1 || n == 0:
			return []string{"1", `"A"`, "true", `"}]"`}[r.IntN(4)]
		case n == 1:
			for range r.IntN(3) {
				all = append(all, value(depth+1))
			}
			return "[" + strings.Join(all, ",") + "]"
		}
		for range r.IntN(4) {
			all = append(all, []string{`"a"`, `"b"`, `"c"`, `"d"`, `"\u0065"`, `"f\""`, `"\\"`, `"é"`, `"e"`}[r.IntN(9)]+":"+
				value(depth+1))
		}
		return "{" + strings.Join(all, ", ") + "}"
	}
	for range 20_000 {
		agree(t, []byte(value(0)))
	}
	if valid < 1000 {
		t.Errorf("%d of the random texts were JSON", valid)
	}
}

func FuzzNames(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":"c\\"}]}`, `{"a":1,"a":2}`, `{"\u0061":1,"a":2}`,
		`[[[[[[[[[1]]]]]]]]]`, `{"a`} {
		f.Add([]byte(text))
	}
	f.Fuzz(agree)
}
