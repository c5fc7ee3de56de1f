package schema

import "testing"

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"job a: läuft, 3 µs, 日本 ✓":   "job a: läuft, 3 µs, 日本 ✓",
		"a\nb\r\nc\td":               "a b  c d",
		"\x1b[2J\x1b]0;title\a":      "?[2J?]0;title?",
		"\u009b31m\x9b31m\x00\x7f\b": "?31m\ufffd31m???",
		"a\u202etxt.\u200bexe\u2028": "a?txt.?exe?",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
