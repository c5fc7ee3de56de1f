package trainer

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// journal keeps what shards say they did, each shard's in its order.
type journal struct {
	mu     sync.Mutex
	shards [][]shard.Journal
}

func (j *journal) note(_ schema.JobName, shard int, e shard.Journal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.shards[shard] = append(j.shards[shard], e)
}

// entries is what was noted so far, in a copy.
func (j *journal) entries() (shards [][]shard.Journal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.shards {
		shards = append(shards, slices.Clone(s))
	}
	return shards
}

// replay is a single process that does what shards and trainers did, in the order of the shards' journals: one copy of
// the tables for each shard, of which only the shard's part counts, and the dense part in step.
type replay struct {
	t            *testing.T
	job          *schema.Job
	place        *schema.Placement
	toy          *bagToy
	contributors []round.Contributor
	shards       []*oracle
	dense        *oracle

	parts map[string][]float32  // pooled rows of (shard, trainer, batch, lane, table), of the shard's columns
	grads map[string]*laneGrads // of (batch, lane)
	done  map[schema.Member]int // batches computed
}

// pooled notes what a lookup saw.
func (r *replay) lookup(shard int, e shard.Journal) {
	for _, h := range r.contributors {
		for l := h.First; h.Member == e.From && int(l) < int(h.First)+h.Count; l++ {
			all := r.toy.samples(e.Batch, l)
			tables := r.shards[shard].tables
			if r.parts[fmt.Sprint(shard, e.Batch, l, 0)] != nil {
				// asked again, because the answer was late: the trainer has taken the first, since answers keep their order
				continue
			}
			r.parts[fmt.Sprint(shard, e.Batch, l, 0)] = naiveBags(tables[0].rows, toyWordDim, false, all, wordsOf)
			r.parts[fmt.Sprint(shard, e.Batch, l, 1)] = naiveBags(tables[1].rows, toyTagDim, true, all, tagsOf)
		}
	}
}

// whole puts a lane's pooled rows together from all shards; nil while one is missing.
func (r *replay) whole(b schema.Batch, l lane.Lane, table, dim int) []float32 {
	samples := r.toy.samples(b, l)
	keys := 0
	for _, s := range samples {
		keys += len([][]uint64{s.words, s.tags}[table])
	}
	out := make([]float32, len(samples)*dim)
	for shard := range r.shards {
		first, n := r.place.Columns(schema.Table(table), shard)
		if n == 0 || keys == 0 {
			continue
		}
		part := r.parts[fmt.Sprint(shard, b, l, table)]
		if part == nil {
			return nil
		}
		for i := range samples {
			copy(out[i*dim+first:i*dim+first+n], part[i*dim+first:])
		}
	}
	return out
}

// compute computes a trainer's lanes of a batch, if everything that they saw is there.
func (r *replay) compute(b schema.Batch, h round.Contributor) bool {
	if r.done[h.Member] != int(b) || r.dense.batches != int(b) {
		return false
	}
	grads := map[string]*laneGrads{}
	for l := h.First; int(l) < int(h.First)+h.Count; l++ {
		words, tags := r.whole(b, l, 0, toyWordDim), r.whole(b, l, 1, toyTagDim)
		if words == nil || tags == nil {
			return false
		}
		g, _, _ := bagLane(r.dense.params, r.toy.samples(b, l), words, tags)
		grads[fmt.Sprint(b, l)] = g
	}
	for k, g := range grads {
		r.grads[k] = g
	}
	r.done[h.Member]++
	return true
}

// apply does what a shard did with a trainer's contribution; false where it cannot be known yet.
func (r *replay) apply(shard int, e shard.Journal) bool {
	at := slices.IndexFunc(r.contributors, func(h round.Contributor) bool { return h.Member == e.From })
	h := r.contributors[at]
	if r.done[h.Member] <= int(e.Batch) {
		return false
	}
	samples := 0
	mine := func(l lane.Lane) *laneGrads {
		if l < h.First || int(l) >= int(h.First)+h.Count {
			return nil
		}
		return r.grads[fmt.Sprint(e.Batch, l)]
	}
	for l := h.First; int(l) < int(h.First)+h.Count; l++ {
		samples += len(r.toy.samples(e.Batch, l))
	}
	if samples > 0 {
		r.shards[shard].applyRows(mine, float32(samples))
	}
	return true
}

