package trainer

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"gradbus/fabric"
	"gradbus/internal/safetensors"
	"gradbus/schema"
)

// evaluationValuesMax bounds the values of one round of lookups outside a batch: 16 MiB of float32.
const evaluationValuesMax = 4 << 20

// reader reads rows, tables, digests and models between batches. The caller first waits for the version.
type reader struct {
	*connection
	exchange *exchanging
	results  *results
	params   *parameters
	replicas *replicas
	modules  *modules

	eval *evaluation // nil until the first lookup
}

// evaluation is the state of Lookup and LookupInto, reused from call to call.
type evaluation struct {
	tables  *tables
	lookups *lookups

	at    place // position in the queries of LookupInto up to which rows were requested
	asked bool  // a request is open
}

func (r *reader) evaluating() *evaluation {
	if r.eval == nil {
		t := newTables(r.job.Tables, 1)
		routing := r.newRouting(t.dims(), r.replicas.replicated())
		r.eval = &evaluation{tables: t, lookups: newLookups(routing, t, r.place, r.exchange, rowsAsked)}
		r.eval.lookups.over, r.eval.lookups.replicas = r.results.roundOver, r.replicas
	}
	return r.eval
}

// release ends the use of the caller's memory.
func (e *evaluation) release() {
	e.lookups.close(rowsAsked)
	e.forget()
	e.at, e.asked = place{}, false
}

// Lookup is Session.Lookup in this run.
func (r *reader) Lookup(ctx context.Context, queries []Query) ([][]float32, error) {
	out := make([][]float32, len(queries))
	for i, query := range queries {
		if int(query.Table) >= len(r.job.Tables) {
			return nil, fmt.Errorf("lookup: table %d: the job has %d", query.Table, len(r.job.Tables))
		}
		dim := r.job.Tables[query.Table].Dim
		out[i] = make([]float32, len(query.Keys)*dim)
		to := out[i]
		for keys := range slices.Chunk(query.Keys, max(1, evaluationValuesMax/dim)) {
			if err := r.lookup(ctx, query.Table, keys, to); err != nil {
				return nil, fmt.Errorf("lookup of %d keys at version %d: %w", len(query.Keys), r.Version(), err)
			}
			to = to[len(keys)*dim:]
		}
	}
	return out, nil
}

// lookup looks up the distinct keys, or, in a table that shards pool, a bag for each key.
func (r *reader) lookup(ctx context.Context, table schema.Table, keys []uint64, out []float32) error {
	spec := &r.job.Tables[table]
	if pooledByShards(*spec) {
		into := Query{Table: table, Keys: keys, Rows: out[:len(keys)*spec.Dim]}
		if err := r.checkInto(&into); err != nil {
			return err
		}
		return r.lookRows(ctx, into)
	}
	unique, ids, dim := make([]uint64, len(keys)), make([]int64, len(keys)), spec.Dim
	n, err := r.Distinct(table, keys, unique, ids)
	if err != nil {
		return err
	}
	rows := make([]float32, n*dim)
	if err := r.lookRows(ctx, Query{Table: table, Keys: unique[:n], Rows: rows}); err != nil {
		return err
	}
	for i, id := range ids {
		copy(out[i*dim:(i+1)*dim], rows[int(id)*dim:])
	}
	return nil
}

// Table is Session.Table in this run.
func (r *reader) Table(ctx context.Context, table schema.Table, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	if int(table) >= len(r.job.Tables) {
		return fmt.Errorf("scan table %d: the job has %d", table, len(r.job.Tables))
	}
	if r.job.Tables[table].Replicated {
		return r.replicas.scan(table, r.job.ChunkBytes/4, yield)
	}
	spec := &r.job.Tables[table]
	scan, err := newScan(r.head(r.newest()), table, spec, r.job.ChunkBytes/4)
	if err != nil {
		return err
	}
	defer r.exchange.close(rowsScanned)
	ctx, stop := r.readable(ctx)
	defer stop()
	came := uint64(0)
	counted := func(p schema.Partition, keys []uint64, rows []float32) error {
		came += uint64(len(keys))
		return yield(p, keys, rows)
	}
	for p := range spec.Partitions {
		if err := r.scanPartition(ctx, scan, schema.Partition(p), counted); err != nil {
			return fmt.Errorf("scan table %q partition %d at version %d: %w", spec.Name, p, r.Version(), err)
		}
	}
	if came != spec.Rows {
		return fmt.Errorf("scan table %q at version %d: %d rows came of its %d", spec.Name, r.Version(), came, spec.Rows)
	}
	return nil
}

