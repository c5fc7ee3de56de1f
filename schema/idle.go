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
	if p.owned[shard] > 0 || p.HasRows(shard) {
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
		switch t := &p.job.Tables[i]; p.Plan.Tables[i].Cut {
		case CutNone:
			why = append(why, fmt.Sprintf("table %s is whole on %s", t.Name, ShardMember(p.homes[i])))
		case CutColumns:
			why = append(why, fmt.Sprintf("table %s has fewer columns than there are shards", t.Name))
		}
	}
	const named = 2
	if n := len(why) - named; n > 0 {
		why = append(why[:named], fmt.Sprintf("and likewise %d other tables", n))
	}
	if n := len(p.chunks); n > 0 {
		why = append(why, fmt.Sprintf("dense chunks: %d, on other shards", n))
	}
	if len(why) == 0 {
		return "the job has nothing for it"
	}
	return Clip(strings.Join(why, ", "))
}

// BusyShards returns which of a number of shards have something to do in the job: those that Placement.Idle says
// nothing of. It takes no placement, and a time that depends on the length of the manifest and the number of shards
// alone, since it is asked of jobs for which there may be no room.
func (j *Job) BusyShards(shards int) []bool {
	plan, busy := j.Plan(), make([]bool, shards)
	asked := plan.Owner == ByTrainers && plan.Clock.Common() // for what trainers have: see OfTrainers
	if plan.Reducer == ByShards || asked {
		for i := range j.shardsWithChunks(plan, shards) {
			busy[i] = true
		}
	}
	homes := unplaced(j, plan, shards)
	homes.placeHomes()
	for t := range j.Tables {
		if plan.Tables[t].Reducer != ByShards && !asked {
			continue
		}
		if plan.Tables[t].Cut == CutNone {
			busy[homes.homes[t]] = true
			continue
		}
		if plan.Tables[t].Cut == CutRows || j.Tables[t].Dim >= shards {
			return slices.Repeat([]bool{true}, shards) // each has rows, or columns
		}
		for i := range busy {
			_, columns := homes.Columns(Table(t), i)
			busy[i] = busy[i] || columns > 0
		}
	}
	for _, m := range j.Modules {
		busy[m.Shard%shards] = true
	}
	return busy
}

// countedBuckets bounds the buckets whose chunks are spread to find out how many shards get any, besides one for each
// parameter. With a first bucket that is thousands of times as large as the others there may be more.
const countedBuckets = 1 << 14

// shardsWithChunks returns how many shards, the first ones, have dense chunks where shards add up; or more, where that
// many buckets are not counted. Each has some where all values are more than fit one chunk of every other shard: then
// one of these has more than the largest chunk when the last shard comes (spread).
func (j *Job) shardsWithChunks(plan *Plan, shards int) (n int) {
	p, all, owners := unplaced(j, plan, shards), 0, plan.DenseShards(shards)
	for _, parameter := range j.Parameters {
		all += parameter.Elements()
	}
	first, others := p.elementsMax(0), p.elementsMax(1)
	if all > min(p.chunkElements, max(first, others))*(owners-1) || all/min(first, others) > countedBuckets {
		return owners
	}
	p.placeParameters()
	for _, owner := range spread(p.chunkSizes(), owners) {
		n = max(n, owner+1)
	}
	return n
}

// PartitionsOf returns how many partitions of a table a shard holds, or holds columns of.
func (p *Placement) PartitionsOf(t Table, shard int) int {
	partitions := p.job.Tables[t].Partitions
	switch {
	case p.Plan.Tables[t].Cut.PooledByShards():
		if _, columns := p.Columns(t, shard); columns == 0 {
			return 0
		}
		return partitions
	case p.betweenTrainers(t):
		return 0
	}
	return (partitions + p.Shards - 1 - shard) / p.Shards // they go to the shards in turn
}
