package round

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
)

// rowResultsConfig is what an owner's results over rows are made from.
type rowResultsConfig struct {
	backend    cuda.Backend
	lanes      int
	chunkBytes int         // of values in one frame; a row that is larger travels alone
	versions   int         // how many batches' results are kept
	head       schema.Head // what the heads of results have in common: run id, generation, bucket and node
	tables     []RowTable  // whose means are published, ascending
}

// RowTable is a replicated table: who owns it keeps no rows of it.
type RowTable struct {
	id  schema.Table
	dim int
}

// Replicated lists the replicated tables of a job that are added up by a party.
func Replicated(job *schema.Job, plan *schema.Plan, by schema.Party) []RowTable {
	var all []RowTable
	for i, t := range job.Tables {
		if t.Replicated && plan.Tables[i].Reducer == by {
			all = append(all, RowTable{id: schema.Table(i), dim: t.Dim})
		}
	}
	return all
}

// RowResults are the frames that the results of sparse rounds are published in: for every replicated table the keys
// that anybody touched and the mean gradient of each row. A job without such tables gets one frame without sections a
// batch, which says that the round has closed. It is not safe for concurrent use.
//
// Memory: for each kept batch its keys and rows, and the same once more while a result is made.
type RowResults struct {
	config rowResultsConfig
	kept   []rowResult // of batch b at b % len
	means  []rowMeans  // of Tables; scratch
	term   [1]cuda.Term
}

// HasRows reports whether results have rows in them: else they only say that a round is over.
func (r *RowResults) HasRows() bool { return len(r.config.tables) > 0 }

type rowResult struct {
	made   bool
	batch  schema.Batch
	frames []*schema.Frame // as many as were ever needed
	used   int             // of frames
}

type rowMeans struct {
	keys   []uint64
	values []float32
}

// newRowResults makes results that have no frames yet.
func newRowResults(c rowResultsConfig) *RowResults {
	return &RowResults{config: c, kept: make([]rowResult, c.versions), means: make([]rowMeans, len(c.tables))}
}

// Make divides the sums of the round that s.Next gave, of this weight, and puts them into frames in ascending order
// of (table, key), which it returns sealed. They are valid until the result of Versions batches later is made. Call
// it before s.Close. An error is the backend's.
func (r *RowResults) Make(s *Sparse, b schema.Batch, weight float64, flags uint32) ([]*schema.Frame, error) {
	for i, t := range r.config.tables {
		if err := r.mean(s, &r.means[i], t, weight); err != nil {
			return nil, fmt.Errorf("average rows of table %d in batch %d: %w", t.id, b, err)
		}
	}
	k := &r.kept[b%schema.Batch(len(r.kept))]
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

// Kept is the result of a batch as Make gave it; nil where it was not made or is too long ago.
func (r *RowResults) Kept(b schema.Batch) []*schema.Frame {
	if k := &r.kept[b%schema.Batch(len(r.kept))]; k.made && k.batch == b {
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

// rowCursor is the next row to go into a frame.
type rowCursor struct{ table, row int }

// fill lays out a frame for as many rows as fit and puts them there. It reports whether rows are left.
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
		*next = rowCursor{table: next.table + 1} // what is left is nothing
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