// scanFrom requests rows of a partition from key cursor on, and waits for them.
func (r *reader) scanFrom(ctx context.Context, scan *scan, shard int, p schema.Partition, cursor uint64) error {
	r.exchange.close(rowsScanned) // if the last answer was refused
	number := r.exchange.number(1)
	scan.ask(shard, p, cursor, number)
	r.exchange.ask(rowsScanned, scan, number, []int{shard}, r.since(), true)
	if err := scan.send(r.connection, 0); err != nil {
		return err
	}
	if err := r.exchange.awaitAnswers(ctx, rowsScanned); err != nil {
		return err
	}
	if len(scan.answer.Keys()) == 0 && scan.answer.Head().Flags&schema.FlagMore != 0 {
		return fmt.Errorf("no rows from key %d on, and more to follow", cursor)
	}
	return nil
}

// scan reads a table piece by piece, one request at a time.
type scan struct {
	head    schema.Head
	spec    *schema.TableSpec
	section schema.Section
	request *schema.Frame
	sealed  []byte

	asked  schema.Head // head of the open request
	cursor uint64      // key from which on it requests rows
	shard  int
	answer schema.View
}

func newScan(head schema.Head, table schema.Table, spec *schema.TableSpec, valuesMax int) (*scan, error) {
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	if err != nil {
		return nil, err
	}
	return &scan{head: head, spec: spec, request: f,
		section: schema.Section{Table: table, Dim: uint32(spec.Dim), Count: uint64(max(1, valuesMax/spec.Dim))}}, nil
}

// ask writes a request for rows of a partition from key cursor on.
func (c *scan) ask(shard int, p schema.Partition, cursor uint64, number schema.Sequence) {
	c.asked, c.shard, c.cursor = c.head, shard, cursor
	c.asked.Bucket, c.asked.Sequence = schema.Bucket(p), number
	c.request.SetHead(c.asked)
	c.request.SetSection(0, c.section)
	c.request.Keys()[0] = cursor
	c.sealed = c.request.Seal()
}

// send sends the request.
func (c *scan) send(to *connection, _ int) error {
	link := to.links[c.shard]
	return link.publish(to.subject(fabric.KindPull, link.member), c.sealed)
}

// take stores the answer. It fails on an answer that no correct shard sends.
func (c *scan) take(_ int, v *schema.View) (retained bool, err error) {
	h := v.Head()
	if err := c.check(&h, v); err != nil {
		return false, fmt.Errorf("rows of version %d partition %d from %s: %w", h.Batch, h.Bucket,
			schema.ShardMember(c.shard), err)
	}
	c.answer = *v
	return true, nil
}

// check compares an answer with the request. The ascending order of its keys has been verified before.
func (c *scan) check(h *schema.Head, v *schema.View) error {
	if h.Batch != c.asked.Batch || h.Bucket != c.asked.Bucket {
		return fmt.Errorf("want version %d partition %d", c.asked.Batch, c.asked.Bucket)
	}
	if got := v.Sections(); len(got) != 1 || got[0].Table != c.section.Table || got[0].Dim != c.section.Dim ||
		got[0].Count > c.section.Count {
		return fmt.Errorf("sections %v, want one of table %d with dim %d and at most %d rows", got, c.section.Table,
			c.section.Dim, c.section.Count)
	}
	for _, key := range v.Keys() {
		if key < c.cursor || key >= c.spec.Rows || schema.PartitionOf(key, c.spec.Partitions) != schema.Partition(h.Bucket) {
			return fmt.Errorf("key %d: want keys of that partition from %d on", key, c.cursor)
		}
	}
	return nil
}

// Digest is Session.Digest in this run.
func (r *reader) Digest(ctx context.Context) ([32]byte, error) {
	d := schema.NewWeightsDigest(r.job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			err = r.Table(ctx, schema.Table(t.Index), d.Rows)
		} else {
			err = d.Values(r.params.named(t.Name))
		}
		if err != nil {
			return [32]byte{}, fmt.Errorf("digest of weights: %w", err)
		}
	}
	return d.Sum()
}

// columns are the columns of a table on one shard.
type columns struct{ shard, first, count int }

