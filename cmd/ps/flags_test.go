package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/internal/certificate/certtest"
	"gradbus/internal/testkit"
	"gradbus/internal/testkit/flagwalk"
)

// untilReady is what a command writes to, until it has said that it serves.
type untilReady struct {
	to    io.Writer
	ready func()
}

func (u *untilReady) Write(text []byte) (int, error) {
	if bytes.Contains(text, []byte("is ready at")) {
		u.ready()
	}
	return u.to.Write(text)
}

var walker = flagwalk.Walker{New: command, Root: "../..", Exact: true, Run: serve}

// serve runs a command, and ends a ps that serves.
func serve(ctx context.Context, c *cobra.Command, _ string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.SetOut(&untilReady{c.OutOrStdout(), cancel})
	return c.ExecuteContext(ctx)
}

func TestServeFlags(t *testing.T) {
	folder, authority := t.TempDir(), certtest.NewAuthority(t)
	pair := authority.Issue(t, "127.0.0.1")
	secret := testkit.File(t, folder, "secret", []byte("0123456789abcdef\n"))
	keeps := "--checkpoint-dir DIR"
	flags := flagwalk.Flags{
		"listen": flagwalk.Set("127.0.0.2:0"), "shards": flagwalk.Set("3"), "deadline": flagwalk.Set("9s"),
		"stall-timeout": flagwalk.Held("ps.TestSlowTrainerIsNamed"),
		"start-timeout": flagwalk.Held("ps.TestJobsGatherForABoundedTime"), "token-file": flagwalk.Set(secret),
		"insecure":  {Value: "true", With: "--token-file " + secret, Refused: "give one of the two"},
		"tls-cert":  {Value: pair.CertFile, With: "--tls-key " + pair.KeyFile, Test: "e2e.TestSeveralHostsTLS"},
		"tls-key":   flagwalk.Refused(pair.KeyFile, "want both or neither"),
		"tls-ca":    flagwalk.Refused(authority.File, "want tls-cert and tls-key with it"),
		"port-file": flagwalk.Held("e2e.TestPortFileOnFullDisk"), "nats": flagwalk.Fails("nats://127.0.0.1:1", "127.0.0.1:1"),
		"control-token-file": flagwalk.Held("ps.TestPeersHaveATokenOfTheirOwn"),
		"members":            flagwalk.Fails(filepath.Join(folder, "none"), "none"),
		"credentials":        flagwalk.Fails(filepath.Join(folder, "none"), "none"),
		"nats-creds":         flagwalk.Refused("none", "want that with it"),
		"nats-ca":            flagwalk.Fails(authority.File, "want them only with nats"),
		"advertise":          flagwalk.Held("ps.TestAnnouncedAddress"),
		"peer":               flagwalk.Fails("nats://127.0.0.1:1", "want replicas 1 with it"), "id": flagwalk.Set("other"),
		"replicas": {Value: "1", Fails: "want it with nats"},
		"backend":  flagwalk.Set("go"), "isa": flagwalk.Set("baseline"), "threads": flagwalk.Set("2"),
		"verify": flagwalk.Held("e2e.TestWrongBitOnServer"), "memory-mib": flagwalk.Set("64"),
		"kernel-library": flagwalk.Held("e2e.TestKernelLibrary"),
		"staged-mib":     flagwalk.Fails("15", "want at least 16"),
		"pending-mib":    flagwalk.Fails("31", "want at least 32"), "jobs-max": flagwalk.Fails("0", "want at least 1"),
		"checkpoint-dir":   flagwalk.Set("DIR"),
		"checkpoint-every": {Value: "7s", With: keeps}, "checkpoint-keep": {Value: "1", With: keeps, Fails: "checkpoint"},
		"http": flagwalk.Set("off"), "http-host": flagwalk.Held("ps/ops.TestForeignHostsAreRefused"),
		"http-token-file":    flagwalk.Held("ps/ops.TestTokenIsAskedFor"),
		"metrics-token-file": {Value: secret, With: "--token-file " + secret, Fails: "want another"},
		"http-tls-cert":      flagwalk.Fails(pair.CertFile, "key"), "http-tls-key": flagwalk.Fails(pair.KeyFile, "cert"),
		"http-insecure":  flagwalk.Held("ps/ops.TestTokenIsAskedFor"),
		"http-port-file": flagwalk.Held("e2e.TestPagePortTaken"),
		"pprof":          flagwalk.Fails("0.0.0.0:0", "pprof"), "gpu": flagwalk.Held("e2e.TestGPUFlags"),
		"gpu-expected": flagwalk.Held("e2e.TestGPUFlags"), "gpu-use": flagwalk.Held("e2e.TestServerGPUFault"),
		"gpu-state": flagwalk.Held("e2e.TestGPUFlags"), "gpu-library": flagwalk.Held("e2e.TestServerGPUFault"),
		"inject": flagwalk.Fails("xid", "inject"), "log-format": flagwalk.Set("text"), "log-level": flagwalk.Set("error"),
		"config": flagwalk.Set(testkit.File(t, folder, "ps.yaml", []byte("shards: 5\n"))),
	}
	line := "--listen 127.0.0.1:0 --http 127.0.0.1:0 --id walk"
	walker.Walk(t, flagwalk.Setting{Line: line, Flags: flags})
	off, on := "no page with --http off", "is for --nats"
	for name, words := range map[string]string{"http-host": off, "http-token-file": off, "metrics-token-file": off,
		"http-tls-cert": off, "http-tls-key": off, "http-insecure": off, "http-port-file": "no page with http off",
		"pprof":      "http off",
		"nats-creds": on, "checkpoint-every": "want --checkpoint-dir", "checkpoint-keep": "want --checkpoint-dir"} {
		refused(t, "--listen 127.0.0.1:0 --http off", name, words)
	}
	for _, name := range []string{"gpu-expected", "gpu-state"} {
		refused(t, "--listen 127.0.0.1:0 --gpu off", name, "--gpu off watches no GPU")
	}
	refused(t, "doctor --gpu off", "gpu-state", "--gpu off watches no GPU")
}

