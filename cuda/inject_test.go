package cuda

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A wrong bit that is injected is in what the next call writes, once, and what finds it says that it was.
func TestWrongBits(t *testing.T) {
	for name, c := range verifiedCalls(rand.New(rand.NewPCG(1, 9))) {
		if c.method == "Copy" {
			continue
		}
		log := &strings.Builder{}
		b, err := Open(Options{Name: "go", Verify: 1, WrongBits: []time.Duration{time.Hour, 0},
			Log: slog.New(slog.NewTextHandler(log, nil))})
		must(t, err)
		defer b.Close()
		var e *MismatchError
		if err := c.on(b); !errors.As(err, &e) || !e.injected || !strings.HasSuffix(e.Error(), "; a wrong bit was injected") {
			t.Errorf("%s: %v, want a wrong bit found and said to be injected", name, err)
		}
		if err := c.on(b); err != nil {
			t.Errorf("%s, once more: %v", name, err)
		}
		if n := strings.Count(log.String(), "a wrong bit was injected"); n != 1 {
			t.Errorf("%s: %d lines about it", name, n)
		}
	}
}

// Open puts beside a backend what is asked for, and says what it cannot.
func TestOpenVerified(t *testing.T) {
	for oneIn, want := range map[int]string{0: "", VerifyAuto: "",
		7: "one optimizer block in 7 checked by go (portable)"} {
		b, err := Open(Options{Name: "go", Verify: oneIn})
		must(t, err)
		if v, ok := b.(*Verified); ok != (want != "") || ok && v.OneIn() != oneIn || !strings.Contains(Describe(b), want) {
			t.Errorf("verify %d: %s, want %q", oneIn, Describe(b), want)
		}
		must(t, b.Close())
	}
	if _, err := Open(Options{Name: "go", Verify: -2}); !errors.Is(err, ErrArgument) ||
		!strings.Contains(err.Error(), "verify -2") {
		t.Errorf("verify -2: %v", err)
	}
}
