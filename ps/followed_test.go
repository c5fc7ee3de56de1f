package ps

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// What a ps that stands by is answered fits a message however many jobs there are, and names first what it has.
func TestHeardFitsAMessage(t *testing.T) {
	l := &controlLoop{server: &Server{registry: &registry{}}, jobs: map[schema.JobName]*job{},
		follower: &follower{url: "nats://b:4222"}}
	for i := range schema.FollowMax + 9 {
		j := &job{manifest: shardtest.SmallJob(fmt.Sprintf("job-%04d", i), 1, 1), run: schema.RunID(i + 1),
			coordinator: &Coordinator{}}
		l.jobs[j.manifest.Name] = j
		if i > 8 {
			j.coordinator.copies.plan = []keepsShards{{}}
		}
	}
	h := l.heard()
	want := fmt.Sprintf("job-%04d", schema.FollowMax+8)
	if len(h.Jobs) != schema.FollowMax || !slices.Contains(h.Jobs, schema.JobName(want)) {
		t.Errorf("%d jobs; want %d, %s among them", len(h.Jobs), schema.FollowMax, want)
	}
	if _, err := schema.EncodeControl(schema.Head{}, schema.Control{Heard: h}); err != nil {
		t.Error(err)
	}
}