// refused wants a flag refused, with its name and these words.
func refused(t *testing.T, line, name, words string) {
	t.Helper()
	c := command()
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	value := map[string]string{"http-insecure": "true", "checkpoint-every": "5s"}[name]
	if value == "" {
		value = "3"
	}
	c.SetArgs(append(strings.Fields(line), "--"+name+"="+value))
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), name) ||
		!strings.Contains(err.Error(), words) {
		t.Errorf("%s --%s: %v, want it refused with %q", line, name, err, words)
	}
}

// The commands beside it: what they are told of the way to a ps is seen where there is none.
func TestSubcommandFlags(t *testing.T) {
	folder := t.TempDir()
	none := filepath.Join(folder, "none")
	held := func(test string, names ...string) flagwalk.Flags {
		all := flagwalk.Flags{}
		for _, name := range names {
			all[name] = flagwalk.Held(test)
		}
		return all
	}
	looks := flagwalk.Flags{"ps": flagwalk.Fails("http://127.0.0.1:2", "127.0.0.1:2"),
		"http-token-file": flagwalk.Fails(none, none), "http-ca": flagwalk.Fails(none, none),
		"timeout": flagwalk.Held("ps/ops/terminal.TestStatusErrors")}
	joins := flagwalk.Flags{"server": flagwalk.Fails("nats://127.0.0.1:2", "127.0.0.1:2"),
		"token-file": flagwalk.Fails(none, none), "nats-creds": flagwalk.Fails(none, none),
		"credentials": flagwalk.Fails(none, none),
		"tls-cert":    flagwalk.Refused(none, "want both or neither"), "tls-key": flagwalk.Refused(none, "want both or neither"),
		"tls-ca": flagwalk.Fails(none, none), "log-format": flagwalk.Fails("xml", "xml"),
		"log-level": flagwalk.Fails("loud", "loud"),
		"config":    flagwalk.Fails(testkit.File(t, folder, "client.yaml", []byte("log-level: loud\n")), "loud")}
	settings := []flagwalk.Setting{
		{Line: "status --ps http://127.0.0.1:1", Flags: looks.And(held("e2e.TestStatus", "json"))},
		{Line: "tap --server nats://127.0.0.1:1", Flags: joins.And(held("ps/ops/tap.TestFilters", "from", "to", "kind",
			"batch", "bucket")).And(held("ps/ops/tap.TestCount", "count")).And(
			held("ps/ops/tap.TestJSON", "json"))},
		{Line: "scale-lr job 0.5 --server nats://127.0.0.1:1", Flags: joins.And(held("trainer.TestScaleLRWhileRunning",
			"from-batch", "timeout")).And(held("trainer.TestScaleLRForced", "force"))},
		{Line: "drain --server nats://127.0.0.1:1", Flags: joins.And(held("trainer.TestDrain", "timeout"))},
		{Line: "takeover walked --server nats://127.0.0.1:1", Flags: joins.And(held("trainer.TestOperatorContinuesAJob", "timeout"))},
		{Line: "checkpoints list " + folder, Flags: held("cmd/ps.TestCheckpointsCommands", "json")},
		{Line: "checkpoints verify " + folder, Flags: held("cmd/ps.TestCheckpointsCommands", "json")},
		{Line: "checkpoints export " + folder + " job file", Flags: held("cmd/ps.TestCheckpointsCommands", "id")},
		{Line: "checkpoints prune " + folder + " job", Flags: flagwalk.Flags{"keep": flagwalk.Fails("1", "--keep 1")}},
		{Line: "doctor", Flags: held("e2e.TestDoctorAsksTheDriver", "gpu", "gpu-library", "json").And(
			held("ps/ops/doctor.TestKept", "gpu-state")).And(held("e2e.TestKernelLibrary", "kernel-library")).And(
			held("ps/ops/doctor.TestExamine", "dir")).And(flagwalk.Flags{"config": flagwalk.Fails(none, none)})},
		{Line: "member new walked --role ps --members " + filepath.Join(folder, "members") + " --credentials " +
			filepath.Join(folder, "walked.key"), Flags: held("cmd/ps.TestNewMember", "members", "credentials").And(
			flagwalk.Flags{"role": flagwalk.Fails("cook", "cook"), "jobs": flagwalk.Fails("films", "films")})},
		{Line: "gpu-ack 0", Flags: held("internal/gpu.TestAcknowledgeIn", "gpu-state")},
	}
	walked := map[*cobra.Command]bool{}
	root := command()
	for _, s := range settings {
		walker.Walk(t, s)
		leaf, _, err := root.Find(strings.Fields(s.Line))
		if err != nil {
			t.Fatal(err)
		}
		walked[leaf] = true
	}
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if c.HasParent() && !walked[c] && c.IsAvailableCommand() && c.Parent().Name() != "completion" {
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if f.Name != "help" && f.Name != "version" {
					t.Errorf("ps %s --%s is not walked", c.Name(), f.Name)
				}
			})
		}
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(root)
}

func TestEmptyValues(t *testing.T) { walker.Empty(t) }
