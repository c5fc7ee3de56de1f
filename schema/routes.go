package schema

// Where gradients go is said for dense ones and for each replicated table on its own, so that either may be added up by
// shards or between trainers (Job.Reduce, TableSpec.Reduce). Tables that shards keep are added up by them.

// ReduceOf is who adds up the gradients of a table: ReduceShards or ReduceTrainers.
func (j *Job) ReduceOf(t Table) string {
	spec := &j.Tables[t]
	switch {
	case !spec.Replicated:
		return ReduceShards
	case spec.Reduce != "":
		return spec.Reduce
	case j.Reduce != "":
		return j.Reduce
	}
	return ReduceShards
}

// OnShards reports whether the job has anything for shards to do: they host modules, or add up dense gradients or those of
// a table.
func (j *Job) OnShards() bool {
	return j.Reduce != ReduceTrainers || len(j.Modules) > 0 || j.tableReduces(ReduceShards)
}

// BetweenTrainers reports whether trainers add up anything among themselves: each of them then has a data server.
func (j *Job) BetweenTrainers() bool {
	return j.Reduce == ReduceTrainers || j.tableReduces(ReduceTrainers)
}

func (j *Job) tableReduces(how string) bool {
	for i := range j.Tables {
		if j.ReduceOf(Table(i)) == how {
			return true
		}
	}
	return false
}

// normalRoutes leaves out what says the default; j has its tables to itself. Fields that a manifest was given after others are absent
// where they say nothing, so that manifests without them stay what they were.
func (j *Job) normalRoutes() {
	if j.Sum == SumArrival {
		j.Sum = ""
	}
	if j.FirstBucketBytes == firstBucketBytesMax {
		j.FirstBucketBytes = 0
	}
	if j.BucketBytes == bucketBytesMax {
		j.BucketBytes = 0
	}
	for i := range j.Tables {
		if t := &j.Tables[i]; t.Reduce == j.Reduce || t.Reduce == ReduceShards && !t.Replicated {
			t.Reduce = ""
		}
	}
}

// Bounds of Job.FirstBucketBytes and BucketBytes, where they are given.
const (
	BucketBytesMin = 4 << 10
	BucketBytesMax = 1 << 30
)

// routes checks what a manifest says of ways, sums and buckets.
func (c *jobCheck) routes(j *Job) {
	if j.Sum != "" {
		c.oneOf("sum", j.Sum, SumArrival, SumClose)
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
