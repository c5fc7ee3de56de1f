package config

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
)

// What the file says by now counts for the flags that are named; the command line and the environment win as ever, and
// what else has changed is named.
func TestReloadFile(t *testing.T) {
	t.Setenv("GRADBUS_SECOND", "from-environment")
	folder := t.TempDir()
	path := testkit.File(t, folder, "ps.yaml", []byte("first: a\nsecond: a\nthird: a\nfourth: a\nfifth: 1m\nsixth: a\n"))
	flags := pflag.NewFlagSet("ps", pflag.ContinueOnError)
	values := map[string]*string{}
	for _, name := range []string{"first", "second", "third", "fourth", "sixth", "seventh"} {
		values[name] = flags.String(name, "default", "")
	}
	flags.Duration("fifth", 0, "")
	AddFileFlag(flags)
	if err := flags.Parse([]string{"--third", "from-line", "--config", path}); err != nil {
		t.Fatal(err)
	}
	if err := Load(flags, func(text string) { t.Error(text) }); err != nil {
		t.Fatal(err)
	}
	names := []string{"first", "second", "third", "fourth"}
	wants := func(ignored ...string) {
		t.Helper()
		got, err := ReloadFile(flags, names)
		if err != nil || !slices.Equal(got, ignored) {
			t.Errorf("ignored %q, want %q; %v", got, ignored, err)
		}
	}
	value := func(name, want string) {
		t.Helper()
		if got := *values[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	wants()
	testkit.File(t, folder, "ps.yaml", []byte("first: b\nsecond: b\nthird: b\nfifth: 2m\nseventh: b\n"))
	wants("fifth", "seventh", "sixth")
	value("first", "b")
	value("second", "from-environment")
	value("third", "from-line")
	value("fourth", "default")
	value("seventh", "default")
	for wrong, words := range map[string]string{"first: c\nfirst: d\n": "already given", "first: c\nfirts: d\n": "unknown",
		"first: [c]\n": "single value", "- c\n": "mapping"} {
		testkit.File(t, folder, "ps.yaml", []byte(wrong))
		if _, err := ReloadFile(flags, names); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", wrong, err)
		}
		value("first", "b")
	}
}

// The level of a log that is open changes, but not to what is none.
func TestLogReload(t *testing.T) {
	l := Log{Format: LogText, Level: "warn"}
	log, err := l.Logger(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		level          string
		changed, wrong bool
		debug          bool
	}{{"warn", false, false, false}, {"debug", true, false, true}, {"loud", false, true, true},
		{"info", true, false, false}} {
		l.Level = c.level
		changed, err := l.Reload()
		if changed != c.changed || (err != nil) != c.wrong || log.Enabled(t.Context(), slog.LevelDebug) != c.debug {
			t.Errorf("%+v: changed %v, %v", c, changed, err)
		}
	}
}

// Whose certificates count changes with the file, for those who come from then on.
func TestTLSReload(t *testing.T) {
	folder := t.TempDir()
	first, second := certtest.NewAuthority(t), certtest.NewAuthority(t)
	own := first.Issue(t, "127.0.0.1")
	f := TLS{Cert: own.CertFile, Key: own.KeyFile, CA: testkit.File(t, folder, "ca.pem", contents(t, first.File))}
	serve, _, err := f.Load(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	lets := func(from *certtest.Authority) bool {
		t.Helper()
		client, server := net.Pipe()
		defer client.Close()
		ended := make(chan error, 1)
		go func() {
			defer server.Close()
			ended <- tls.Server(server, serve).Handshake()
		}()
		pair := from.Issue(t, "t0")
		dial := tls.Client(client, &tls.Config{RootCAs: first.Pool, ServerName: "127.0.0.1",
			Certificates: []tls.Certificate{pair.TLS}})
		if err := dial.Handshake(); err == nil {
			_, _ = dial.Read(make([]byte, 1)) // the server's alert, or its end
		}
		return <-ended == nil
	}
	if !lets(first) || lets(second) {
		t.Fatal("the authority of the file does not count, or another does")
	}
	testkit.File(t, folder, "ca.pem", []byte("nothing\n"))
	if _, _, err := f.Reload(); err == nil || !lets(first) {
		t.Errorf("a file without certificates: %v", err)
	}
	testkit.File(t, folder, "ca.pem", contents(t, second.File))
	dial, changed, err := f.Reload()
	if err != nil || !slices.Equal(changed, []string{"tls-ca"}) || !dial.RootCAs.Equal(second.Pool) {
		t.Errorf("changed %q, %v", changed, err)
	}
	if lets(first) || !lets(second) {
		t.Error("the authority that was replaced counts still, or the other does not")
	}
	f.CA = ""
	if _, _, err := f.Reload(); err == nil || lets(first) {
		t.Errorf("without authorities everybody is let in: %v", err)
	}
	f.Cert, f.Key = "", ""
	if _, _, err := f.Reload(); err == nil || !strings.Contains(err.Error(), "restart") {
		t.Errorf("without a certificate: %v", err)
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
