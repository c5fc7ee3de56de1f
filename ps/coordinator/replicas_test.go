package coordinator

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// somePeers are ps that hold replicas, a, b and so on, of which each has drawn its number.
func somePeers(n int) (all []Peer) {
	for i := range n {
		all = append(all, Peer{ID: string(rune('a' + i)), Incarnation: uint64(i + 1), Keeps: true})
	}
	return all
}

// keepingCoordinator is one whose job runs, with shards on so many ps, so many on each.
func keepingCoordinator(t *testing.T, hosts, shards int) *Coordinator {
	job := shardtest.SmallJob("kept", 1, 1)
	job.Policy = schema.PolicyRecover
	config := Config{Job: job, RunID: 7, Generation: 1, Deadline: time.Minute, RecordDecides: true}
	for i, p := range somePeers(hosts) {
		d := schema.DataServer{ID: p.ID, URL: "nats://" + p.ID + ":4222"}
		for k := range shards {
			d.Shards = append(d.Shards, shards*i+k)
		}
		config.ShardServers = append(config.ShardServers, ShardServer{Member: schema.ServerMember(p.ID), Server: d,
			Incarnation: p.Incarnation})
	}
	c := New(config)
	if c.replicas.off != "" {
		t.Fatal("nobody may keep shards of the job")
	}
	c.state = Running
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
		got := told(keepingCoordinator(t, c.hosts, 2).Peers(time.Now(), somePeers(c.peers)))
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d ps with shards of %d that hold replicas: %v, want %v", c.hosts, c.peers, got, c.want)
		}
	}
}

// One that has no room is asked no more where another one is there, and a job that has just begun trains at first.
func TestWhoKeepsInPlaceOfAnother(t *testing.T) {
	c, now := keepingCoordinator(t, 1, 2), time.Now()
	c.started = now
	if got := told(c.Peers(now.Add(replicateAfter-1), somePeers(3))); len(got) > 0 {
		t.Errorf("at once: %v", got)
	}
	now = now.Add(replicateAfter)
	first := told(c.BeginReplicas(now))
	c.Kept(now, schema.ServerMember("b"), &schema.Kept{Run: 7, Series: c.replicas.series, Failure: "no room"})
	early := told(c.replicate(c.replicas.tick(now.Add(replicateRetry-1), c.started)))
	later := told(c.replicate(c.replicas.tick(now.Add(replicateRetry), c.started)))
	before, after := map[string]string{"a": "", "b": "a[0 1]"}, map[string]string{"a": "", "c": "a[0 1]"}
	if !maps.Equal(first, before) || !maps.Equal(early, before) || !maps.Equal(later, after) {
		t.Errorf("kept by %v, then %v and %v: want %v twice and %v", first, early, later, before, after)
	}
}

