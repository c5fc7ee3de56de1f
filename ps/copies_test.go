package ps

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// peersOf are ps that stand by, a, b and so on, of which each has drawn its number.
func peersOf(n int) (all []leaseRecord) {
	for i := range n {
		all = append(all, leaseRecord{ID: string(rune('a' + i)), Incarnation: uint64(i + 1), Stands: true, Shards: 1})
	}
	return all
}

// keepingCoordinator is one whose job runs, with shards on so many ps, so many on each.
func keepingCoordinator(t *testing.T, hosts, shards int) *Coordinator {
	job := shardtest.SmallJob("kept", 1, 1)
	job.Policy = schema.PolicyRecover
	config := CoordinatorConfig{Job: job, RunID: 7, Generation: generationFirst, Deadline: time.Minute, Copies: true}
	for i, p := range peersOf(hosts) {
		d := schema.DataServer{ID: p.ID, URL: "nats://" + p.ID + ":4222"}
		for k := range shards {
			d.Shards = append(d.Shards, shards*i+k)
		}
		config.ShardServers = append(config.ShardServers, ShardServer{Member: schema.ServerMember(p.ID), Server: d,
			Incarnation: p.Incarnation})
	}
	c := NewCoordinator(config)
	if !c.mayKeep() {
		t.Fatal("nobody may keep shards of the job")
	}
	c.state = jobRunning
	return c
}

// told is what each ps is told to keep: shards, whose.
func told(decisions []Decision) map[string]string {
	all := map[string]string{}
	for _, d := range decisions {
		if k := d.Control.Keep; k != nil {
			var from []string
			for _, s := range k.From {
				from = append(from, fmt.Sprint(s.ID, s.Shards))
			}
			all[d.To.ServerID()] = strings.Join(from, " ")
		}
	}
	return all
}

// Every shard is at two ps, and the load is shared. One that has all of them keeps no second copy.
func TestWhoKeepsWhat(t *testing.T) {
	for _, c := range []struct {
		hosts, peers int
		want         map[string]string
	}{
		{2, 1, map[string]string{}},
		{1, 1, map[string]string{}},
		{1, 2, map[string]string{"a": "", "b": "a[0 1]"}},
		{2, 2, map[string]string{"a": "a[0 1] b[2 3]", "b": "b[2 3] a[0 1]"}},
		{3, 3, map[string]string{"a": "a[0 1] c[4 5]", "b": "b[2 3] a[0 1]", "c": "c[4 5] b[2 3]"}},
		{2, 3, map[string]string{"a": "a[0 1]", "b": "b[2 3]", "c": "a[0 1] b[2 3]"}},
	} {
		got := told(keepingCoordinator(t, c.hosts, 2).Peers(time.Now(), peersOf(c.peers)))
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d ps with shards of %d that stand by: %v, want %v", c.hosts, c.peers, got, c.want)
		}
	}
}

// One that has no room is asked no more where another one is there, and a job that has just begun trains at first.
func TestWhoKeepsInPlaceOfAnother(t *testing.T) {
	c, now := keepingCoordinator(t, 1, 2), time.Now()
	c.started = now
	if got := told(c.Peers(now.Add(copiesAfter-1), peersOf(3))); len(got) > 0 {
		t.Errorf("at once: %v", got)
	}
	now = now.Add(copiesAfter)
	first := told(c.BeginCopies(now))
	c.Kept(now, schema.ServerMember("b"), &schema.Kept{Run: 7, Series: c.copies.series, Failure: "no room"})
	early := told(c.tickCopies(now.Add(mirrorRetry - 1)))
	later := told(c.tickCopies(now.Add(mirrorRetry)))
	before, after := map[string]string{"a": "", "b": "a[0 1]"}, map[string]string{"a": "", "c": "a[0 1]"}
	if !maps.Equal(first, before) || !maps.Equal(early, before) || !maps.Equal(later, after) {
		t.Errorf("kept by %v, then %v and %v: want %v twice and %v", first, early, later, before, after)
	}
}

