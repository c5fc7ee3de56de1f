package certificate

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
)

// A certificate that is replaced is served from then on; one that is broken is not, and the one before stays.
func TestIsReadAgain(t *testing.T) {
	authority := certtest.NewAuthority(t)
	first := authority.Issue(t, "first.example")
	log := &testkit.Text{}
	f, err := Load("tls", first.CertFile, first.KeyFile, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	f.now = func() time.Time { return now }
	replace := func(certFile, keyFile string) {
		t.Helper()
		for to, from := range map[string]string{first.CertFile: certFile, first.KeyFile: keyFile} {
			data, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, data, 0o600)
			}
			if err == nil {
				now = now.Add(time.Minute)
				err = os.Chtimes(to, now, now)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	serves := func(want string) {
		t.Helper()
		if names := f.Latest().Leaf.DNSNames; len(names) != 1 || names[0] != want {
			t.Errorf("it serves %v, want %s", names, want)
		}
	}
	serves("first.example")
	second, third := authority.Issue(t, "second.example"), authority.Issue(t, "third.example")
	replace(second.CertFile, second.KeyFile)
	serves("second.example")
	replace(third.CertFile, second.KeyFile) // half of it
	serves("second.example")
	replace(third.CertFile, third.KeyFile)
	serves("third.example")
	if err := os.Remove(first.KeyFile); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookEvery - time.Nanosecond) // a look each ten seconds is enough
	quiet := len(log.String())
	serves("third.example")
	if len(log.String()) != quiet {
		t.Error("it looks too often")
	}
	now = now.Add(time.Nanosecond)
	serves("third.example")
	if got := log.String(); strings.Count(got, "certificate reloaded") != 2 || strings.Count(got, "the previous one stays") != 2 {
		t.Errorf("log %s", got)
	}
}

// What is wrong with the files is said with the flags that name them.
func TestLoadRefuses(t *testing.T) {
	pair := certtest.NewAuthority(t).Issue(t, "box")
	other := certtest.NewAuthority(t).Issue(t, "box")
	for name, c := range map[string]struct{ cert, key, want string }{
		"absent":     {"nowhere.pem", pair.KeyFile, "tls-cert, tls-key: stat nowhere.pem"},
		"other key":  {pair.CertFile, other.KeyFile, "private key does not match"},
		"no key":     {pair.CertFile, pair.CertFile, "tls-key " + pair.CertFile},
		"no cert":    {pair.KeyFile, pair.KeyFile, "tls-cert " + pair.KeyFile},
		"not a file": {t.TempDir(), pair.KeyFile, "tls-cert"},
	} {
		if _, err := Load("tls", c.cert, c.key, slog.New(slog.DiscardHandler)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A reload reads at once, from other files if need be, and keeps the certificate where these are wrong.
func TestReload(t *testing.T) {
	authority := certtest.NewAuthority(t)
	first, second := authority.Issue(t, "first.example"), authority.Issue(t, "second.example")
	f, err := Load("tls", first.CertFile, first.KeyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cert, key string
		changed   bool
		wrong     string
		serves    string
	}{
		{first.CertFile, first.KeyFile, false, "", "first.example"},
		{second.CertFile, first.KeyFile, false, "private key does not match", "first.example"},
		{second.CertFile, second.KeyFile, true, "", "second.example"},
		{"nowhere.pem", second.KeyFile, false, "nowhere.pem", "second.example"},
	} {
		changed, err := f.Reload(c.cert, c.key)
		if changed != c.changed || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%+v: changed %v, %v", c, changed, err)
		}
		if got := f.Latest().Leaf.DNSNames[0]; got != c.serves {
			t.Errorf("%+v: it serves %s", c, got)
		}
	}
}