// A version is whole when all have it, the next one is named when all have heard that, and one that was missed is given
// up.
func TestVersionsThatAreKept(t *testing.T) {
	c, now := keepingCoordinator(t, 2, 1), time.Now()
	last := c.Peers(now, somePeers(2))
	said := map[string]*schema.Kept{"a": {}, "b": {}}
	step := func(id string, change func(*schema.Kept)) {
		now = now.Add(10 * time.Millisecond)
		k := said[id]
		k.Run, k.Series, k.Shards, k.Own = 7, c.replicas.series, 2, []int{0, 1}
		change(k)
		last = c.Kept(now, schema.ServerMember(id), k)
	}
	check := func(what string, at, since, whole schema.Version) {
		t.Helper()
		k := &c.replicas
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
	if c.replicas.at <= 9 || c.replicas.since != 0 {
		t.Fatalf("version %d since %d is told after one that was missed at batch 9", c.replicas.at, c.replicas.since)
	}
	at := c.replicas.at
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
	if c.replicas.at <= at || c.replicas.since != at {
		t.Fatalf("version %d since %d is told after %d", c.replicas.at, c.replicas.since, at)
	}
	series := c.replicas.series
	c.Peers(now, nil) // of a control server that has forgotten all
	c.replicate(c.replicas.tick(now.Add(holderSilentMax-time.Second), c.started))
	if len(c.replicas.plan) != 2 || c.replicas.series != series {
		t.Errorf("%+v is kept by two who are not announced for a moment", c.replicas)
	}
	c.Peers(now.Add(holderSilentMax+1), somePeers(1))
	if len(c.replicas.plan) > 0 || c.replicas.whole > 0 {
		t.Errorf("%+v is kept without a second ps", c.replicas)
	}
	if c.replicas.series != series+1 {
		t.Errorf("series %d follows %d", c.replicas.series, series)
	}
}

// What is told of a job whose ps hold replicas for each other, second by second.
func TestPeersOfAJob(t *testing.T) {
	c := keepingCoordinator(t, 2, 1)
	c.state = Gathering
	at := time.UnixMilli(1_700_000_000_000)
	says := func(id string, k schema.Kept) {
		k.Run, k.Series, k.Shards, k.Own = 7, c.replicas.series, 2, []int{0, 1}
		c.Kept(at, schema.ServerMember(id), &k)
	}
	both := func(k schema.Kept) {
		k.Ready = true
		says("a", k)
		says("b", k)
	}
	const notThere = "ps b, which has shards of it, is not there with --replicas 1"
	var first schema.Version
	left := []Peer{somePeers(1)[0], {ID: "b"}}
	for _, step := range []struct {
		name string
		do   func()
		want ReplicaReport
		kept string
	}{
		{"trainers are awaited", func() {}, ReplicaReport{Off: "it has not started"}, ""},
		{"one ps is there", func() { c.state = Running; c.Peers(at, somePeers(1)) }, ReplicaReport{Missing: notThere},
			""},
		{"both are", func() { c.Peers(at, somePeers(2)) }, ReplicaReport{}, "a[a b]0 b[b a]0"},
		{"one has no room", func() { says("b", schema.Kept{Failure: "too large"}) },
			ReplicaReport{Failure: "ps b: too large"}, "a[a b]0 b[b a]0"},
		{"both have a version", func() {
			both(schema.Kept{})
			first = c.replicas.at
			both(schema.Kept{Next: first, TookMS: 250, Bytes: 500})
		}, ReplicaReport{Ready: true, Version: 1, Took: 250 * time.Millisecond, Bytes: 1000}, "a[a b]1 b[b a]1"},
		{"all have heard it", func() { both(schema.Kept{Version: first, Bytes: 700}) },
			ReplicaReport{Ready: true, Version: 1, Bytes: 1400}, "a[a b]1 b[b a]1"},
		{"one is silent", func() {
			at = at.Add(2 * holderSilentMax)
			says("a", schema.Kept{Ready: true, Version: first, Bytes: 700})
		}, ReplicaReport{Failure: "ps b has not said for 11s what it keeps", Version: 1, Bytes: 1400},
			"a[a b]1 b[b a]1"},
		{"and is back", func() { both(schema.Kept{Version: first, Bytes: 700}) },
			ReplicaReport{Ready: true, Version: 1, Bytes: 1400}, "a[a b]1 b[b a]1"},
		{"all is told anew to three", func() { c.Peers(at, left); c.Peers(at, somePeers(3)) },
			ReplicaReport{Bytes: 1400}, "a[a]0 b[b]0 c[a b]0"},
		{"one has left", func() { c.Peers(at, left) },
			ReplicaReport{Bytes: 1400, Missing: notThere}, ""},
	} {
		at = at.Add(time.Second)
		step.do()
		got := c.Replicas(at)
		if (got.At.IsZero()) && got.Version > 0 {
			t.Errorf("%s: %+v", step.name, got)
		}
		if step.want.Version > 0 {
			step.want.Version = first
		}
		if kept := keptText(got.Kept, first); kept != step.kept {
			t.Errorf("%s: kept %s, want %s", step.name, kept, step.kept)
		}
		got.At, got.Kept, got.Members = time.Time{}, nil, nil
		if !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
}

// Who ends a ps is told with which version of a job the others go on, as long as all of them keep it.
func TestDrainedWithPeers(t *testing.T) {
	c, now := keepingCoordinator(t, 2, 1), time.Now()
	c.Peers(now, somePeers(2))
	says := func(id string, k schema.Kept) {
		k.Run, k.Series, k.Shards, k.Own, k.Ready = 7, c.replicas.series, 2, []int{0, 1}, true
		c.Kept(now, schema.ServerMember(id), &k)
	}
	check := func(what string, want schema.Version) {
		t.Helper()
		if d := c.Progress(time.Now()); d.Kept != want {
			t.Errorf("%s: %+v, want that version %d is kept", what, d, want)
		}
	}
	check("at first", 0)
	says("a", schema.Kept{})
	says("b", schema.Kept{})
	v := c.replicas.at
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
		c = New(c.config)
		c.state = Running
		if p := c.Replicas(time.Now()); p.Ready || !strings.Contains(p.Off, want) || p.Failure+p.Missing != "" {
			t.Errorf("%+v, want %q", p, want)
		}
	}
}

// Versions are told in step with how long that takes, however long the first one took: the newest whole one is never
// old.
func TestVersionsKeepPace(t *testing.T) {
	const lasts, step = time.Minute, 10 * time.Millisecond
	for _, test := range []struct {
		rate        int // batches a second
		first, next time.Duration
		oldest      time.Duration // after the first version
	}{
		{200, 300 * time.Millisecond, 20 * time.Millisecond, time.Second},
		{200, 5 * time.Second, 20 * time.Millisecond, time.Second},
		{20, 5 * time.Second, 20 * time.Millisecond, time.Second},
		{2, 5 * time.Second, 20 * time.Millisecond, 4 * time.Second},
		{200, 5 * time.Second, time.Second, 9 * time.Second},
		{2, 5 * time.Second, time.Second, 12 * time.Second},
	} {
		c, begin := keepingCoordinator(t, 1, 2), time.Unix(1000, 0)
		c.Peers(begin, somePeers(2))
		var has, reports schema.Version // what b has whole, and a reports to have told
		var took, oldest time.Duration
		var sending schema.Version
		var sent, wholeAt time.Time
		for now := begin; now.Before(begin.Add(lasts)); now = now.Add(step) {
			begun := schema.Batch(now.Sub(begin).Seconds() * float64(test.rate))
			k := &c.replicas
			if sending == 0 && k.at > has && schema.Version(begun) >= k.at { // a copies it
				sending, sent = k.at, now.Add(test.next)
				if has == 0 {
					sent = now.Add(test.first)
				}
			}
			if sending > 0 && !now.Before(sent) {
				if has > 0 {
					took, oldest = test.next, max(oldest, now.Sub(wholeAt))
				}
				has, reports, sending, wholeAt = sending, sending, 0, now
			}
			said := schema.Kept{Run: 7, Series: k.series, Shards: 2, Ready: true, Begun: begun, TookMS: took.Milliseconds()}
			c.Kept(now, schema.ServerMember("a"), &said)
			said.Own, said.Next = []int{0, 1}, reports
			if k.whole == has {
				said.Version, said.Next = has, 0
			}
			c.Kept(now, schema.ServerMember("b"), &said)
			if now.Sub(begin)%TickEvery == 0 {
				c.replicate(c.replicas.tick(now, c.started))
			}
		}
		if oldest = max(oldest, begin.Add(lasts).Sub(wholeAt)); has == 0 || oldest > test.oldest {
			t.Errorf("%+v: the newest whole version is %v old at times, and %d is the last", test, oldest, has)
		}
	}
}

// A planned end hands over the next version at once, and one that failed elsewhere counts for nothing.
func TestHandOver(t *testing.T) {
	c, now := keepingCoordinator(t, 1, 2), time.Unix(1000, 0)
	c.Peers(now, somePeers(2))
	says := func(id string, k schema.Kept) []Decision {
		now = now.Add(time.Millisecond)
		k.Run, k.Series, k.Shards = 7, c.replicas.series, 2
		return c.Kept(now, schema.ServerMember(id), &k)
	}
	says("a", schema.Kept{Ready: true, Begun: 10, TookMS: 10_000})
	says("b", schema.Kept{Ready: true, Own: []int{0, 1}})
	first := c.replicas.at
	says("b", schema.Kept{Ready: true, Own: []int{0, 1}, Next: first})
	now = now.Add(time.Second)
	says("a", schema.Kept{Ready: true, Begun: 200, TookMS: 10_000})
	says("b", schema.Kept{Ready: true, Own: []int{0, 1}, Version: first})
	if far := c.replicas.at; far < 1000 {
		t.Fatalf("version %d follows %d, want one far off", far, first)
	}
	if c.HandOver(now); c.replicas.handedOver() || c.replicas.at > 210 {
		t.Errorf("version %d is handed over, handed over %v, at batch 200", c.replicas.at, c.replicas.handedOver())
	}
	last := c.replicas.at
	decisions := says("b", schema.Kept{Ready: true, Own: []int{0, 1}, Version: first, Next: last})
	if !c.replicas.handedOver() || len(decisions) == 0 || !decisions[0].Control.Keep.Last {
		t.Errorf("all of version %d has come, and it is not handed over: %+v", last, decisions)
	}
	if r := c.Replicas(now); !r.Ready || r.Version != last {
		t.Errorf("%+v, want version %d", r, last)
	}
	if says("b", schema.Kept{Own: []int{0, 1}, Failure: "no room"}); c.Replicas(now).Ready {
		t.Error("the replica of a ps that failed is ready")
	}
}
