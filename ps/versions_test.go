package ps

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// older sends a control message as a program from before fingerprints does, or as one of another protocol.
func (p *publisher) older(job, from, body string) {
	p.t.Helper()
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindControl, Body: len(body)})
	must(p.t, err)
	copy(f.Body(), body)
	p.send(fabric.At(job, from, fabric.KindCtl, "coordinator").String(), f.Seal())
}

// A program of another protocol is told so in words that it reads, whichever of its messages it is; its job does not
// begin, the log names both versions, and reports tell of the refused joins.
func TestOtherVersionsAreTold(t *testing.T) {
	log, reports := &testkit.Text{}, newReportLog(t)
	s, err := Start(t.Context(), Config{Deadline: unhurried},
		Options{Log: slog.New(slog.NewTextHandler(log, nil)), Telemetry: reports.take})
	must(t, err)
	t.Cleanup(s.Close)
	job, err := shardtest.SmallJob("old", 1, 1).WithDefaults().Encode()
	must(t, err)
	older := newPublisher(t, s, "old")
	heard := make(chan []byte, 10)
	must(t, older.conn.Subscribe(fabric.Pattern(fabric.Any, "coordinator", fabric.KindCtl, "j-old", false),
		func(m fabric.Message) { heard <- m.Data }))
	for _, c := range []struct{ name, body, version string }{
		{"from before fingerprints", fmt.Sprintf(`{"join":{"job":%s,"host":"box (pid 1)"}}`, job), schema.OlderProgram},
		{"of a later version", fmt.Sprintf(
			`{"speaks":{"version":"7.8.9","fingerprint":"ab","more":1},"join":{"job":%s,"host":"h","later":true}}`, job),
			"gradbus 7.8.9 (protocol ab)"},
		{"of an operator", `{"drain":{"server":"a"}}`, schema.OlderProgram},
	} {
		older.older("old", "j-old", c.body)
		v, err := schema.Verify(<-heard, schema.Limits{})
		must(t, err)
		body := string(v.Body()) // as every version has written it: nothing beside the reason and the text
		answer, err := schema.DecodeControl(&v)
		if err != nil || answer.Refused == nil || answer.Refused.Reason != "unknown_version" ||
			!strings.HasPrefix(body, `{"refused":{"reason":"unknown_version","text":`) {
			t.Fatalf("%s: %s, %v, want a refusal", c.name, body, err)
		}
		for _, want := range []string{schema.ThisProgram().String(), c.version, "update"} {
			if !strings.Contains(answer.Refused.Text, want) {
				t.Errorf("%s: told %q, want %q in it", c.name, answer.Refused.Text, want)
			}
		}
	}
	reports.own(s, "two joins were refused", func(p *schema.ServerReport) bool {
		return len(p.Refused) == 1 && p.Refused[0].Job == "old" && p.Refused[0].Reason == "unknown_version" &&
			p.Refused[0].Count == 2
	})
	if said := log.String(); strings.Contains(said, "job registered") ||
		strings.Count(said, `msg="join refused"`) != 2 ||
		!strings.Contains(said, "gradbus 7.8.9 (protocol ab)") {
		t.Errorf("the log says\n%s", said)
	}
	if keysOf(t, s) != 0 {
		t.Error("a job of another version is written down")
	}
}

// A ps of another protocol gets no shards of a job here, and keeps no copies; its own jobs stay its own.
func TestOtherVersionsHaveNoShards(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	var all []*registry
	for i, fingerprint := range []string{schema.Fingerprint, schema.Fingerprint, "another", ""} {
		id := string(rune('a' + i))
		c, err := fabric.DialControl(t.Context(), fabric.Config{URL: control.URL(), Name: "ps/" + id})
		must(t, err)
		t.Cleanup(c.Close)
		r := newRegistry(c, leaseRecord{ID: id, Incarnation: uint64(i + 1), Shards: 1, Stands: true,
			Fingerprint: fingerprint}, time.Hour, func() int64 { return 0 },
			func(schema.JobName) schema.RunID { return 0 }, slog.New(slog.DiscardHandler))
		must(t, r.open(t.Context()))
		must(t, r.renew(t.Context()))
		all = append(all, r)
	}
	ids := func(records []leaseRecord) (ids string) {
		for _, a := range records {
			ids += a.ID
		}
		return ids
	}
	for i, want := range []string{"ab", "ab", "c", "d"} {
		name := fmt.Sprintf("job-%d", i)
		got, err := all[i].tryAcquire(t.Context(), &acquireRequest{job: shardtest.SmallJob(name, 1, 1)})
		if err != nil || ids(got.servers) != want || ids(got.peers) != want {
			t.Errorf("%s has its shards on %q, copies on %q, %v, want both on %q", name, ids(got.servers), ids(got.peers), err,
				want)
		}
		there := all[i].listAll()
		stand := slices.DeleteFunc(slices.Clone(there), func(a leaseRecord) bool { return !a.Stands })
		if ids(there) != "abcd" || ids(stand) != want {
			t.Errorf("ps %c sees %q, of which %q hold replicas, want all and %q", 'a'+i, ids(there), ids(stand), want)
		}
	}
}

// A ps whose peer reads another protocol hands nothing over to it, and does not end when it is asked to while that would
// lose a job.
func TestNothingIsHandedOverToOtherVersions(t *testing.T) {
	s := mustStart(t, Config{})
	job := shardtest.SmallJob("runs", 1, 1)
	newControlClient(t, s.URL(), job, "j-a").hear("it has started", func(c schema.Control) bool {
		return c.Start != nil || c.Joined != nil && c.Joined.Started
	})
	newer, told := newPublisher(t, s, "p-b"), make(chan struct{}, 1)
	must(t, newer.conn.Subscribe(fabric.Pattern(fabric.Any, "coordinator", fabric.KindCtl, "p-b", false),
		func(fabric.Message) { told <- struct{}{} }))
	newer.older(string(schema.TelemetryJob), "p-b",
		`{"speaks":{"version":"7.8.9","fingerprint":"ab"},"follow":{"url":"nats://there:1","incarnation":"7","host":"there"}}`)
	<-told
	operator := newControlClient(t, s.URL(), &schema.Job{Name: schema.TelemetryJob}, "j-op")
	operator.say("j-op", 0, schema.Control{Drain: &schema.Drain{}})
	r := (<-operator.answers).Refused
	if r == nil {
		t.Fatal("it is not refused")
	}
	for _, want := range []string{"job runs would be lost", "--checkpoint-dir", "gradbus 7.8.9 (protocol ab)"} {
		if !strings.Contains(r.Text, want) {
			t.Errorf("refused with %q, want %q in it", r.Text, want)
		}
	}
	select {
	case <-s.Asked():
		t.Error("it ends all the same")
	default:
	}
}
