package trainer

import (
	"fmt"

	"gradbus/lane"
	"gradbus/schema"
)

// tables holds what a trainer needs of the embedding tables for one batch: the keys of its lanes, the distinct ones,
// and their rows.
type tables struct {
	specs []schema.TableSpec
	used  [][]uint64  // [table] keys of all hosted lanes, lane after lane
	ends  [][]int     // [table][hosted lane] end of the lane's part of used
	sets  []keySet    // [table] distinct keys and local ids
	keys  [][]uint64  // [table] the distinct keys, of sets
	rows  [][]float32 // [table] [U, dim], filled as answers arrive

	bags    [][]laneBags // [table][hosted lane] of tables that have a pooling
	offsets [][]int64    // scratch of collectBags
}

func newTables(specs []schema.TableSpec, lanes int) *tables {
	t := &tables{specs: specs, used: make([][]uint64, len(specs)), ends: make([][]int, len(specs)),
		sets: make([]keySet, len(specs)), keys: make([][]uint64, len(specs)), rows: make([][]float32, len(specs))}
	for i := range t.ends {
		t.ends[i] = make([]int, lanes)
	}
	t.bags = make([][]laneBags, len(specs))
	for i := range specs {
		if specs[i].Pooling != "" {
			t.bags[i] = make([]laneBags, lanes)
		}
	}
	return t
}

func (t *tables) dims() []int {
	dims := make([]int, len(t.specs))
	for i, s := range t.specs {
		dims[i] = s.Dim
	}
	return dims
}

// sumDims are the values that gradients of rows have.
func (t *tables) sumDims() []int {
	dims := make([]int, len(t.specs))
	for i := range t.specs {
		dims[i] = t.specs[i].SumDim()
	}
	return dims
}

func (t *tables) reset() {
	for i := range t.used {
		t.used[i] = t.used[i][:0]
		for at := range t.bags[i] {
			t.bags[i][at].offsets = t.bags[i][at].offsets[:0]
		}
	}
}

// collect appends the keys of one lane, number at of the hosted ones.
func (t *tables) collect(w Workload, b schema.Batch, l lane.Lane, at int) (samples int, err error) {
	samples, out := w.Keys(b, l, t.used)
	if f, may := w.(interface{ fault() error }); may && f.fault() != nil {
		return 0, f.fault()
	}
	if samples < 0 {
		return 0, fmt.Errorf("%d samples: want how many the lane has, 0 for none", samples)
	}
	if len(out) != len(t.specs) {
		return 0, fmt.Errorf("keys of %d tables: the job has %d, and Keys returns as many slices as it is given", len(out),
			len(t.specs))
	}
	for table, keys := range out {
		before := 0
		if at > 0 {
			before = t.ends[table][at-1]
		}
		if len(keys) < before {
			return 0, fmt.Errorf("%d samples with %d keys of table %q: keys are appended", samples, len(keys)-before,
				t.specs[table].Name)
		}
		if samples == 0 && len(keys) != before {
			return 0, withoutSamples(&t.specs[table], len(keys)-before)
		}
		t.used[table], t.ends[table][at] = keys, len(keys)
	}
	return samples, t.collectBags(w, b, l, at, samples)
}

// nameTo closes the keys of a table for the lanes before hosted lane to; at is the one that is open.
func (t *tables) nameTo(table int, at *int, to int) {
	for ; *at < to; *at++ {
		t.ends[table][*at] = len(t.used[table])
	}
}

// closeNames closes the keys of all tables, and checks them against the samples of the lanes. lane is that of the
// error.
func (t *tables) closeNames(at, samples []int) (lane int, err error) {
	for table := range t.specs {
		t.nameTo(table, &at[table], len(samples))
		for i, n := range samples {
			if keys := len(t.laneKeys(table, i)); n == 0 && keys > 0 {
				return i, withoutSamples(&t.specs[table], keys)
			}
			if t.bags[table] == nil || n == 0 {
				continue
			}
			bags := &t.bags[table][i]
			if len(bags.offsets) == 0 && !t.specs[table].Cut().PooledByShards() {
				continue
			}
			if err := bags.set(bags.offsets, len(t.laneKeys(table, i))); err != nil {
				return i, fmt.Errorf("bags of table %q: %w", t.specs[table].Name, err)
			}
		}
	}
	return 0, nil
}

func withoutSamples(spec *schema.TableSpec, keys int) error {
	return fmt.Errorf("0 samples with %d keys of table %q: keys are appended, and a lane without samples has none",
		keys, spec.Name)
}

// find reduces the collected keys to distinct ones.
func (t *tables) find() error {
	for i := range t.sets {
		set, spec := &t.sets[i], &t.specs[i]
		if spec.Cut().PooledByShards() {
			if err := t.checkKeys(i); err != nil {
				return err
			}
			continue // what is distinct is for the shards to find
		}
		if err := set.find(t.used[i]); err != nil {
			return fmt.Errorf("table %q: %w", spec.Name, err)
		}
		t.keys[i] = set.keys
		if n := len(set.keys); n > 0 && set.keys[n-1] >= spec.Rows {
			return outside(spec, set.keys[n-1])
		}
	}
	return nil
}

// size makes room for the rows of the distinct keys. Their values are what they happen to be until they arrive.
func (t *tables) size() {
	for i := range t.rows {
		t.rows[i] = grown(t.rows[i], len(t.keys[i])*t.specs[i].Dim)
	}
	t.sizeBags()
}

// laneIDs are the local ids of the keys of hosted lane number at.
func (t *tables) laneIDs(table, at int) []int64 {
	before := 0
	if at > 0 {
		before = t.ends[table][at-1]
	}
	return t.sets[table].ids[before:t.ends[table][at]]
}