// piecesOf lists which shard has which columns of a partition.
func (r *reader) piecesOf(t schema.Table, p schema.Partition) (all []columns) {
	if r.place.Plan.Tables[t].Cut != schema.CutColumns {
		return []columns{{r.place.OwnerOfPartition(t, p), 0, r.job.Tables[t].Dim}}
	}
	for shard := range r.place.Shards {
		if first, n := r.place.Columns(t, shard); n > 0 {
			all = append(all, columns{shard, first, n})
		}
	}
	return all
}

// scanPartition calls yield with the rows of a partition. It joins the columns of a table that is cut by columns.
func (r *reader) scanPartition(ctx context.Context, scan *scan, p schema.Partition,
	yield func(schema.Partition, []uint64, []float32) error) error {
	dim, pieces := r.job.Tables[scan.section.Table].Dim, r.piecesOf(scan.section.Table, p)
	var keys []uint64
	var rows []float32
	for cursor, more := uint64(0), true; more; {
		for i, c := range pieces {
			scan.section.Dim = uint32(c.count)
			if err := r.scanFrom(ctx, scan, c.shard, p, cursor); err != nil {
				return err
			}
			got, values := scan.answer.Keys(), scan.answer.Float32s()
			if i == 0 {
				more = scan.answer.Head().Flags&schema.FlagMore != 0
			}
			switch {
			case len(pieces) == 1:
				keys, rows = got, values
				continue
			case i == 0:
				keys, rows = append(keys[:0], got...), grown(rows, len(got)*dim)
			case !slices.Equal(got, keys):
				return fmt.Errorf("%d keys from %s, and %d others from %s", len(got), schema.ShardMember(c.shard), len(keys),
					schema.ShardMember(pieces[0].shard))
			}
			for k := range got {
				copy(rows[k*dim+c.first:k*dim+c.first+c.count], values[k*c.count:])
			}
		}
		if len(keys) == 0 {
			return nil
		}
		if err := yield(p, keys, rows); err != nil {
			return err
		}
		cursor = keys[len(keys)-1] + 1
	}
	return nil
}

// Query has the keys of one table to look up. Lookup reads only Table and Keys, which may have any order and
// repetitions. LookupInto requires distinct, ascending Keys and writes their rows to Rows, [len(Keys), dim] row-major.
//
// If shards pool the table, Keys of LookupInto are the keys of bags, in any order, with repetitions. Bag i has
// Keys[Bags[i]:Bags[i+1]], and Rows, [len(Bags)-1, dim], receives the pooled rows, zeros for an empty bag. Without Bags
// each key is a bag. Bags of other tables must be nil.
type Query struct {
	Table schema.Table
	Keys  []uint64
	Rows  []float32 // memory for the result of LookupInto
	Bags  []int64   // offsets of bags in Keys; nil: each key is a bag
}

// lookRows looks up one query at the current version.
func (r *reader) lookRows(ctx context.Context, query Query) error {
	defer r.evaluating().release() // also where it panics
	both, stop := r.readable(ctx)
	defer stop()
	if err := r.Err(); err != nil {
		return err
	}
	return r.lookupInto(both, r.newest(), []Query{query})
}

// lookupInto looks up what was not requested ahead, for batch b, one round after another.
func (r *reader) lookupInto(ctx context.Context, b schema.Batch, queries []Query) error {
	for e := r.evaluating(); ; e.asked = false {
		if !e.asked && e.at.query == len(queries) {
			return nil
		}
		if !e.asked {
			if e.forget(); e.add(queries, &e.at) == 0 {
				continue
			}
			if err := e.lookups.build(r.head(b)); err != nil {
				return err
			}
			e.asked = true
		}
		if err := e.lookups.fetch(ctx); err != nil {
			return fmt.Errorf("lookup at version %d: %w", r.job.Counted(b), err)
		}
	}
}

func (r *reader) checkInto(a *Query) error {
	if int(a.Table) >= len(r.job.Tables) {
		return fmt.Errorf("%w: table %d: the job has %d", ErrWorkload, a.Table, len(r.job.Tables))
	}
	spec, n := &r.job.Tables[a.Table], len(a.Keys)
	switch {
	case pooledByShards(*spec):
		return a.checkBags(spec)
	case a.Bags != nil:
		return fmt.Errorf("%w: bags of table %q, whose shards give rows: want its keys alone, or a placement columns "+
			"or tables in the manifest", ErrWorkload, spec.Name)
	case len(a.Rows) != n*spec.Dim:
		return fmt.Errorf("%w: table %q: room for %d values: want %d rows of %d", ErrWorkload, spec.Name, len(a.Rows), n, spec.Dim)
	case !ascend(a.Keys):
		return fmt.Errorf("%w: table %q: want distinct keys, ascending", ErrWorkload, spec.Name)
	case n > 0 && a.Keys[n-1] >= spec.Rows:
		return fmt.Errorf("%w: %w", ErrWorkload, outside(spec, a.Keys[n-1]))
	}
	return nil
}

