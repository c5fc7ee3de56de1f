package metrics

import (
	"strconv"

	"gradbus/schema"
)

// writeBuckets puts the buckets of a shard on a sheet.
func (t *tables) writeBuckets(s *sheet, job schema.JobName, member string, buckets []schema.BucketReport) {
	for i := range buckets {
		b := &buckets[i]
		kind := "dense"
		if b.Sparse {
			kind = "sparse"
		}
		t.bucket.write(s, b, string(job), member, strconv.FormatUint(uint64(b.Bucket), 10), kind)
	}
}

// bucketTable tells of the buckets of shards that this ps keeps.
func bucketTable() table[*schema.BucketReport] {
	each := func(name, help string, of func(*schema.BucketReport) schema.Real) figure[*schema.BucketReport] {
		return summary("gradbus_shard_bucket_"+name+"_seconds", help, func(b *schema.BucketReport) (uint64, float64) {
			return b.Rounds, float64(of(b))
		})
	}
	return table[*schema.BucketReport]{[]string{"job_name", "member", "bucket", "kind"}, []figure[*schema.BucketReport]{
		each("straggler", "Time from the first trainer's whole gradient of the bucket to the last one's, of its rounds.",
			func(b *schema.BucketReport) schema.Real { return b.StragglerSeconds }),
		gauge("gradbus_shard_bucket_straggler_max_seconds", "The longest time between these gradients.",
			func(b *schema.BucketReport) float64 { return float64(b.StragglerMaxSeconds) }),
		each("batch", "Time from the first whole gradient of the bucket until all trainers were answered.",
			func(b *schema.BucketReport) schema.Real { return b.BatchSeconds }),
		gauge("gradbus_shard_bucket_batch_max_seconds", "The longest time until all were answered.",
			func(b *schema.BucketReport) float64 { return float64(b.BatchMaxSeconds) }),
		each("arrival", "Time in adding gradients of the bucket up as they came.",
			func(b *schema.BucketReport) schema.Real { return b.ArrivalSeconds }),
		each("average", "Time in what was left of the sum, and in the division; with the optimizer where the shard has it.",
			func(b *schema.BucketReport) schema.Real { return b.AverageSeconds }),
	}}
}
