package corpus

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func tokens(name, description string) []string {
	var all []string
	Tokens(name, description, func(token []byte) { all = append(all, string(token)) })
	return all
}

func TestTokens(t *testing.T) {
	for _, c := range []struct {
		name, description string
		want              string
	}{
		{"0ad", "Real-time strategy game", "d:real d:time d:strategy d:game n:0ad"},
		{"g++-12", "GNU C++ compiler", "d:gnu d:c++ d:compiler n:g n:12"},
		{"libfoo2.0-dev", "C# and F# (.NET 4.0), for X11", "d:c# d:and d:f# d:.net d:4.0 d:for d:x11 n:libfoo2 n:0 n:dev"},
		{"a", "", "n:a"},
		{"", "words only", "d:words d:only"},
		{"--.+", "  --  ", ""},
		{"twice-twice", "twice twice", "d:twice d:twice n:twice n:twice"},
		{"x", "naïve Ünïcode \u212a \xff", "d:na d:ve d:n d:code n:x"}, // \u212a, Kelvin's sign, is no k
		{"x_y~z", "under_score", "d:under d:score n:x_y~z"},
	} {
		if got := strings.Join(tokens(c.name, c.description), " "); got != c.want {
			t.Errorf("%q %q:\ngot  %s\nwant %s", c.name, c.description, got, c.want)
		}
	}
}

// The same tokens by regular expressions.
func TestTokensAgainstRegexp(t *testing.T) {
	words, parts := regexp.MustCompile(`[a-z0-9+#.]+`), regexp.MustCompile(`[-.+]`)
	const alphabet = "abzAZ019+#.-_ ,:/é\t"
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		text := func() string {
			runes := []rune(alphabet)
			var b strings.Builder
			for range r.IntN(30) {
				b.WriteRune(runes[r.IntN(len(runes))])
			}
			return b.String()
		}
		name, description := text(), text()
		var want []string
		for _, w := range words.FindAllString(strings.ToLower(description), -1) {
			want = append(want, "d:"+w)
		}
		for _, p := range parts.Split(name, -1) {
			if p != "" {
				want = append(want, "n:"+p)
			}
		}
		if got := tokens(name, description); !slices.Equal(got, want) {
			t.Fatalf("%q %q:\ngot  %q\nwant %q", name, description, got, want)
		}
	}
}

// Keys as Python's zlib.crc32(token) % 2**18 gives them.
func TestKeys(t *testing.T) {
	for token, want := range map[string]uint64{"d:game": 107096, "d:real": 154241, "d:time": 134033, "n:0ad": 15555} {
		if got := Key([]byte(token)); got != want {
			t.Errorf("key of %s = %d, want %d", token, got, want)
		}
	}
	want := []uint64{154241, 134033, 72884, 107096, 27659, 191771, 232749, 15555}
	if got := AppendKeys([]uint64{}, "0ad", "Real-time strategy game of ancient warfare"); !slices.Equal(got, want) {
		t.Errorf("keys of 0ad = %v, want %v", got, want)
	}
}

// As Python's zlib.crc32(name) % 10 == 0 says.
func TestIsTest(t *testing.T) {
	for name, want := range map[string]bool{"bash": true, "9mount": true, "abacas": true, "0ad": false, "vim": false,
		"perl": false} {
		if got := isTest(name); got != want {
			t.Errorf("IsTest(%q) = %v", name, got)
		}
	}
}
