package trainer

import (
	"fmt"

	"gradbus/schema"
)

// Bags of tables that shards pool, among what LookupInto asks for.

// BagKeysMax is how many keys a bag may have of a table that shards pool: they go to a shard in one frame.
const BagKeysMax = schema.FrameBytesMax / 16

// bags are how many pooled rows the answer has.
func (a *RowsInto) bags() int {
	if a.Bags == nil {
		return len(a.Keys)
	}
	return len(a.Bags) - 1
}

// end is where the bags before bag i end among the keys.
func (a *RowsInto) end(i int) int {
	if a.Bags == nil {
		return i
	}
	return int(a.Bags[i])
}

// checkBags checks an ask for bags. spec is that of its table, which shards pool.
func (a *RowsInto) checkBags(spec *schema.TableSpec) error {
	bags := a.bags()
	if bags < 0 || a.end(0) != 0 || a.end(bags) != len(a.Keys) {
		return fmt.Errorf("%w: table %q: %d offsets: want one more than bags, from 0 to %d, the number of keys", ErrAsk,
			spec.Name, len(a.Bags), len(a.Keys))
	}
	for i := range bags {
		if a.end(i+1) < a.end(i) {
			return fmt.Errorf("%w: table %q: offset %d after %d: want offsets that do not fall", ErrAsk, spec.Name,
				a.end(i+1), a.end(i))
		}
		if n := a.end(i+1) - a.end(i); n > BagKeysMax {
			return fmt.Errorf("%w: table %q: bag %d of %d keys: want at most %d", ErrAsk, spec.Name, i, n, BagKeysMax)
		}
	}
	if len(a.Rows) != bags*spec.Dim {
		return fmt.Errorf("%w: table %q: room for %d values: want %d bags of %d", ErrAsk, spec.Name, len(a.Rows),
			bags, spec.Dim)
	}
	for _, key := range a.Keys {
		if key >= spec.Rows {
			return fmt.Errorf("%w: %w", ErrAsk, outside(spec, key))
		}
	}
	return nil
}

// addBags takes bags of an ask from a place on, which it moves, as long as there is room for values; it takes one where
// some has to be taken. A key is as long as two values.
func (e *evaluation) addBags(a *RowsInto, at *place, room int, some bool) (values int) {
	t, dim := e.tables, e.tables.specs[a.Table].Dim
	first, n := at.key, a.bags()
	b := &t.bags[a.Table][0]
	b.offsets, b.full = append(b.offsets[:0], 0), b.full[:0]
	for ; at.key < n; at.key++ {
		keys := a.end(at.key+1) - a.end(at.key)
		more := dim + 2*keys
		if values+more > room && !(some && values == 0) {
			break
		}
		if keys > 0 {
			b.full = append(b.full, int32(at.key-first))
		}
		values += more
		b.offsets = append(b.offsets, int64(a.end(at.key+1)-a.end(first)))
	}
	b.pooled = a.Rows[first*dim : at.key*dim]
	b.clearEmpty(dim)
	t.used[a.Table] = a.Keys[a.end(first):a.end(at.key)]
	t.ends[a.Table][0] = len(t.used[a.Table])
	return values
}

// forgetBags lets go of the memory of asks for bags.
func (t *tables) forgetBags() {
	for i := range t.bags {
		if t.bags[i] == nil || !t.specs[i].Cut().PooledByShards() {
			continue
		}
		b := &t.bags[i][0]
		t.used[i], t.ends[i][0], b.pooled, b.offsets, b.full = nil, 0, nil, b.offsets[:0], b.full[:0]
	}
}
