package trainer

import (
	"testing"
	"time"

	"gradbus/ps"
	"gradbus/schema"
)

// Whatever a digest costs and a batch takes, versions are multiples of a power of two, and as seldom as they have to
// be.
func TestFingerprintsAreOfCommonVersions(t *testing.T) {
	for _, c := range []struct {
		batch, cost time.Duration
		step        schema.Version
	}{
		{time.Millisecond, time.Microsecond, 1024},
		{time.Millisecond, 8 * time.Millisecond, 8192},
		{3 * time.Second, time.Millisecond, 1},
		{100 * time.Millisecond, 0, 16},
	} {
		var f fingerprints
		at := time.Unix(1000, 0)
		for v := schema.Version(1); v < 100000; v++ {
			if at = at.Add(c.batch); f.due(v) {
				f.took(at, c.cost)
				f.keep(schema.ReplicaDigest{Version: v})
			}
		}
		if f.step != c.step {
			t.Errorf("batches of %v and digests of %v: every %d versions, want %d", c.batch, c.cost, f.step, c.step)
		}
		if len(f.digests) != schema.ReplicasMax {
			t.Errorf("%d digests are kept", len(f.digests))
		}
		for i, d := range f.digests {
			if d.Version%c.step != 0 || i > 0 && d.Version <= f.digests[i-1].Version {
				t.Errorf("digests %+v", f.digests)
			}
		}
	}
}

// Trainers that keep equal replicas tell of equal ones, however many they are; and of another where one was changed.
func TestReplicasAreTold(t *testing.T) {
	t.Parallel()
	digests := map[schema.Version]uint32{}
	for _, trainers := range []int{1, 2} {
		server, w := startWatched(t, ps.Config{Shards: 2})
		config := testConfig(t, server)
		config.TelemetryEvery = 10 * time.Millisecond
		for i, o := range trainAll(t, config, toyJob("replicas", trainers, 4, schema.ApplyMean), 6) {
			if o.err != nil {
				t.Fatal(o.err)
			}
			told := w.last(schema.TrainerMember(i), "a word at the end",
				func(p *schema.TrainerReport) bool { return p.Batches == 6 && p.Planned == 0 }).Replicas
			if len(told) == 0 || told[0].Version != 1 {
				t.Fatalf("trainer %d of %d tells of %+v", i, trainers, told)
			}
			for _, d := range told {
				if other, known := digests[d.Version]; known && other != d.Digest {
					t.Errorf("trainer %d of %d has %08x at version %d, others %08x", i, trainers, d.Digest, d.Version, other)
				}
				digests[d.Version] = d.Digest
			}
		}
	}
	if len(digests) < 2 {
		t.Errorf("digests of %d versions: want several", len(digests))
	}
	a, b := []float32{1, 2, 3}, []float32{1, 2, 3}
	b[2] = 3.0000002
	if schema.AddReplica(0, a) == schema.AddReplica(0, b) ||
		schema.AddReplica(schema.AddReplica(0, a[:1]), a[1:]) != schema.AddReplica(0, a) {
		t.Error("digests of different values are equal, or those of equal ones are not")
	}
}
