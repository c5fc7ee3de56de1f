package harness

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func toyFlags() (f Flags) {
	SetDefaults(&f)
	f.Job = "toy"
	return f
}

// The commands of each host, with shards and trainers spread over all.
func TestPrintHosts(t *testing.T) {
	for _, c := range []struct {
		line   string
		layout Layout
		want   []string // lines that a shell runs, behind their host
	}{
		{"--hosts a,b:4300,c --seed 3 --json", Layout{Trainers: 4, Shards: 5, Reduces: true}, []string{
			"openssl rand -hex 16 >token", "openssl rand -hex 16 >control-token",
			"a: ps --listen 0.0.0.0:4222 --shards 2 --id ps00 --token-file token --control-token-file control-token",
			"b:4300: ps --listen 0.0.0.0:4300 --shards 2 --id ps01 --token-file token --control-token-file control-token " +
				"--nats nats://a:4222 --advertise b:4300",
			"c: ps --listen 0.0.0.0:4222 --shards 1 --id ps02 --token-file token --control-token-file control-token " +
				"--nats nats://a:4222 --advertise c:4222",
			"a: psbench toy --server nats://a:4222 --here 1 --token-file token --data-host 0.0.0.0 --advertise a " +
				"--seed=3 --json",
			"b:4300: psbench toy --server nats://a:4222 --here 1 --token-file token --data-host 0.0.0.0 --advertise b " +
				"--seed=3 --json",
			"c: psbench toy --server nats://a:4222 --here 2 --token-file token --data-host 0.0.0.0 --advertise c " +
				"--seed=3 --json",
		}},
		{"--seed 3 --hosts a --token-file mine", Layout{Trainers: 1, Shards: 1, Serving: []string{"seed"}}, []string{
			"a: ps --listen 0.0.0.0:4222 --shards 1 --id ps00 --token-file mine",
			"a: psbench toy --server nats://a:4222 --here 1 --token-file mine",
		}},
		{"--hosts a,b --token-file mine --tls-cert c.pem --tls-key k.pem --route cluster",
			Layout{Trainers: 1, Shards: 1, Server: []string{"--deadline", "5s"}}, []string{
				"a: ps --listen 0.0.0.0:4222 --shards 1 --id ps00 --token-file mine --tls-cert c.pem --tls-key k.pem --deadline 5s",
				"b: psbench toy --server tls://a:4222 --here 1 --token-file mine --tls-cert c.pem --tls-key k.pem --route=cluster",
			}},
		{"--hosts [::1]:7,b --server nats://n:4222 --nats-creds f.creds --token-file mine", Layout{Trainers: 2, Shards: 2},
			[]string{
				"[::1]:7: ps --listen 0.0.0.0:7 --shards 1 --id ps00 --token-file mine --nats nats://n:4222 " +
					"--advertise '[::1]:7' --nats-creds f.creds",
				"b: ps --listen 0.0.0.0:4222 --shards 1 --id ps01 --token-file mine --nats nats://n:4222 --advertise b:4222 " +
					"--nats-creds f.creds",
				"[::1]:7: psbench toy --server nats://n:4222 --here 1 --token-file mine --nats-creds f.creds",
				"b: psbench toy --server nats://n:4222 --here 1 --token-file mine --nats-creds f.creds",
			}},
	} {
		f, set := toyFlags(), pflag.NewFlagSet("toy", pflag.ContinueOnError)
		AddFlags(set, &f)
		if err := set.Parse(strings.Fields(c.line)); err != nil {
			t.Fatal(err)
		}
		if err := f.Validate(&f, c.layout.Trainers); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := f.PrintHosts(&out, set, "toy", c.layout); err != nil {
			t.Fatal(err)
		}
		got := shellLines(out.String())
		if text, want := strings.Join(got, "\n"), strings.Join(c.want, "\n"); text != want {
			t.Errorf("%s prints\n%s\nwant\n%s", c.line, text, want)
		}
		if err := f.PrintHosts(broken{}, set, "toy", c.layout); err == nil {
			t.Error("what cannot be written is no error")
		}
	}
}

// shellLines are the lines that a shell runs, each behind its host.
func shellLines(text string) (got []string) {
	host := ""
	for line := range strings.Lines(text) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "# on "):
			host = strings.TrimPrefix(line, "# on ") + ": "
		case line == "", strings.HasPrefix(line, "#"):
		default:
			got, host = append(got, host+regexp.MustCompile(`^\S*/`).ReplaceAllString(line, "")), ""
		}
	}
	return got
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestHostsThatAreWrong(t *testing.T) {
	for hosts, want := range map[string]string{
		"a,": `hosts "": want names or IPs`, "a:b": `hosts "a:b": want names`, "nats://a:1": `hosts "nats://a:1": want names`,
		"a,b,a": `hosts "a": want each host once`, "a:0": `hosts "a:0": want names`, "a,b": "",
	} {
		f := toyFlags()
		f.Hosts = strings.Split(hosts, ",")
		if err := f.Validate(&f, 1); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", hosts, err, want)
		}
	}
	f := toyFlags()
	f.Way.Server, f.Hosts = "nats://ann:secret@n:4222", []string{"a"}
	if err := f.Validate(&f, 1); err == nil || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "want --nats-creds") {
		t.Errorf("a password: %v", err)
	}
}
