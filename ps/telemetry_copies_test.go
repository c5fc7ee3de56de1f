package ps

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
)

// What is told of a job whose ps stand by for each other, second by second.
func TestPeersOfAJob(t *testing.T) {
	c := keepingCoordinator(t, 2, 1)
	c.state = jobGathering
	at := time.UnixMilli(1_700_000_000_000)
	var s stoodBy
	says := func(id string, k schema.Kept) {
		k.Run, k.Series, k.Shards, k.Own = 7, c.copies.series, 2, []int{0, 1}
		c.Kept(at, schema.ServerMember(id), &k)
	}
	both := func(k schema.Kept) {
		k.Ready = true
		says("a", k)
		says("b", k)
	}
	const notThere = "ps b, which has shards of it, is not there with --replicas 1"
	var first schema.Version
	left := []leaseRecord{peersOf(1)[0], {ID: "b", Leaving: true}}
	for _, step := range []struct {
		name string
		do   func()
		want schema.StandbyReport
		kept string
	}{
		{"trainers are awaited", func() {}, schema.StandbyReport{Off: "it has not started"}, ""},
		{"one ps is there", func() { c.state = jobRunning; c.Peers(at, peersOf(1)) }, schema.StandbyReport{Failure: notThere},
			""},
		{"still", func() {}, schema.StandbyReport{Failure: notThere, UnreadyMS: 1000}, ""},
		{"both are", func() { c.Peers(at, peersOf(2)) }, schema.StandbyReport{UnreadyMS: 2000}, "a[a b]0 b[b a]0"},
		{"one has no room", func() { says("b", schema.Kept{Failure: "too large"}) },
			schema.StandbyReport{Failure: "ps b: too large", UnreadyMS: 3000}, "a[a b]0 b[b a]0"},
		{"both have a version", func() {
			both(schema.Kept{})
			first = c.copies.at
			both(schema.Kept{Next: first, TookMS: 250, Bytes: 500})
		}, schema.StandbyReport{Ready: true, Version: 1, TookSeconds: 0.25, Bytes: 1000}, "a[a b]1 b[b a]1"},
		{"trainers are past it", func() { s.batch = first + 1; both(schema.Kept{Version: first, Bytes: 700}) },
			schema.StandbyReport{Ready: true, Version: 1, Bytes: 1400, LateMS: 0}, "a[a b]1 b[b a]1"},
		{"still", func() { both(schema.Kept{Version: first, Bytes: 700}) },
			schema.StandbyReport{Ready: true, Version: 1, Bytes: 1400, LateMS: 1000}, "a[a b]1 b[b a]1"},
		{"one is silent", func() {
			at = at.Add(2 * keptSilentMax)
			says("a", schema.Kept{Ready: true, Version: first, Bytes: 700})
		}, schema.StandbyReport{Failure: "ps b has not said for 11s what it keeps", Version: 1, Bytes: 1400},
			"a[a b]1 b[b a]1"},
		{"and is back", func() { both(schema.Kept{Version: first, Bytes: 700}) },
			schema.StandbyReport{Ready: true, Version: 1, Bytes: 1400}, "a[a b]1 b[b a]1"},
		{"all is told anew to three", func() { c.Peers(at, left); c.Peers(at, peersOf(3)) },
			schema.StandbyReport{Bytes: 1400}, "a[a]0 b[b]0 c[a b]0"},
		{"one has left", func() { c.Peers(at, left) },
			schema.StandbyReport{Bytes: 1400, Failure: notThere, UnreadyMS: 1000}, ""},
	} {
		at = at.Add(time.Second)
		step.do()
		s.peers = true
		s.note(at, c.copiesReport(at), nil, "")
		got := *s.report(at)
		if !got.Peers || got.Server+got.URL != "" || (got.ToldMS > 0) != (got.Version > 0) {
			t.Errorf("%s: %+v", step.name, got)
		}
		if step.want.Version > 0 {
			step.want.Version = first
		}
		if kept := keptText(got.Kept, first); kept != step.kept {
			t.Errorf("%s: kept %s, want %s", step.name, kept, step.kept)
		}
		step.want.Peers, got.ToldMS, got.Kept = true, 0, nil
		if !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
}

// Who ends a ps is told with which version of a job the others go on, as long as all of them keep it.
func TestDrainedWithPeers(t *testing.T) {
	c, now := keepingCoordinator(t, 2, 1), time.Now()
	c.Peers(now, peersOf(2))
	says := func(id string, k schema.Kept) {
		k.Run, k.Series, k.Shards, k.Own, k.Ready = 7, c.copies.series, 2, []int{0, 1}, true
		c.Kept(now, schema.ServerMember(id), &k)
	}
	check := func(what string, want schema.Version) {
		t.Helper()
		if d := c.progress(time.Now()); d.Kept != want {
			t.Errorf("%s: %+v, want that version %d is kept", what, d, want)
		}
	}
	check("at first", 0)
	says("a", schema.Kept{})
	says("b", schema.Kept{})
	v := c.copies.at
	says("a", schema.Kept{Next: v})
	check("one has a version", 0)
	says("b", schema.Kept{Next: v})
	check("both have it", v)
	says("b", schema.Kept{Failure: "damaged"})
	check("one cannot any more", 0)
}

// keptText is who keeps what, and how many times a version each has.
func keptText(all []schema.KeptReport, version schema.Version) string {
	var texts []string
	for _, k := range all {
		texts = append(texts, fmt.Sprintf("%s%v%d", k.Server, k.Of, k.Version/max(version, 1)))
	}
	return strings.Join(texts, " ")
}

// Why nobody may keep shards of a job is told, too.
func TestJobsThatPeersDoNotKeep(t *testing.T) {
	for want, change := range map[string]func(*schema.Job){
		"its policy is fail":    func(j *schema.Job) { j.Policy = schema.PolicyFail },
		"want consistency sync": func(j *schema.Job) { j.Consistency, j.Optimizer.Exact = schema.ConsistencyAsync, true },
		"restarts from checkpoints alone": func(j *schema.Job) {
			j.Consistency, j.Ahead, j.Policy = schema.ConsistencyBounded, 1, schema.PolicyWait
		},
		"its shards add up nothing": func(j *schema.Job) { j.Tables, j.Reduce = nil, schema.ReduceTrainers },
	} {
		c := keepingCoordinator(t, 2, 1)
		change(c.config.Job)
		if p := c.copiesReport(time.Now()); p.Ready || !strings.Contains(p.Off, want) || p.Failure+p.Missing != "" {
			t.Errorf("%+v, want %q", p, want)
		}
	}
}

// A ps tells which others keep the shards of its job, and those what they keep of it: while they do, when one ends, and
// when one has no room.
func TestPeersAreTold(t *testing.T) { testkit.Waits(t, peersAreTold) }

func peersAreTold(t *testing.T) {
	peer := Config{ID: "a", Shards: 2, Replicas: 1, NATS: startControl(t, fabric.ServerConfig{}).URL()}
	s, l := startWatched(t, peer)
	m, stop, told := trainKept(t, s, l)
	alone := func(p *schema.StandbyReport) bool { return p.Off == "" && len(p.Kept) == 0 && p.UnreadyMS > 0 }
	if p := told("that nobody else is there", alone); p.Failure != "ps a alone is there with --replicas 1" {
		t.Errorf("%+v", p)
	}

	peer.ID = "b"
	b, lb := startWatched(t, peer)
	first := told("who keeps shards", func(p *schema.StandbyReport) bool { return p.Ready && p.Bytes > 0 })
	if !first.Peers || first.Version == 0 || first.ToldMS == 0 || first.Off+first.Failure != "" || first.UnreadyMS != 0 ||
		len(first.Kept) != 1 || !slices.Equal(first.Kept[0].Of, []string{"a"}) || first.Kept[0].Version < first.Version {
		t.Errorf("%+v", first)
	}
	told("a later version", func(p *schema.StandbyReport) bool {
		return p.Ready && p.Version > first.Version && p.Bytes > first.Bytes
	})
	held := lb.own(b, "what it keeps", func(p *schema.ServerReport) bool {
		return p.StandsBy != nil && len(p.StandsBy.Jobs) == 1 && p.StandsBy.Jobs[0].Version > 0
	})
	if h := held.StandsBy; !h.Peers || !h.Reached || h.URL != "" || h.Jobs[0].Job != "kept" ||
		h.Jobs[0].RunID != m.joined.RunID || !slices.Equal(h.Jobs[0].Of, []string{"a"}) {
		t.Errorf("%+v", h)
	}
	l.own(s, "that it keeps nothing of others", func(p *schema.ServerReport) bool {
		return p.StandsBy != nil && p.StandsBy.Peers && len(p.StandsBy.Jobs) == 0
	})

	b.Close()
	if gone := told("that it has ended", alone); gone.Ready || gone.Version != 0 || gone.Bytes < first.Bytes {
		t.Errorf("%+v", gone)
	}
	peer.ID, peer.MemoryBytesMax = "c", 1<<20
	small, lc := startWatched(t, peer)
	told("that there is no room", func(p *schema.StandbyReport) bool {
		return !p.Ready && strings.HasPrefix(p.Failure, "ps c: ") && strings.Contains(p.Failure, " are free") &&
			p.UnreadyMS > 0
	})
	lc.own(small, "what there is no room for", func(p *schema.ServerReport) bool {
		return len(p.StandsBy.Jobs) == 1 && strings.Contains(p.StandsBy.Jobs[0].Failure, " are free")
	})
	stop()
	m.leave("")
	l.own(s, "the end of the job", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseEnded && p.Jobs[0].Standby == nil
	})
}
