package config

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestSecret(t *testing.T) {
	for text, want := range map[string]string{"open-sesame\n": "open-sesame", " x \r\nmore\n": "x", "bare": "bare"} {
		if got, err := Secret(write(t, text)); err != nil || got != want {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	if got, err := Secret(""); got != "" || err != nil {
		t.Errorf("no file: got %q, %v", got, err)
	}
	for text, want := range map[string]string{"": "first line is empty", "\nx\n": "first line is empty", strings.Repeat("x", 5000): "at most 4096"} {
		if _, err := Secret(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Secret(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v", err)
	}
}