// place is a position in the queries. key is the index of a bag if shards pool the table.
type place struct{ query, key int }

// add adds as many keys as one round may have, from position at on, and advances at. Their rows go to the memory of the
// queries. It returns the number of keys.
func (e *evaluation) add(queries []Query, at *place) (keys int) {
	for room := evaluationValuesMax; at.query < len(queries); {
		a := &queries[at.query]
		table, dim := int(a.Table), e.tables.specs[a.Table].Dim
		if pooledByShards(e.tables.specs[table]) {
			if len(e.tables.bags[table][0].offsets) > 0 {
				return keys
			}
			room -= e.addBags(a, at, room, keys == 0)
			if keys += len(e.tables.used[table]); at.key < a.bags() {
				return keys
			}
			*at = place{query: at.query + 1}
			continue
		}
		n := min(len(a.Keys)-at.key, room/dim)
		if keys == 0 {
			n = min(len(a.Keys)-at.key, max(n, 1))
		}
		if n == 0 && at.key < len(a.Keys) || len(e.tables.keys[table]) > 0 {
			return keys
		}
		end := at.key + n
		e.tables.keys[table], e.tables.rows[table] = a.Keys[at.key:end], a.Rows[at.key*dim:end*dim]
		room, keys, at.key = room-n*dim, keys+n, end
		if end == len(a.Keys) {
			*at = place{query: at.query + 1}
		}
	}
	return keys
}

// forget drops all references to the memory of the queries.
func (e *evaluation) forget() {
	e.tables.reset()
	e.tables.forgetBags()
	clear(e.tables.keys)
	clear(e.tables.rows)
}

// keySets has the scratch sets of Distinct.
var keySets = sync.Pool{New: func() any { return new(keySet) }}

// Distinct is Session.Distinct in this run.
func (r *reader) Distinct(table schema.Table, keys, unique []uint64, ids []int64) (n int, err error) {
	if int(table) >= len(r.job.Tables) {
		return 0, fmt.Errorf("%w: table %d: the job has %d", ErrWorkload, table, len(r.job.Tables))
	}
	if len(unique) != len(keys) || len(ids) != len(keys) {
		return 0, fmt.Errorf("%w: room for %d distinct keys and %d ids of %d keys: want as much", ErrWorkload, len(unique),
			len(ids), len(keys))
	}
	spec := &r.job.Tables[table]
	for i, key := range keys {
		if key >= spec.Rows {
			return 0, fmt.Errorf("%w: key number %d: %w", ErrWorkload, i, outside(spec, key))
		}
	}
	set := keySets.Get().(*keySet)
	set.keys, set.ids = unique[:0], ids[:0]
	err = set.find(keys)
	n, set.keys, set.ids = len(set.keys), nil, nil
	keySets.Put(set)
	return n, err
}

// Queries of LookupInto for bags of tables that shards pool.

// bags returns the number of pooled rows of the result.
func (a *Query) bags() int {
	if a.Bags == nil {
		return len(a.Keys)
	}
	return len(a.Bags) - 1
}

// end returns the index into Keys at which bag i begins.
func (a *Query) end(i int) int {
	if a.Bags == nil {
		return i
	}
	return int(a.Bags[i])
}

// checkBags checks a query for bags. spec describes its table, which shards pool.
func (a *Query) checkBags(spec *schema.TableSpec) error {
	bags := a.bags()
	if bags < 0 || a.end(0) != 0 || a.end(bags) != len(a.Keys) {
		return fmt.Errorf("%w: table %q: %d offsets: want one more than bags, from 0 to %d, the number of keys", ErrWorkload,
			spec.Name, len(a.Bags), len(a.Keys))
	}
	for i := range bags {
		if a.end(i+1) < a.end(i) {
			return fmt.Errorf("%w: table %q: offset %d after %d: want offsets that do not fall", ErrWorkload, spec.Name,
				a.end(i+1), a.end(i))
		}
		if n := a.end(i+1) - a.end(i); n > schema.BagKeysMax {
			return fmt.Errorf("%w: table %q: bag %d of %d keys: want at most %d", ErrWorkload, spec.Name, i, n, schema.BagKeysMax)
		}
	}
	if len(a.Rows) != bags*spec.Dim {
		return fmt.Errorf("%w: table %q: room for %d values: want %d bags of %d", ErrWorkload, spec.Name, len(a.Rows),
			bags, spec.Dim)
	}
	for _, key := range a.Keys {
		if key >= spec.Rows {
			return fmt.Errorf("%w: %w", ErrWorkload, outside(spec, key))
		}
	}
	return nil
}

