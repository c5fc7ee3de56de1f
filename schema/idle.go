package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Idle says why a shard has nothing to do in the job; empty where it has chunks, rows or modules.
//
//	table embedding is whole on s0, dense chunks: 1, on other shards
func (p *Placement) Idle(shard int) string {
	has := func(c placedChunk) bool { return c.owner == shard }
	if p.HasRows(shard) || slices.ContainsFunc(p.chunks, has) {
		return ""
	}
	if t := p.trainers; t != nil && t != p && t.Idle(shard) == "" { // it is p where shards add up
		return ""
	}
	if slices.ContainsFunc(p.job.Modules, func(m ModuleSpec) bool { return m.Shard%p.Shards == shard }) {
		return ""
	}
	var why []string
	for i := range p.job.Tables {
		if p.Plan.Tables[i].Cut == CutNone {
			why = append(why, fmt.Sprintf("table %s is whole on %s", p.job.Tables[i].Name, ShardMember(p.homes[i])))
		}
	}
	const named = 2
	if n := len(why) - named; n > 0 {
		why = append(why[:named], fmt.Sprintf("so are %d others on theirs", n))
	}
	if n := len(p.chunks); n > 0 {
		why = append(why, fmt.Sprintf("dense chunks: %d, on other shards", n))
	}
	return Clip(strings.Join(why, ", "))
}

// BusyShards returns how many of a number of shards have something to do in the job.
func (j *Job) BusyShards(shards int) (n int) {
	plan := j.Plan()
	for i, t := range plan.Tables {
		if t.Reducer == ByShards && (t.Cut == CutRows || t.Cut == CutColumns && j.Tables[i].Dim >= shards) {
			return shards // each has rows, or columns
		}
	}
	if len(j.Modules) > 0 || !j.NeedsShards() {
		return shards
	}
	p := NewPlacement(j, shards)
	for i := range shards {
		if p.Idle(i) == "" {
			n++
		}
	}
	return n
}

// PartitionsOf returns how many partitions of a table a shard holds, or holds columns of.
func (p *Placement) PartitionsOf(t Table, shard int) (n int) {
	for part := range p.job.Tables[t].Partitions {
		if p.Holds(t, Partition(part), shard) {
			n++
		}
	}
	return n
}
