package ps

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"gradbus/checkpoint"
	"gradbus/schema"
)

// The choice is the newest version of which all shards are offered, of replicas and of the folder.
func TestChooseOffer(t *testing.T) {
	replica := func(run schema.RunID, version, next schema.Version, held ...int) schema.Kept {
		return schema.Kept{Run: run, Shards: 3, Own: held, Version: version, Next: next}
	}
	later := replica(8, 3, 0, 0, 1, 2)
	later.Runs = []schema.RunID{7}
	informed := replica(7, 4, 0, 0, 1, 2)
	informed.LR = []schema.LRChange{{}}
	saved := func(epoch uint64, run schema.RunID, version schema.Version, err error) offer {
		return offer{run: run, version: version, id: checkpoint.ID{Epoch: epoch, Run: run, Version: version}, err: err}
	}
	earlier := saved(2, 8, 3, nil)
	earlier.runs = []schema.RunID{7}
	damaged := fmt.Errorf("part 0: %w", checkpoint.ErrDamaged)
	all := func(version schema.Version) []schema.Kept { return []schema.Kept{replica(7, version, 0, 0, 1, 2)} }
	for _, c := range []struct {
		name     string
		replicas []schema.Kept
		saved    []offer
		want     string
	}{
		{"nothing", []schema.Kept{{Run: 7}}, nil, "no complete version is offered"},
		{"a shard is missing", []schema.Kept{replica(7, 4, 0, 0, 1), replica(7, 4, 0, 1)}, nil,
			"no complete version is offered; replica of version 4: shard s2 is missing; replica of version 4: shard s2 is missing"},
		{"each once", []schema.Kept{replica(7, 4, 0, 0, 2), replica(7, 4, 0, 1)}, nil, "run 7 version 4 [[0 2] [1]]"},
		{"some twice", []schema.Kept{replica(7, 4, 0, 0, 1, 2), replica(7, 4, 0, 1, 2)}, nil, "run 7 version 4 [[0 2] [1]]"},
		{"one knows of a later one", []schema.Kept{replica(7, 4, 6, 0, 1), replica(7, 6, 0, 1, 2)}, nil,
			"run 7 version 6 [[0 1] [2]]"},
		{"none does", []schema.Kept{replica(7, 4, 6, 0, 1), replica(7, 4, 6, 1, 2)}, nil, "run 7 version 4 [[0 1] [2]]"},
		{"no version is complete", []schema.Kept{replica(7, 4, 0, 0, 1), replica(7, 5, 0, 1, 2)}, nil,
			"no complete version is offered; replica of version 4: shard s2 is missing; replica of version 5: shard s0 is missing"},
		{"two runs", []schema.Kept{replica(7, 4, 0, 0, 1), replica(9, 4, 0, 2)}, nil, "no complete version is offered; " +
			"replica of version 4: shard s2 is missing; replica of version 4: shard s0 is missing"},
		{"a run that continues the other", []schema.Kept{replica(7, 9, 0, 0, 1, 2), later}, nil, "run 8 version 3 [[0 1 2]]"},
		{"one knows a learning rate", append(all(4), informed), nil, "run 7 version 4 [[0 2] [1]] 1 changes"},
		{"the folder is newer", all(4), []offer{saved(1, 7, 6, nil)}, "run 7 version 6 saved"},
		{"the folder is older", all(4), []offer{saved(1, 7, 2, nil)}, "run 7 version 4 [[0 1 2]]"},
		{"the folder is as new", all(4), []offer{saved(1, 7, 4, nil)}, "run 7 version 4 [[0 1 2]]"},
		{"the folder has a later run", all(4), []offer{earlier}, "run 8 version 3 saved"},
		{"a damaged one is newest", all(4), []offer{saved(1, 7, 6, damaged), saved(1, 7, 5, nil)}, "run 7 version 5 saved"},
		{"others than the damaged are replicas", all(4), []offer{saved(1, 7, 6, damaged)}, "run 7 version 4 [[0 1 2]]"},
		{"all are damaged", nil, []offer{saved(1, 7, 6, damaged)},
			"no complete version is offered; " + damaged.Error()},
		{"other settings", nil, []offer{saved(2, 7, 1, checkpoint.ErrOther), saved(1, 5, 9, nil)}, "checkpoint of another job"},
		{"other settings are older", nil, []offer{saved(2, 7, 1, nil), saved(1, 5, 9, checkpoint.ErrOther)},
			"run 7 version 1 saved"},
	} {
		var offers []offer
		for i, said := range c.replicas {
			said.Server = string(rune('a' + i))
			offers = append(offers, replicaOffers(&said)...)
		}
		choose := func(offers []offer) string {
			v, err := chooseOffer(offers)
			if err != nil {
				if errors.Is(err, errNoOffer) != (v == nil) {
					t.Errorf("%s: %v, %v", c.name, v, err)
				}
				return err.Error()
			}
			got := fmt.Sprintf("run %d version %d", v.run, v.version)
			if !v.isReplica() {
				return got + " saved"
			}
			var held [][]int
			for _, h := range v.holders {
				held = append(held, h.held)
			}
			if got = fmt.Sprintf("%s %v", got, held); len(v.lr) > 0 {
				got = fmt.Sprintf("%s %d changes", got, len(v.lr))
			}
			return got
		}
		if got := choose(slices.Concat(offers, c.saved)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The id of what a job begins with is read as it was written, and no other is one.
func TestReplicaID(t *testing.T) {
	o := offer{run: 1<<64 - 3, version: 17}
	if run, at, ok := parseReplicaID(o.resumeID()); run != o.run || at != 17 || !ok {
		t.Errorf("%s is read as version %d of run %d: %v", o.resumeID(), at, run, ok)
	}
	for _, id := range []string{"", "kept-", "kept-5", "kept-x-1", "kept-5-x", "0000000001-5-17"} {
		if _, _, ok := parseReplicaID(id); ok {
			t.Errorf("%q is the id of a replica", id)
		}
	}
}
