package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"gradbus/fabric"
	"gradbus/schema"
)

// TableKeys are keys of one table to look up: in any order, and as often as one likes.
type TableKeys struct {
	Table schema.Table
	Keys  []uint64
}

// evaluationValuesMax bounds the values that one round of an evaluation's lookups asks for: 16 MiB.
const evaluationValuesMax = 4 << 20

// evaluation is what Lookup needs, kept from call to call.
type evaluation struct {
	tables  *tables
	lookups *lookups

	at    place // of LookupInto: how far it has asked
	asked bool  // and waits
}

func (s *membership) evaluating() *evaluation {
	if s.evaluation == nil {
		t := newTables(s.job.Tables, 1)
		s.evaluation = &evaluation{tables: t, lookups: newLookups(s.newRouting(t.dims()), t, s.place, s.exchange, rowsAsked)}
		s.evaluation.lookups.over = s.roundOver
	}
	return s.evaluation
}

// ErrVersion: rows of another version are asked for than that which the job has. The session goes on.
var ErrVersion = errors.New("no such version any more")

// ErrAsk: keys are to be looked up, or told apart, of which that is not possible. Nothing was asked for, and the
// session goes on.
var ErrAsk = errors.New("lookup not possible")

// LookupAt is Session.LookupAt in this run.
func (s *membership) LookupAt(ctx context.Context, version schema.Version, asks []TableKeys) ([][]float32, error) {
	if has, err := s.Wait(ctx); err != nil || has != version {
		return nil,
			cmp.Or(err, fmt.Errorf("lookup: %w: version %d is asked for, and the job is at %d", ErrVersion, version, has))
	}
	return s.Lookup(ctx, asks)
}

// Lookup is Session.Lookup in this run.
func (s *membership) Lookup(ctx context.Context, asks []TableKeys) ([][]float32, error) {
	if _, err := s.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([][]float32, len(asks))
	for i, ask := range asks {
		if int(ask.Table) >= len(s.job.Tables) {
			return nil, fmt.Errorf("lookup: table %d: the job has %d", ask.Table, len(s.job.Tables))
		}
		dim := s.job.Tables[ask.Table].Dim
		out[i] = make([]float32, len(ask.Keys)*dim)
		to := out[i]
		for keys := range slices.Chunk(ask.Keys, max(1, evaluationValuesMax/dim)) {
			if err := s.lookup(ctx, ask.Table, keys, to); err != nil {
				return nil, fmt.Errorf("lookup of %d keys at version %d: %w", len(ask.Keys), s.Version(), err)
			}
			to = to[len(keys)*dim:]
		}
	}
	return out, nil
}

// lookup looks up the distinct ones of keys, or, of a table that shards pool, a bag for each key.
func (s *membership) lookup(ctx context.Context, table schema.Table, keys []uint64, out []float32) error {
	spec := &s.job.Tables[table]
	if pooledByShards(*spec) {
		into := RowsInto{Table: table, Keys: keys, Rows: out[:len(keys)*spec.Dim]}
		if err := s.checkInto(&into); err != nil {
			return err
		}
		return s.lookInto(ctx, []RowsInto{into}, false)
	}
	unique, ids, dim := make([]uint64, len(keys)), make([]int64, len(keys)), spec.Dim
	n, err := s.Distinct(table, keys, unique, ids)
	if err != nil {
		return err
	}
	rows := make([]float32, n*dim)
	if err := s.lookInto(ctx, []RowsInto{{Table: table, Keys: unique[:n], Rows: rows}}, false); err != nil {
		return err
	}
	for i, id := range ids {
		copy(out[i*dim:(i+1)*dim], rows[int(id)*dim:])
	}
	return nil
}

