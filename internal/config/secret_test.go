package config

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecret(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	for text, want := range map[string]string{"open-sesame\n": "open-sesame", " x \r\nmore\n": "x", "bare": "bare"} {
		if got, err := Secret(write(t, text), quiet); err != nil || got != want {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	if got, err := Secret("", quiet); got != "" || err != nil {
		t.Errorf("no file: got %q, %v", got, err)
	}
	for text, want := range map[string]string{"": "first line is empty", "\nx\n": "first line is empty",
		strings.Repeat("x", 5000): "at most 4096"} {
		if _, err := Secret(write(t, text), quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Secret(filepath.Join(t.TempDir(), "none"), quiet); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v", err)
	}
}

// A token that others can read or choose is warned of, and read.
func TestSecretThatOthersReadOrWrite(t *testing.T) {
	for _, c := range []struct {
		name         string
		file, folder os.FileMode
		warns        string
	}{
		{"private", 0o600, 0o700, ""},
		{"in a folder that others read", 0o600, 0o775, ""},
		{"readable", 0o644, 0o700, "the file has mode -rw-r--r--"},
		{"readable by the group", 0o640, 0o700, "the file has mode -rw-r-----"},
		{"shared folder whose files stay their owner's", 0o600, 0o777 | os.ModeSticky, ""},
		{"writable", 0o602, 0o700, "the file has mode -rw-----w-"},
		{"replaceable", 0o600, 0o777, "has mode drwxrwxrwx"},
	} {
		folder := filepath.Join(t.TempDir(), "f")
		path := filepath.Join(folder, "token")
		for _, err := range []error{os.Mkdir(folder, 0o700), os.WriteFile(path, []byte("open-sesame\n"), 0o600),
			os.Chmod(path, c.file), os.Chmod(folder, c.folder)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		var said bytes.Buffer
		got, err := Secret(path, slog.New(slog.NewTextHandler(&said, nil)))
		if got != "open-sesame" || err != nil {
			t.Errorf("%s: got %q, %v", c.name, got, err)
		}
		if (c.warns == "") != (said.Len() == 0) || !strings.Contains(said.String(), c.warns) ||
			strings.Contains(said.String(), "sesame") {
			t.Errorf("%s: warned %q, want %q", c.name, said.String(), c.warns)
		}
	}
}
