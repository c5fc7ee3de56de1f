package ps

import (
	"encoding/json"
	"slices"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
)

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