// Table is Session.Table in this run.
func (s *membership) Table(ctx context.Context, table schema.Table, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	if _, err := s.Wait(ctx); err != nil {
		return err
	}
	if int(table) >= len(s.job.Tables) {
		return fmt.Errorf("scan table %d: the job has %d", table, len(s.job.Tables))
	}
	if s.job.Tables[table].Replicated {
		return s.replicas.scan(table, s.job.ChunkBytes/4, yield)
	}
	spec := &s.job.Tables[table]
	scan, err := newScan(s.head(s.newest()), table, spec, s.job.ChunkBytes/4)
	if err != nil {
		return err
	}
	defer s.exchange.close(rowsScanned)
	ctx, stop := s.readable(ctx)
	defer stop()
	came := uint64(0)
	counted := func(p schema.Partition, keys []uint64, rows []float32) error {
		came += uint64(len(keys))
		return yield(p, keys, rows)
	}
	for p := range spec.Partitions {
		if err := s.scanPartition(ctx, scan, schema.Partition(p), counted); err != nil {
			return fmt.Errorf("scan table %q partition %d at version %d: %w", spec.Name, p, s.Version(), err)
		}
	}
	if came != spec.Rows {
		return fmt.Errorf("scan table %q at version %d: %d rows came of its %d", spec.Name, s.Version(), came, spec.Rows)
	}
	return nil
}

// scanFrom asks a shard for rows of a partition from a key on, and waits for them.
func (s *membership) scanFrom(ctx context.Context, scan *scan, shard int, p schema.Partition, cursor uint64) error {
	s.exchange.close(rowsScanned) // where the last answer was refused
	number := s.exchange.number(1)
	scan.ask(shard, p, cursor, number)
	s.exchange.ask(rowsScanned, scan, number, []int{shard}, s.since(), true)
	if err := scan.send(s, 0); err != nil {
		return err
	}
	if err := s.awaitAnswers(ctx, rowsScanned); err != nil {
		return err
	}
	if len(scan.answer.Keys()) == 0 && scan.answer.Head().Flags&schema.FlagMore != 0 {
		return fmt.Errorf("no rows from key %d on, and more to follow", cursor)
	}
	return nil
}

// scan pulls a table piece by piece, one request at a time.
type scan struct {
	head    schema.Head
	spec    *schema.TableSpec
	section schema.Section
	request *schema.Frame
	sealed  []byte

	asked  schema.Head // of the open request
	cursor uint64      // the key from which on it asks
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

// ask writes a request for rows of a partition from a key on.
func (c *scan) ask(shard int, p schema.Partition, cursor uint64, number schema.Sequence) {
	c.asked, c.shard, c.cursor = c.head, shard, cursor
	c.asked.Bucket, c.asked.Sequence = schema.Bucket(p), number
	c.request.SetHead(c.asked)
	c.request.SetSection(0, c.section)
	c.request.Keys()[0] = cursor
	c.sealed = c.request.Seal()
}

// send sends the request.
func (c *scan) send(s *membership, _ int) error {
	link := s.links[c.shard]
	return link.publish(s.subject(fabric.KindPull, link.member), c.sealed)
}

// take keeps the answer. It fails on one that a correct shard cannot have given.
func (c *scan) take(_ int, v *schema.View) (kept bool, err error) {
	h := v.Head()
	if err := c.check(&h, v); err != nil {
		return false, fmt.Errorf("rows of version %d partition %d from %s: %w", h.Batch, h.Bucket,
			schema.ShardMember(c.shard), err)
	}
	c.answer = *v
	return true, nil
}

// check compares an answer with what was asked for. That its keys ascend has been verified.
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
func (s *membership) Digest(ctx context.Context) ([32]byte, error) {
	if _, err := s.Wait(ctx); err != nil {
		return [32]byte{}, err
	}
	d := schema.NewWeightsDigest(s.job)
	for t, ok := d.Next(); ok; t, ok = d.Next() {
		var err error
		if t.IsTable {
			err = s.Table(ctx, schema.Table(t.Index), d.Rows)
		} else {
			err = d.Values(s.Param(t.Name))
		}
		if err != nil {
			return [32]byte{}, fmt.Errorf("digest of weights: %w", err)
		}
	}
	return d.Sum()
}