// dense takes a step of the dense part when every trainer has computed its batch.
func (r *replay) step() {
	b := r.dense.batches
	for _, h := range r.contributors {
		if r.done[h.Member] <= b {
			return
		}
	}
	samples := 0
	for l := range r.job.Lanes {
		samples += len(r.toy.samples(schema.Batch(b), lane.Lane(l)))
	}
	if samples > 0 {
		r.dense.applyParams(func(l lane.Lane) *laneGrads { return r.grads[fmt.Sprint(b, l)] }, float32(samples))
	}
	r.dense.batches++
}

func (r *replay) run(shards [][]shard.Journal, batches int) {
	next := make([]int, len(shards))
	for moved := true; moved; {
		moved = false
		for b := range batches {
			for _, h := range r.contributors {
				moved = r.compute(schema.Batch(b), h) || moved
			}
		}
		r.step()
		for shard, entries := range shards {
			for next[shard] < len(entries) {
				e := entries[next[shard]]
				if e.Kind == schema.KindLookup {
					r.lookup(shard, e)
				} else if !r.apply(shard, e) {
					break
				}
				next[shard]++
				moved = true
			}
		}
	}
	for shard, entries := range shards {
		if next[shard] != len(entries) || r.dense.batches != batches {
			r.t.Fatalf("the replay stops at entry %d of %d of s%d, %v, with %d of %d batches", next[shard], len(entries), shard,
				entries[next[shard]:min(next[shard]+1, len(entries))], r.dense.batches, batches)
		}
	}
}

// rows are the shards' parts of a table put together.
func (r *replay) rows(table, dim int) (all []float32) {
	for key := range r.job.Tables[table].Rows {
		row := make([]float32, dim)
		for shard, o := range r.shards {
			first, n := r.place.Columns(schema.Table(table), shard)
			copy(row[first:first+n], o.tables[table].rows[key][first:])
		}
		all = append(all, row...)
	}
	return all
}

// Where each trainer's gradients of tables are applied when they arrive, a replay of what the shards wrote down, in its
// order, has the same weights: dense ones in step, rows divided by the trainer's own samples alone.
func TestAsyncTablesAgainstReplay(t *testing.T) {
	const lanes, batches = 6, 9
	for _, placement := range []string{schema.PlacementColumns, schema.PlacementTables} {
		for _, trainers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d trainers", placement, trainers), func(t *testing.T) {
				const shards = 2
				j := &journal{shards: make([][]shard.Journal, shards)}
				server, err := ps.Start(testContext(t), ps.Config{Shards: shards},
					ps.Options{Backend: testBackend(t), Journal: j.note})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(server.Close)
				job := bagJob("alone", placement, trainers, lanes)
				job.TableConsistency = schema.ConsistencyAsync
				sessions := joinAll(t, testConfig(t, server), job)
				for i, err := range runAll(testContext(t), sessions, &bagToy{toy: newToy(t, job)}, batches) {
					if err != nil {
						t.Fatalf("t%d: %v", i, err)
					}
				}
				r := &replay{t: t, job: job, place: schema.NewPlacement(job, shards), toy: &bagToy{toy: newToy(t, job)},
					contributors: round.ContributorsOf(job),
					dense:        newOracle(t, job), parts: map[string][]float32{}, grads: map[string]*laneGrads{},
					done: map[schema.Member]int{}}
				for range shards {
					r.shards = append(r.shards, newOracle(t, job))
				}
				noted, applied := j.entries(), 0
				for _, entries := range noted {
					for _, e := range entries {
						if e.Kind == schema.KindSparse {
							applied++
						}
					}
				}
				if applied != shards*trainers*batches && placement == schema.PlacementColumns {
					t.Errorf("%d contributions were applied, want %d", applied, shards*trainers*batches)
				}
				r.run(noted, batches)
				for i := range job.Tables {
					dim := job.Tables[i].Dim
					want := r.rows(i, dim)
					err := sessions[0].Table(testContext(t), schema.Table(i),
						func(_ schema.Partition, keys []uint64, rows []float32) error {
							for k, key := range keys {
								if !slices.Equal(rows[k*dim:(k+1)*dim], want[int(key)*dim:(int(key)+1)*dim]) {
									return fmt.Errorf("row %d is %v, want %v", key, rows[k*dim:(k+1)*dim], want[int(key)*dim:(int(key)+1)*dim])
								}
							}
							return nil
						})
					if err != nil {
						t.Errorf("table %d: %v", i, err)
					}
				}
				for _, s := range sessions {
					for i, p := range job.Parameters {
						if !slices.Equal(s.Param(p.Name), r.dense.params[i]) {
							t.Errorf("%s: parameter %s differs from the replay's", s.Member(), p.Name)
						}
					}
				}
			})
		}
	}
}