// addBags adds bags of a query from position at on, and advances at, as long as room has values left. If some is true,
// it adds at least one bag. A key counts as two values.
func (e *evaluation) addBags(a *Query, at *place, room int, some bool) (values int) {
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

// forgetBags drops all references to the memory of queries for bags.
func (t *tables) forgetBags() {
	for i := range t.bags {
		if t.bags[i] == nil || !t.specs[i].Cut().PooledByShards() {
			continue
		}
		b := &t.bags[i][0]
		t.used[i], t.ends[i][0], b.pooled, b.offsets, b.full = nil, 0, nil, b.offsets[:0], b.full[:0]
	}
}

// Weights is Session.Weights in this run.
func (r *reader) Weights(ctx context.Context) (*Model, error) {
	if err := holdable(r.job); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	m := &Model{Version: r.Version(), Metadata: map[string]string{}, job: r.job}
	for _, p := range r.job.Parameters {
		m.params = append(m.params, slices.Clone(r.params.named(p.Name)))
	}
	for i, spec := range r.job.Tables {
		values := make([]float32, int(spec.Rows)*spec.Dim)
		err := r.Table(ctx, schema.Table(i), func(_ schema.Partition, keys []uint64, rows []float32) error {
			for k, key := range keys {
				copy(values[int(key)*spec.Dim:][:spec.Dim], rows[k*spec.Dim:])
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("weights: %w", err)
		}
		m.tables = append(m.tables, values)
	}
	var err error
	if m.hosted, err = r.modules.weights(ctx); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	m.digest, err = m.weigh()
	return m, err
}

// save is Session.Save in this run.
func (r *reader) save(ctx context.Context, path string, extras ...Extra) error {
	var extra Extra
	if len(extras) > 0 {
		extra = extras[0]
	}
	for _, entry := range append([]string{formatEntry}, weighedEntries...) {
		if _, there := extra.Metadata[entry]; there {
			return fmt.Errorf("save model: entry %q of the metadata is the file's own: want another name", entry)
		}
	}
	m := &Model{Version: r.Version(), Metadata: extra.Metadata, job: r.job}
	for _, t := range extra.Tensors {
		m.extra = append(m.extra, safetensors.Tensor(t))
	}
	slices.SortFunc(m.extra, byName)
	var err error
	if m.hosted, err = r.modules.weights(ctx); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	metadata, err := m.metadata()
	if err != nil {
		return err
	}
	file, err := safetensors.Create(path, metadata, m.tensors())
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	defer file.Discard()
	for _, t := range m.hosted {
		if err := file.Put(t.Name, 0, t.Values); err != nil {
			return fmt.Errorf("save model: %w", err)
		}
	}
	for _, t := range m.extra {
		if err := file.PutBytes(t.Name, t.Data); err != nil {
			return fmt.Errorf("save model: %w", err)
		}
	}
	if m.digest, err = r.stream(ctx, file.Put); err == nil {
		metadata[digestEntry] = hex.EncodeToString(m.digest[:])
		err = file.Commit(metadata)
	}
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return nil
}

// stream passes all weights of the current version to put, and returns their digest. values are valid until put
// returns.
func (r *reader) stream(ctx context.Context, put func(tensor string, first int64, values []float32) error) ([32]byte,
	error) {
	d := schema.NewWeightsDigest(r.job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			dim := r.job.Tables[t.Index].Dim
			err = r.Table(ctx, schema.Table(t.Index), func(p schema.Partition, keys []uint64, rows []float32) error {
				for from, to := 0, 0; from < len(keys); from = to {
					for to = from + 1; to < len(keys) && keys[to] == keys[to-1]+1; {
						to++
					}
					if err := put(t.Name, int64(keys[from])*int64(dim), rows[from*dim:to*dim]); err != nil {
						return err
					}
				}
				return d.Rows(p, keys, rows)
			})
		} else if err = put(t.Name, 0, r.params.named(t.Name)); err == nil {
			err = d.Values(r.params.named(t.Name))
		}
		if err != nil {
			return [32]byte{}, err
		}
	}
	return d.Sum()
}
