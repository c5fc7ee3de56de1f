package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tapped is a line of ps tap --json.
type tapped struct {
	Time                time.Time
	Job, From, Kind, To string
	Batch, Bucket       *uint64
	Bytes               int
	OK                  bool
	Why                 string
	Missed              int
}

// A tap sees the frames of a job that runs, whole, and the job has the weights that it has unseen: on one ps with a
// token, and on a ps that finds others by an external NATS server, where frames pass its own.
func TestTap(t *testing.T) {
	data := index(t, 200)
	want := single(t, data)
	token := secretFile(t, "sesame-for-the-tap")
	_, alone := server(t, "--token-file", token)
	nats := start(t, "natsd", "-host", "127.0.0.1", "-port", "-1", "-user", "ann", "-password", "secret")
	nats.says(t, "natsd is ready at ")
	_, address, _ := strings.Cut(nats.stdout.String(), "natsd is ready at nats://")
	external := "nats://ann:secret@" + strings.TrimSpace(address) // in files, since no command line shows a password
	server(t, "--token-file", token, "--config", secretly(t, "nats: "+external+"\n"))
	for name, at := range map[string][]string{"one ps": {"--server", alone},
		"external NATS": {"--config", secretly(t, "server: "+external+"\n")}} {
		t.Run(name, func(t *testing.T) {
			tap := start(t, "ps", "tap", at[0], at[1], "--token-file", token, "--json")
			tap.says(t, `"kind":"beat"`) // of the ps itself: it listens
			args := short("", data, "--spawn", "--trainers", "2", "--json", "--token-file", token)
			where := slices.Index(args, "--server")
			args[where], args[where+1] = at[0], at[1]
			p := start(t, "trainer", args...)
			p.succeeds(t)
			if got := p.result(t).WeightsSHA256; got != want {
				t.Errorf("weights %s beside a tap, want %s", got, want)
			}
			tap.signal(t, syscall.SIGINT)
			tap.succeeds(t)
			kinds := map[string]int{}
			for line := range strings.Lines(tap.stdout.String()) {
				var f tapped
				if err := json.Unmarshal([]byte(line), &f); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if f.Missed > 0 {
					continue
				}
				kinds[f.Kind]++
				if !f.OK || f.Why != "" || f.Bytes == 0 || f.Time.IsZero() || f.From == "" || f.To == "" {
					t.Errorf("a tap shows %s", line)
				}
				if (f.Kind == "dense" || f.Kind == "mean") && (f.Batch == nil || f.Bucket == nil) {
					t.Errorf("no batch or bucket in %s", line)
				}
			}
			for _, kind := range []string{"ctl", "dense", "sparse", "lookup", "rows", "mean", "ack"} {
				if kinds[kind] == 0 {
					t.Errorf("no frame of kind %s: %v", kind, kinds)
				}
			}
		})
	}
	start(t, "ps", "tap", "--server", alone).fails(t, "token")
	start(t, "ps", "tap", "--server", alone, "--token-file", token, "--batch", "x").fails(t, "--batch", "whole number")
	start(t, "ps", "tap", "Bad.Name", "--server", alone, "--token-file", token).fails(t, "job")
}
