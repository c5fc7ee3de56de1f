package metrics

import (
	"strings"
	"testing"

	"gradbus/schema"
)

// Shards that have ended tell of their buckets alone.
func TestEndedShards(t *testing.T) {
	c := everything(1, 1)
	c.own.Server.Ended = []schema.EndedShard{{Job: "ended", Run: 78, Shard: 1,
		Buckets: []schema.BucketReport{{Bucket: 2, Rounds: 4, StragglerSeconds: 2}}}}
	got := samples(t, c.exporter())
	wantSamples(t, got, map[string]float64{
		`gradbus_shard_bucket_straggler_seconds_count{bucket="2",job_name="ended",kind="dense",member="s1"}`: 4,
		`gradbus_shard_bucket_straggler_seconds_sum{bucket="2",job_name="ended",kind="dense",member="s1"}`:   2})
	for name := range got {
		if strings.Contains(name, `job_name="ended"`) && !strings.HasPrefix(name, "gradbus_shard_bucket_") {
			t.Errorf("%s is said of a shard that has ended", name)
		}
	}
}
