package trainer

import (
	"strings"
	"testing"
)

// A data server that other machines reach asks for a token that nobody guesses.
func TestCheckDataHost(t *testing.T) {
	for _, c := range []struct{ host, token, says string }{
		{"", "", ""},
		{"127.0.0.1", "short", ""},
		{"localhost", "", ""},
		{"::1", "", ""},
		{"0.0.0.0", "0123456789abcdef", ""},
		{"10.0.0.1", "", "data host 10.0.0.1: other machines can reach it, and there is no token"},
		{"10.0.0.1", "0123456789abcde", "data host 10.0.0.1: other machines can reach it: token: it has 15 characters, want at least 16"},
	} {
		err := checkDataHost(Config{DataHost: c.host, Token: c.token})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %q: %v, want %q", c.host, c.token, err, c.says)
		}
	}
}
