package round

import (
	"context"
	"fmt"
	"unsafe"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Results are the frames in which results over dense chunks are published, for several versions of each chunk. A result
// is written where it is sent from. If the owner has parameters, they are stored here.
//
// Version v of a chunk is the outcome of v results, at index v modulo the number of versions.
type Results struct {
	head   schema.Head
	chunks []resultChunk
}

type resultChunk struct {
	Chunk
	frames []*schema.Frame
}

// newResults makes zeroed frames for a number of versions of each chunk. head has the fields that the heads of results
// share: run id, generation, lanes and flags. ctx cancels only the allocation.
func newResults(ctx context.Context, chunks []Chunk, versions int, head schema.Head) (*Results, error) {
	r := &Results{head: head, chunks: make([]resultChunk, len(chunks))}
	for i := range r.chunks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c := &r.chunks[i]
		c.Chunk, c.frames = chunks[i], make([]*schema.Frame, versions)
		for v := range c.frames {
			f, err := schema.NewFrame(schema.Layout{Kind: schema.KindMean, Values: 4 * c.Elements})
			if err != nil {
				return nil, fmt.Errorf("bucket %d chunk %d: %w", c.Bucket, c.Chunk.Chunk, err)
			}
			c.frames[v] = f
		}
	}
	return r, nil
}

func (r *Results) at(i int, v schema.Version) int {
	return int(v % schema.Version(len(r.chunks[i].frames)))
}

// Values returns the memory of a version of the i-th chunk. Once sealed it must not change until the version is too old
// to be requested.
func (r *Results) Values(i int, v schema.Version) []float32 {
	return r.chunks[i].frames[r.at(i, v)].Float32s()
}

// Seal writes the head and the checksum of a version of the i-th chunk, as the result of a batch. h has batch, weight,
// node and further flags. The frame is valid until a later version reuses its memory.
func (r *Results) Seal(i int, v schema.Version, h schema.Head) *schema.Frame {
	c := &r.chunks[i]
	full := r.head
	full.Batch, full.Weight, full.Node, full.Flags = h.Batch, h.Weight, h.Node, full.Flags|h.Flags
	full.Bucket, full.Chunk, full.Chunks, full.Offset = c.Bucket, c.Chunk.Chunk, c.Chunks, c.Offset
	f := r.sealed(i, v)
	f.SetHead(full)
	f.Seal()
	return f
}

// sealed returns the frame in which a version of the i-th chunk is sealed.
func (r *Results) sealed(i int, v schema.Version) *schema.Frame {
	return r.chunks[i].frames[r.at(i, v)]
}

// of returns the sealed result of a batch over the i-th chunk; nil if it was not made here, such as that of a batch
// before the job was resumed.
func (r *Results) of(i int, b schema.Batch) *schema.Frame {
	f := r.sealed(i, schema.Version(b)+1)
	v := f.View()
	if h := v.Head(); h.Chunks == 0 || h.Batch != b { // never sealed, or as the result of another batch
		return nil
	}
	return f
}

// rowResultsConfig configures an owner's results over rows.
type rowResultsConfig struct {
	backend    cuda.Backend
	lanes      int
	chunkBytes int         // of values in one frame; a larger row has a frame of its own
	versions   int         // number of batches whose results are kept
	head       schema.Head // fields that the heads of results share: run id, generation, bucket and node
	tables     []RowTable  // whose means are published, ascending
}

// RowTable is a replicated table. Its owner keeps no rows of it.
type RowTable struct {
	id  schema.Table
	dim int
}

// Replicated lists the replicated tables of a job that a party aggregates.
func Replicated(job *schema.Job, plan *schema.Plan, by schema.Party) []RowTable {
	var all []RowTable
	for i, t := range job.Tables {
		if t.Replicated && plan.Tables[i].Reducer == by {
			all = append(all, RowTable{id: schema.Table(i), dim: t.Dim})
		}
	}
	return all
}

// RowResults are the frames in which the results of sparse rounds are published: for every replicated table the touched
// keys and the mean gradient of each row. A job without such tables has one empty frame per batch, which only proves
// that the round has closed. It is not safe for concurrent use.
//
// Memory: the keys and rows of each stored batch, and the same once more while a result is made.
type RowResults struct {
	config rowResultsConfig
	stored []rowResult // of batch b at b % len
	means  []rowMeans  // of Tables; scratch
	term   [1]cuda.Term
}

// HasRows reports whether results contain rows; else they only report that a round has closed.
func (r *RowResults) HasRows() bool { return len(r.config.tables) > 0 }

type rowResult struct {
	made   bool
	batch  schema.Batch
	frames []*schema.Frame // as many as were ever needed
	used   int             // number of frames in use
}

type rowMeans struct {
	keys   []uint64
	values []float32
}

// newRowResults makes results without frames.
func newRowResults(c rowResultsConfig) *RowResults {
	return &RowResults{config: c, stored: make([]rowResult, c.versions), means: make([]rowMeans, len(c.tables))}
}

