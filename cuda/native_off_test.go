//go:build !native

package cuda

import (
	"log/slog"
	"strings"
	"testing"
)

// backendOptions lists the backends that the tests run on.
func backendOptions() []Options { return []Options{{Name: "go"}} }

// A build that is slow because it lacks something says so once, and how to get it; who asks for the portable backend
// hears nothing.
func TestOpenWarnsOfPortable(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines int
	}{{"", 1}, {"auto", 1}, {"go", 0}} {
		log := new(strings.Builder)
		b, err := Open(
			Options{Name: c.name, Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		if n := strings.Count(log.String(), "\n"); n != c.lines ||
			n > 0 && !(strings.Contains(log.String(), "times as fast") &&
				strings.Contains(log.String(), "native,installed")) {
			t.Errorf("backend %q: %s", c.name, log)
		}
	}
}
