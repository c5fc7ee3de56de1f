package trainer

import (
	"fmt"
	"math"

	"gradbus/lane"
	"gradbus/schema"
)

// tables has the keys and rows of the embedding tables for one batch: the keys of the hosted lanes, the distinct ones,
// and their rows.
type tables struct {
	specs []schema.TableSpec
	used  [][]uint64  // [table] keys of all hosted lanes, lane by lane
	ends  [][]int     // [table][hosted lane] end of the lane's part of used
	sets  []keySet    // [table] distinct keys and local ids
	keys  [][]uint64  // [table] distinct keys, from sets
	rows  [][]float32 // [table] [U, dim], filled as answers arrive

	bags    [][]laneBags // [table][hosted lane] of tables with a pooling
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

// sumDims returns the number of values of a row's gradient in each table.
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

// collect appends the keys of one lane, hosted lane at.
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

// nameTo closes the keys of a table for the hosted lanes from *at up to but not including to, and sets *at to to.
func (t *tables) nameTo(table int, at *int, to int) {
	for ; *at < to; *at++ {
		t.ends[table][*at] = len(t.used[table])
	}
}

// closeNames closes the keys of all tables, and checks them against the samples of the lanes. lane is the lane of the
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

// find computes the distinct keys.
func (t *tables) find() error {
	for i := range t.sets {
		set, spec := &t.sets[i], &t.specs[i]
		if spec.Cut().PooledByShards() {
			if err := t.checkKeys(i); err != nil {
				return err
			}
			continue // shards find the distinct keys
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

// size sizes the rows of the distinct keys. Their values are undefined until they arrive.
func (t *tables) size() {
	for i := range t.rows {
		t.rows[i] = grown(t.rows[i], len(t.keys[i])*t.specs[i].Dim)
	}
	t.sizeBags()
}

// laneIDs returns the local ids of the keys of hosted lane at.
func (t *tables) laneIDs(table, at int) []int64 {
	before := 0
	if at > 0 {
		before = t.ends[table][at-1]
	}
	return t.sets[table].ids[before:t.ends[table][at]]
}

// keySet finds the distinct keys of one table over all hosted lanes. Its memory is reused, so its results are valid
// until the next call of find.
type keySet struct {
	keys []uint64 // distinct, ascending: local id i is keys[i]
	ids  []int64  // local id of each occurrence, in the order of the occurrences

	sorted, spare []occurrence
}

// occurrence is one use of a key, with its position before sorting.
type occurrence struct {
	key uint64
	at  uint32
}

// find sets keys to the distinct values of occurrences, ascending, and ids to the local id of each occurrence. Local
// ids are dense from 0 and in the order of the keys.
//
//	[]uint64{9, 4, 9} -> keys [4 9], ids [1 0 1]
func (s *keySet) find(occurrences []uint64) error {
	n := len(occurrences)
	if n > math.MaxUint32 {
		return fmt.Errorf("%d keys of one table in one batch: want at most %d", n, uint32(math.MaxUint32))
	}
	s.ids, s.keys = grown(s.ids, n), s.keys[:0]
	if n == 0 {
		return nil
	}
	if ascend(occurrences) { // as keys do that were made distinct before
		s.keys = append(s.keys, occurrences...)
		for i := range s.ids {
			s.ids[i] = int64(i)
		}
		return nil
	}
	s.sorted, s.spare = grown(s.sorted, n), grown(s.spare, n)
	s.sort(occurrences)
	local := int64(-1)
	for i, o := range s.sorted {
		if i == 0 || o.key != s.sorted[i-1].key {
			local++
			s.keys = append(s.keys, o.key)
		}
		s.ids[o.at] = local
	}
	return nil
}

// ascend reports whether keys are distinct, each above the one before it.
func ascend(keys []uint64) bool {
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return false
		}
	}
	return true
}

// sort is a radix sort by bytes, lowest first. It skips bytes in which all keys agree, so keys below 2^16 take two
// passes. 2,000 keys below 2^16 take 15 us, with a comparison sort 120 us.
func (s *keySet) sort(occurrences []uint64) {
	var counts [8][256]uint32
	for i, key := range occurrences {
		s.sorted[i] = occurrence{key, uint32(i)}
		for digit := range counts {
			counts[digit][byte(key>>(8*digit))]++
		}
	}
	for digit := range counts {
		count := &counts[digit]
		if count[byte(occurrences[0]>>(8*digit))] == uint32(len(occurrences)) {
			continue
		}
		var next uint32
		for i, n := range count {
			count[i] = next
			next += n
		}
		for _, o := range s.sorted {
			b := byte(o.key >> (8 * digit))
			s.spare[count[b]] = o
			count[b]++
		}
		s.sorted, s.spare = s.spare, s.sorted
	}
}

// grown returns a slice of n elements, which reuses the memory of s if it is large enough. The elements are undefined.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]T, n, n+n/4)
}