// Make divides the sums of the round that s.Next returned by weight, writes them into frames in ascending order of
// (table, key), and returns the frames sealed. They are valid until the result of Versions batches later is made. Call
// it before s.Close. An error comes from the backend.
func (r *RowResults) Make(s *Sparse, b schema.Batch, weight float64, flags uint32) ([]*schema.Frame, error) {
	for i, t := range r.config.tables {
		if err := r.mean(s, &r.means[i], t, weight); err != nil {
			return nil, fmt.Errorf("average rows of table %d in batch %d: %w", t.id, b, err)
		}
	}
	k := &r.stored[b%schema.Batch(len(r.stored))]
	k.made, k.batch, k.used = true, b, 0
	next := rowCursor{}
	for more := true; more; k.used++ {
		if k.used == len(k.frames) {
			k.frames = append(k.frames, new(schema.Frame))
		}
		var err error
		if more, err = r.fill(k.frames[k.used], &next); err != nil {
			return nil, err
		}
	}
	h := r.config.head
	h.Batch, h.Weight, h.Lanes, h.Chunks, h.Flags = b, weight, uint16(r.config.lanes), schema.Chunk(k.used), flags
	for i, f := range k.frames[:k.used] {
		h.Chunk = schema.Chunk(i)
		f.SetHead(h)
		f.Seal()
	}
	return k.frames[:k.used], nil
}

// Kept returns the result of a batch as Make returned it; nil if it was not made or is too old.
func (r *RowResults) Kept(b schema.Batch) []*schema.Frame {
	if k := &r.stored[b%schema.Batch(len(r.stored))]; k.made && k.batch == b {
		return k.frames[:k.used]
	}
	return nil
}

// mean merges and divides one table's contributions.
func (r *RowResults) mean(s *Sparse, m *rowMeans, t RowTable, weight float64) error {
	m.keys, m.values = m.keys[:0], m.values[:0]
	if weight == 0 {
		return nil
	}
	keys, rows, divisor, err := s.Merge(t.id, t.dim, weight)
	if err != nil || len(keys) == 0 {
		return err
	}
	m.keys = append(m.keys, keys...)
	m.values = grown(m.values, len(keys)*t.dim)
	r.term[0] = cuda.Term{Count: uint16(r.config.lanes), Values: rows}
	err = r.config.backend.Average(cuda.Average{Lanes: r.config.lanes, Weight: divisor, Terms: r.term[:],
		Out: cuda.Float32s(m.values)})
	r.term[0] = cuda.Term{}
	return err
}

// rowCursor is the position of the next row to write.
type rowCursor struct{ table, row int }

// fill lays out a frame for as many rows as fit and writes them. It reports whether rows remain.
func (r *RowResults) fill(f *schema.Frame, next *rowCursor) (more bool, err error) {
	begin, layout := *next, schema.Layout{Kind: schema.KindMean}
	for free := r.config.chunkBytes / 4; next.table < len(r.means) && free > 0; {
		dim, left := r.config.tables[next.table].dim, len(r.means[next.table].keys)-next.row
		n := min(left, free/dim)
		if n == 0 && left > 0 {
			if layout.Keys > 0 {
				break
			}
			n = 1 // a row that is larger than a chunk
		}
		if n > 0 {
			layout.Sections, layout.Keys, layout.Values = layout.Sections+1, layout.Keys+n, layout.Values+4*n*dim
		}
		if next.row, free = next.row+n, free-n*dim; n == left {
			*next = rowCursor{table: next.table + 1}
		}
	}
	for next.table < len(r.means) && len(r.means[next.table].keys) == next.row {
		*next = rowCursor{table: next.table + 1} // nothing remains
	}
	if err := f.Reset(layout); err != nil {
		return false, fmt.Errorf("lay out a result of %d rows: %w", layout.Keys, err)
	}
	r.put(f, begin, layout.Keys)
	return next.table < len(r.means), nil
}

// put copies n rows from a cursor on into a frame.
func (r *RowResults) put(f *schema.Frame, at rowCursor, n int) {
	keys, values, section := f.Keys(), f.Float32s(), 0
	for ; n > 0; at = (rowCursor{table: at.table + 1}) {
		t, m := r.config.tables[at.table], &r.means[at.table]
		count := min(n, len(m.keys)-at.row)
		if count == 0 {
			continue
		}
		f.SetSection(section, schema.Section{Table: t.id, Dim: uint32(t.dim), Count: uint64(count)})
		copy(keys, m.keys[at.row:at.row+count])
		copy(values, m.values[at.row*t.dim:(at.row+count)*t.dim])
		keys, values, n, section = keys[count:], values[count*t.dim:], n-count, section+1
	}
}

// A contribution in form bags is converted to form rows here, lane by lane: each distinct key gets the sum over its
// positions of its bags' gradients, in canonical order. A trainer that sends rows does the same, and frames preserve
// the order of keys and positions, so both forms produce equal bits.

// expanding is scratch memory, reused from batch to batch.
type expanding struct {
	lanes []expanded // of the table that is merged
	used  int

	parts []schema.Part // of one lane
	one   [1]cuda.Term

	// One lane's bags, joined from several chunks.
	keys    []uint64
	offsets []uint32
	rows    []float32
	halves  []uint16
}

