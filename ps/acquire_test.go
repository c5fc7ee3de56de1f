package ps

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A ps takes the record of a job whose coordinator is not announced when a voter follows it, or the coordinator is known
// to have ended. Newcomers and trainers that were started again have it wait, and the record stays. What the coordinator
// writes after that finds that the job is another's.
func TestRecordsAreTakenWithAVoter(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	open := func(id string, incarnation uint64) *registry {
		c, err := fabric.DialControl(t.Context(), fabric.Config{URL: control.URL(), Bus: network(t), Name: "ps/" + id})
		must(t, err)
		t.Cleanup(c.Close)
		r := newRegistry(c, leaseRecord{ID: id, Incarnation: incarnation, Shards: 1, Stands: true,
			Fingerprint: schema.Fingerprint}, time.Hour, func() int64 { return 0 }, nil, slog.New(slog.DiscardHandler))
		must(t, r.open(t.Context()))
		return r
	}
	old, next := open("old", 1), open("next", 2)
	take := func(r *registry, name string, voter uint64) acquisition {
		t.Helper()
		got, err := r.tryAcquire(t.Context(), &acquireRequest{job: shardtest.SmallJob(name, 1, 1), voter: voter})
		must(t, err)
		return got
	}
	names := []string{"follows", "decided", "seen to end", "no voters yet", "no voters left"}
	for i, name := range names {
		names[i] = strings.ReplaceAll(name, " ", "-")
		run := take(old, names[i], 0).record.RunID
		voters := []schema.Voter{{Member: "t0", Number: 10}, {Member: "t1", Number: 11}}
		switch name {
		case "no voters yet":
			continue
		case "no voters left":
			voters = []schema.Voter{}
		}
		old.note(recordChange{name: schema.JobName(names[i]), run: run, voters: voters})
	}
	go func() {
		for {
			select {
			case <-old.news:
			case <-next.news:
			case <-t.Context().Done():
				return
			}
		}
	}()
	old.recordNoted(t.Context())
	must(t, old.servers.Delete(t.Context(), "old", old.revision)) // its lease has run out
	must(t, next.leases.Reach(t.Context(), old.revision+1))
	for range goneLooks {
		next.sweep(t.Context())
	}
	for _, voter := range []uint64{0, 12} {
		for _, name := range []string{"follows", "no-voters-left"} {
			if got := take(next, name, voter); got.record != nil || !strings.Contains(got.waits, "takeover "+name) {
				t.Errorf("%s is taken with trainer %d: %+v", name, voter, got)
			}
		}
	}
	third := open("third", 3)
	for _, r := range []*registry{next, third} {
		r.decide("decided")
		r.bindDecisions()
	}
	next.gone(1)
	for _, name := range []string{"seen-to-end", "decided"} {
		if take(next, name, 0).record == nil {
			t.Errorf("%s is not taken, though its coordinator has ended", name)
		}
	}
	next.ended = nil
	if take(next, "follows", 11).record == nil {
		t.Error("a job is not taken with a voter")
	}
	old.note(recordChange{name: "follows", run: old.own["follows"].record.RunID, voters: []schema.Voter{}})
	if old.recordNoted(context.WithoutCancel(t.Context())); old.own["follows"] != nil {
		t.Error("the old coordinator changes its voters, though another ps has the job")
	}
	next.note(recordChange{name: "decided", run: next.own["decided"].record.RunID, voters: []schema.Voter{}})
	next.recordNoted(t.Context())
	must(t, next.servers.Delete(t.Context(), "next", next.revision))
	must(t, third.leases.Reach(t.Context(), next.revision+1))
	if take(third, "decided", 0).waits == "" {
		t.Error("what an operator said of one run is taken for a later one")
	}
}

// Who may take a record.
func TestMayTake(t *testing.T) {
	two := []schema.Voter{{Member: "t0", Number: 10}, {Member: "t1", Number: 11}}
	for name, c := range map[string]struct {
		voters   []schema.Voter
		follower uint64
		ended    bool
		want     bool
	}{
		"a voter":             {two, 11, false, true},
		"a newcomer":          {two, 0, false, false},
		"started again":       {two, 12, false, false},
		"the end is known":    {two, 0, true, true},
		"nobody is left":      {[]schema.Voter{}, 11, false, false},
		"nobody is named yet": {nil, 0, false, true},
	} {
		if got := mayTake(c.voters, c.follower, c.ended); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What a ps has announced whose process was seen to end holds no more.
func TestWhoHasEndedIsNotAnnounced(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	s := mustStartFor(t, Config{NATS: control.URL(), ID: "a", Replicas: 1}, longLease)
	servers, _ := buckets(t, control.URL(), longLease)
	value, err := json.Marshal(leaseRecord{ID: "b", Incarnation: 9, URL: "nats://b:1", Shards: 1})
	must(t, err)
	revision, err := servers.Put(t.Context(), "b", value)
	must(t, err)
	must(t, s.registry.leases.Reach(t.Context(), revision))
	for _, want := range []int{2, 1} {
		if all := s.registry.listAll(); len(all) != want {
			t.Errorf("%d ps are announced, want %d", len(all), want)
		}
		s.registry.gone(9)
	}
}
