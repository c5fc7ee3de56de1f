package schema

import "slices"

// Bounds of Job.FirstBucketBytes and BucketBytes, where they are given.
const (
	BucketBytesMin = 4 << 10
	BucketBytesMax = 1 << 30
)

// pooling checks what placement and pooling of a table ask of each other and of the job.
func (c *jobCheck) pooling(j *Job, field string, t *TableSpec) {
	if t.Placement != "" {
		c.oneOf(field+".placement", t.Placement, PlacementRows, PlacementColumns, PlacementTables)
	}
	if t.Pooling != "" || t.Cut().PooledByShards() {
		c.oneOf(field+".pooling", t.Pooling, PoolingSum, PoolingMean)
	}
	if t.Replicated && t.Cut().PooledByShards() {
		c.add(field+".placement", t.Placement, "%s where every trainer keeps the table", PlacementRows)
	}
	if t.Replicated && j.TableConsistency == ConsistencyAsync {
		c.add(field+".replicated", t.Replicated, "false where table_consistency is %s", ConsistencyAsync)
	}
	if t.Cut().PooledByShards() && j.Consistency != ConsistencySync {
		c.add(field+".placement", t.Placement, "consistency %s with it", ConsistencySync)
	}
}

// tableConsistency checks how tables are kept beside dense parameters.
func (c *jobCheck) tableConsistency(j *Job) {
	if j.TableConsistency == "" {
		return
	}
	c.oneOf("table_consistency", j.TableConsistency, ConsistencySync, ConsistencyAsync)
	if j.TableConsistency == ConsistencyAsync && (j.Consistency != ConsistencySync || j.Reduce != ReduceTrainers) {
		c.add("table_consistency", j.TableConsistency, "consistency %s and reduce %s with it", ConsistencySync,
			ReduceTrainers)
	}
	if j.TableConsistency != ConsistencyAsync && j.Consistency != ConsistencySync {
		c.add("table_consistency", j.TableConsistency, "left out: it is that of the job, %s", j.Consistency)
	}
}

// routes checks what a manifest says of ways, sums and buckets.
func (c *jobCheck) routes(j *Job) {
	c.sum(j)
	if j.OnNonfinite != "" {
		c.oneOf("on_nonfinite", j.OnNonfinite, NonfiniteFail, NonfiniteSkip)
	}
	for _, b := range []struct {
		field string
		value int
	}{{"first_bucket_bytes", j.FirstBucketBytes}, {"bucket_bytes", j.BucketBytes}} {
		if b.value != 0 && c.between(b.field, b.value, BucketBytesMin, BucketBytesMax) && b.value%valueBytes != 0 {
			c.add(b.field, b.value, "a multiple of %d", valueBytes)
		}
	}
}

// sum checks when contributions are added up.
func (c *jobCheck) sum(j *Job) {
	if j.Sum == "" {
		return
	}
	c.oneOf("sum", j.Sum, SumFused, SumClose)
	byShards := func(t TableSpec) bool {
		return t.Replicated && (t.Reduce == ReduceShards || t.Reduce == "" && j.Reduce != ReduceTrainers)
	}
	if j.Sum == SumClose && (j.Apply != ApplyMean || j.Consistency != ConsistencySync ||
		!(len(j.Parameters) > 0 && j.Reduce != ReduceTrainers) && !slices.ContainsFunc(j.Tables, byShards)) {
		c.add("sum", j.Sum, "%s, or parameters or a replicated table that shards add up, in consistency %s with apply %s",
			SumFused, ConsistencySync, ApplyMean)
	}
}

// tableRoute checks who adds a table up.
func (c *jobCheck) tableRoute(field string, t *TableSpec) {
	if t.Reduce == "" {
		return
	}
	c.oneOf(field+".reduce", t.Reduce, ReduceShards, ReduceTrainers)
	if !t.Replicated && t.Reduce == ReduceTrainers {
		c.add(field+".reduce", t.Reduce, "%q, or replicated with it: shards add up what they keep", ReduceShards)
	}
}