// expanded is one lane's rows.
type expanded struct {
	keys []int64
	rows []float32
}

// Cost returns the bytes that a chunk counts against its sender's share: the bytes that it holds, or, with bags, the
// bytes that their rows may take if that is more. So a share also bounds the memory of expansion, which the length of a
// frame does not.
func (s *Sparse) Cost(c *SparseChunk) int64 {
	if c.View.Bags() == nil {
		return c.Bytes
	}
	rows := int64(0)
	for _, part := range c.View.Parts() {
		n := uint64(len(part.Keys))
		if part.Bags > 0 {
			n = min(n, s.config.tables[part.Table].Rows)
		}
		rows += int64(n) * int64(8+4*part.Dim)
	}
	return max(c.Bytes, rows)
}

// expand appends the terms of a contribution whose rows of a table were sent as bags.
func (s *Sparse) expand(t *sparseTerm, id schema.Table) error {
	e := &s.merge.bags
	e.parts = e.parts[:0]
	for k := range t.parts {
		for _, part := range t.parts[k].View.Parts() {
			if part.Table != id || len(part.Keys) == 0 { // an empty part has no lane
				continue
			}
			if len(e.parts) > 0 && e.parts[0].Lane != part.Lane {
				if err := s.expandParts(); err != nil {
					return err
				}
			}
			e.parts = append(e.parts, part)
		}
	}
	return s.expandParts()
}

// expandParts appends the term of the one lane whose parts were collected.
func (s *Sparse) expandParts() error {
	e := &s.merge.bags
	keys, rows, err := s.expandLane(e.parts)
	if err != nil {
		return err
	}
	s.merge.add(lane.Node{First: e.parts[0].Lane, Count: 1}, keys, rows)
	clear(e.parts) // drops the payloads
	e.parts = e.parts[:0]
	return nil
}

// expandLane sums one lane's bags by row.
func (s *Sparse) expandLane(parts []schema.Part) ([]uint64, cuda.Vector, error) {
	e, spec := &s.merge.bags, &s.config.tables[parts[0].Table]
	keys, offsets, grad := parts[0].Keys, parts[0].Offsets, rows(s.config.dType, &parts[0])
	if len(parts) > 1 {
		e.keys, e.offsets, e.rows, e.halves = e.keys[:0], e.offsets[:0], e.rows[:0], e.halves[:0]
		for i := range parts {
			for _, at := range parts[i].Offsets {
				e.offsets = append(e.offsets, uint32(len(e.keys))+at)
			}
			e.keys, e.rows, e.halves = append(e.keys, parts[i].Keys...), append(e.rows, parts[i].Rows...),
				append(e.halves, parts[i].Halves...)
		}
		keys, offsets, grad = e.keys, e.offsets, vector(s.config.dType, e.rows, e.halves)
	}
	if e.used == len(e.lanes) {
		e.lanes = append(e.lanes, expanded{})
	}
	out := &e.lanes[e.used]
	e.used++
	room := int(min(uint64(len(keys)), spec.Rows))
	out.keys, out.rows = grown(out.keys, room), grown(out.rows, room*spec.Dim)
	n, err := s.config.backend.BagBackward(cuda.BagBackward{
		Dim: spec.Dim, Mode: cuda.Sum, Padding: cuda.NoPadding, OpenOffsets: true, R: int64(spec.Rows),
		IDs: cuda.Int64s(signed[int64](keys)), Offsets: cuda.Int32s(signed[int32](offsets)), GradOut: grad,
		Keys: cuda.Int64s(out.keys), Out: cuda.Float32s(out.rows),
	})
	if err != nil {
		return nil, cuda.Vector{}, err
	}
	return signed[uint64](out.keys[:n]), cuda.Float32s(out.rows[:n*spec.Dim]), nil
}

// signed views the same numbers with the other signedness. Keys are below 2^40 and offsets below 2^20, so none changes.
func signed[To, From int32 | uint32 | int64 | uint64](s []From) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// widen converts 16-bit terms to float32 if they meet rows that were expanded, because all terms of a sum have one
// type. The conversion is exact; the sum would do the same.
func (s *Sparse) widen() error {
	for i := range s.merge.terms {
		t := &s.merge.terms[i]
		if t.Rows.DType() == cuda.Float32 || t.Rows.Len() == 0 {
			continue
		}
		e := &s.merge.bags
		if e.used == len(e.lanes) {
			e.lanes = append(e.lanes, expanded{})
		}
		out := &e.lanes[e.used]
		e.used++
		out.rows = grown(out.rows, t.Rows.Len())
		e.one[0] = cuda.Term{Count: 1, Values: t.Rows}
		err := s.config.backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: e.one[:], Out: cuda.Float32s(out.rows)})
		e.one[0] = cuda.Term{}
		if err != nil {
			return err
		}
		t.Rows = cuda.Float32s(out.rows)
	}
	return nil
}