// A version is whole when all have it, the next one is named when all have heard that, and one that was missed is given
// up.
func TestVersionsThatAreKept(t *testing.T) {
	c, now := keepingCoordinator(t, 2, 1), time.Now()
	last := c.Peers(now, peersOf(2))
	said := map[string]*schema.Kept{"a": {}, "b": {}}
	step := func(id string, change func(*schema.Kept)) {
		now = now.Add(10 * time.Millisecond)
		k := said[id]
		k.Run, k.Series, k.Shards, k.Own = 7, c.copies.series, 2, []int{0, 1}
		change(k)
		last = c.Kept(now, schema.ServerMember(id), k)
	}
	check := func(what string, at, since, whole schema.Version) {
		t.Helper()
		k := &c.copies
		if k.at != at || k.since != since || k.whole != whole {
			t.Fatalf("%s: version %d since %d, %d is whole: want %d, %d, %d", what, k.at, k.since, k.whole, at, since, whole)
		}
	}
	check("at first", 0, 0, 0)
	step("a", func(k *schema.Kept) { k.Ready = true })
	check("one is ready", 0, 0, 0)
	step("b", func(k *schema.Kept) { k.Ready, k.Begun = true, 4 })
	check("both are", 5, 0, 0)
	if len(last) != 2 || last[0].Control.Keep.At != 5 || last[0].Control.Keep.Job != nil {
		t.Fatalf("decisions %+v", last)
	}
	step("a", func(k *schema.Kept) { k.Next = 5 })
	step("b", func(k *schema.Kept) { k.Missed, k.Begun = 5, 9 })
	if c.copies.at <= 9 || c.copies.since != 0 {
		t.Fatalf("version %d since %d is told after one that was missed at batch 9", c.copies.at, c.copies.since)
	}
	at := c.copies.at
	step("a", func(k *schema.Kept) { k.Next = at })
	check("one has it", at, 0, 0)
	step("b", func(k *schema.Kept) { k.Next = at })
	check("all have it", at, 0, at)
	if last[0].Control.Keep.Whole != at || last[0].Note == "" {
		t.Fatalf("decisions %+v", last)
	}
	step("a", func(k *schema.Kept) { k.Version, k.Next = at, 0 })
	check("one has heard it", at, 0, at)
	step("b", func(k *schema.Kept) { k.Version, k.Next = at, 0 })
	if c.copies.at <= at || c.copies.since != at {
		t.Fatalf("version %d since %d is told after %d", c.copies.at, c.copies.since, at)
	}
	series := c.copies.series
	c.Peers(now, nil) // of a control server that has forgotten all
	c.tickCopies(now.Add(keptSilentMax - time.Second))
	if len(c.copies.plan) != 2 || c.copies.series != series {
		t.Errorf("%+v is kept by two who are not announced for a moment", c.copies)
	}
	c.Peers(now.Add(keptSilentMax+1), peersOf(1))
	if len(c.copies.plan) > 0 || c.copies.whole > 0 {
		t.Errorf("%+v is kept without a second ps", c.copies)
	}
	if c.copies.series != series+1 {
		t.Errorf("series %d follows %d", c.copies.series, series)
	}
}

// What others keep of a run is one version of all shards, or nothing.
func TestChooseKept(t *testing.T) {
	kept := func(run schema.RunID, version, next schema.Version, own ...int) schema.Kept {
		return schema.Kept{Run: run, Series: 1, Shards: 3, Own: own, Version: version, Next: next, Incarnation: 5}
	}
	later := kept(8, 3, 0, 0, 1, 2)
	later.Runs = []schema.RunID{7}
	failed := schema.Kept{Run: 7, Series: 1, Shards: 3, Own: []int{0, 1, 2}, Failure: "no room"}
	for _, c := range []struct {
		name    string
		answers []schema.Kept
		version schema.Version
		shards  [][]int
	}{
		{"nothing", []schema.Kept{{Run: 7}, failed}, 0, nil},
		{"a shard is missing", []schema.Kept{kept(7, 4, 0, 0, 1), kept(7, 4, 0, 1)}, 0, nil},
		{"each once", []schema.Kept{kept(7, 4, 0, 0, 2), kept(7, 4, 0, 1)}, 4, [][]int{{0, 2}, {1}}},
		{"some twice", []schema.Kept{kept(7, 4, 0, 0, 1, 2), kept(7, 4, 0, 1, 2)}, 4, [][]int{{0, 2}, {1}}},
		{"one has heard of a later one", []schema.Kept{kept(7, 4, 6, 0, 1), kept(7, 6, 0, 1, 2)}, 6, [][]int{{0, 1}, {2}}},
		{"nobody has", []schema.Kept{kept(7, 4, 6, 0, 1), kept(7, 4, 6, 1, 2)}, 4, [][]int{{0, 1}, {2}}},
		{"no version that all have", []schema.Kept{kept(7, 4, 0, 0, 1), kept(7, 5, 0, 1, 2)}, 0, nil},
		{"of two runs", []schema.Kept{kept(7, 4, 0, 0, 1), kept(9, 4, 0, 2)}, 0, nil},
		{"one that went on", []schema.Kept{kept(7, 9, 0, 0, 1, 2), later}, 3, [][]int{{0, 1, 2}}},
	} {
		answers := map[string]schema.Kept{}
		for i, a := range c.answers {
			answers[string(rune('a'+i))] = a
		}
		v, got := chooseKept(7, answers), [][]int(nil)
		if v == nil {
			v = &keptVersion{}
		}
		for _, s := range v.servers {
			got = append(got, s.shards)
		}
		if v.version != c.version || !slices.EqualFunc(got, c.shards, slices.Equal) {
			t.Errorf("%s: version %d on %v, want %d on %v", c.name, v.version, got, c.version, c.shards)
		}
	}
}

// The id of what a job begins with is read as it was written, and no other is one.
func TestKeptID(t *testing.T) {
	v := keptVersion{run: 1<<64 - 3, version: 17}
	if run, at, ok := parseKept(v.id()); run != v.run || at != 17 || !ok {
		t.Errorf("%s is read as version %d of run %d: %v", v.id(), at, run, ok)
	}
	for _, id := range []string{"", "kept-", "kept-5", "kept-x-1", "kept-5-x", "0000000001-5-17"} {
		if _, _, ok := parseKept(id); ok {
			t.Errorf("%q is the id of what is kept", id)
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
	_, err = servers.Put(t.Context(), "b", value)
	must(t, err)
	for _, want := range []int{2, 1} {
		all, err := s.registry.listAll(t.Context())
		if err != nil || len(all) != want {
			t.Errorf("%d ps are announced (%v), want %d", len(all), err, want)
		}
		s.registry.gone(9)
	}
}
