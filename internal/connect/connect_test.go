package connect

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"gradbus/fabric"
	"gradbus/internal/certificate/certtest"
)

func flagsOf(f *Flags) *pflag.FlagSet {
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.AddServer(set, "nats://127.0.0.1:4222")
	f.AddData(set)
	return set
}

// Each flag, alone and after its way to another process, becomes a part of what a trainer joins with.
func TestEveryFlagReachesTheTrainer(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := fabric.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	credentials := filepath.Join(t.TempDir(), "a.key")
	if err := os.WriteFile(credentials, []byte(seed), 0o600); err != nil {
		t.Fatal(err)
	}
	authority := certtest.NewAuthority(t)
	pair := authority.Issue(t, "127.0.0.1")
	// of trainer.Config, which each line changes
	fields := map[string]string{
		"--server=nats://10.0.0.1:4222": "Server", "--token-file=" + token: "Token", "--nats-creds=creds": "CredsFile",
		"--credentials=" + credentials:                               "Key",
		"--tls-ca=" + authority.File:                                 "TLS",
		"--tls-cert=" + pair.CertFile + " --tls-key=" + pair.KeyFile: "TLS DataTLS",
		"--route=cluster":                                            "Route",
		"--data-host=::1":                                            "DataHost",
		"--advertise=a:4300":                                         "Advertise",
	}
	var plain Flags
	if err := flagsOf(&plain).Parse(nil); err != nil {
		t.Fatal(err)
	}
	before, err := plain.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line, want := range fields {
		var f, arrived Flags
		set := flagsOf(&f)
		if err := set.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		set.Visit(func(f *pflag.Flag) { seen[f.Name] = true })
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &arrived); err != nil {
			t.Fatal(err)
		}
		var typed Flags
		if err := flagsOf(&typed).Parse(append(f.Args(), "--server", f.Server)); err != nil {
			t.Fatal(err)
		}
		if f != arrived || f != typed {
			t.Errorf("%s: %+v, and elsewhere %+v and %+v", line, f, arrived, typed)
		}
		after, err := f.Config(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var changed []string
		b, a := reflect.ValueOf(before), reflect.ValueOf(after)
		for i := range b.NumField() {
			if b.Type().Field(i).IsExported() && !reflect.DeepEqual(b.Field(i).Interface(), a.Field(i).Interface()) {
				changed = append(changed, b.Type().Field(i).Name)
			}
		}
		if got := strings.Join(changed, " "); got != want {
			t.Errorf("%s changes %q, want %q", line, got, want)
		}
	}
	flagsOf(&plain).VisitAll(func(f *pflag.Flag) {
		if !seen[f.Name] {
			t.Errorf("--%s is not walked", f.Name)
		}
	})
}

// Trainers of one host listen at ports of their own.
func TestPortsOfTrainers(t *testing.T) {
	for _, c := range [][3]string{
		{"", "", ""}, {"0.0.0.0", "a", "0.0.0.0 a"}, {"[::]:4300", "a:4400", "[::]:4302 a:4402"}, {"::1", "a:0", "::1 a:0"},
	} {
		of := Flags{DataHost: c[0], Advertise: c[1]}.Of(2)
		if got := strings.TrimSpace(of.DataHost + " " + of.Advertise); got != c[2] {
			t.Errorf("the third of %q and %q has %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		f    Flags
		want string
	}{
		{Flags{}, ""},
		{Flags{Server: "nats://a:1,nats://b:2", Route: "cluster", DataHost: "::", Advertise: "a:1"}, ""},
		{Flags{Server: "here"}, `server "here": want an address such as nats://127.0.0.1:4222`},
		{Flags{Route: "far"}, `route "far": want direct or cluster`},
		{Flags{DataHost: "a:b"}, `data host "a:b": want a name or an IP, and maybe a port`},
		{Flags{Advertise: "nats://a"}, `advertise "nats://a": want a name or an IP`},
	} {
		if err := c.f.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.f, err, c.want)
		}
	}
}
