package state

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// DenseConfig configures dense state. All fields are required except LR, NonFinite and Start.
type DenseConfig struct {
	Backend cuda.Backend
	Lanes   int
	// Values returns the memory of a version of a chunk: in frames that are published, in a flat space, or in a
	// module's tensors. The memory of a chunk's newest version must stay unchanged until the next version is complete.
	// The two must not overlap.
	Values func(chunk int, v schema.Version) []float32
	Chunks []Chunk
	LR     *LRChanges
	// InPlace keeps only the slots of the newest version. Else those of the version before it are kept, too.
	InPlace bool
	// NonFinite is the treatment of gradients that are not finite: cuda.Refuse leaves the chunk unchanged.
	NonFinite cuda.NonFinite
	// Start is the first version that steps apply to; earlier ones assign values (schema.StartModel).
	Start schema.Version
}

// Chunk is a stretch of dense values that one optimizer steps in one call.
type Chunk struct {
	Elements  int
	Optimizer *schema.Optimizer // nil if values are only set, by Set
	Pieces    []Piece           // parts of the chunk; gaps between them are zero
}

// Piece is a stretch of a named tensor within a chunk.
type Piece struct {
	Name     string
	Init     schema.Init
	Seed     uint64
	From     int // first element, within the tensor
	Offset   int // of that element, within the chunk
	Elements int
}

// Dense stores chunks of dense parameters in versions, with their optimizers. Version v of a chunk is the outcome of v
// steps; a batch without samples leaves the values unchanged. The owner chooses the memory of values; slots are stored
// here, outside the Go heap. Different chunks may be stepped concurrently; otherwise it is not safe for concurrent use.
//
//	d, err := NewDense(config)
//	err = d.Draw(ctx)
//	err = d.Average(i, weight, terms)   // version v+1 of chunk i, from v and the sum of terms
type Dense struct {
	config DenseConfig
	chunks []denseChunk
	memory *cuda.Buffer

	intervals intervals // between copies

	copying *DenseCopy // nil if no copy is in progress
}

// denseChunk is the newest version of a chunk. Fields that are kept by version have version v at index v % len.
type denseChunk struct {
	version    schema.Version
	first      schema.Version // first version here: one that was restored, or 0
	rule       *rule          // of this chunk alone, because a step changes it
	slotValues [][][]float32  // each slot of the rule, by version
	slots      [][]cuda.Slot  // the same, from each version to the next
	steps      [2]uint64      // number of steps, by version
	beyond     schema.Version // number by which the steps of a restored fuzzy checkpoint exceed its version; learning rates count them
	touched    uint8          // the interval of its last change
}

// NewDense makes state whose values are in the memory that Values returns: see Draw.
func NewDense(c DenseConfig) (*Dense, error) {
	d := &Dense{config: c, chunks: make([]denseChunk, len(c.Chunks))}
	values := 0
	for i := range c.Chunks {
		if c.Chunks[i].Optimizer == nil {
			continue
		}
		r, err := newRule(*c.Chunks[i].Optimizer, c.LR, c.Start)
		if err != nil {
			return nil, err
		}
		d.chunks[i].rule = r
		values += d.versions() * len(r.slots) * aligned(c.Chunks[i].Elements)
	}
	var err error
	if d.memory, err = c.Backend.Alloc(values); err != nil {
		return nil, fmt.Errorf("allocate %d values of dense optimizer state: %w", values, err)
	}
	free := d.memory.Float32s()
	for i := range d.chunks {
		free = d.chunks[i].lay(free, c.Chunks[i].Elements, d.versions())
	}
	return d, nil
}

func (d *Dense) versions() int {
	if d.config.InPlace {
		return 1
	}
	return 2
}

// lay assigns memory to a chunk's slots, and returns the rest of the memory.
func (c *denseChunk) lay(free []float32, elements, versions int) []float32 {
	if c.rule == nil {
		return free
	}
	c.slotValues, c.slots = make([][][]float32, versions), make([][]cuda.Slot, versions)
	for v := range c.slotValues {
		for range c.rule.slots {
			fill(free[:elements], c.rule.initial)
			c.slotValues[v] = append(c.slotValues[v], free[:elements:elements])
			free = free[aligned(elements):]
		}
	}
	for v := range c.slots {
		next := c.slotValues[(v+1)%versions]
		for s, shape := range c.rule.slots {
			c.slots[v] = append(c.slots[v], cuda.Slot{Name: shape.name, Before: cuda.Float32s(c.slotValues[v][s]),
				After: cuda.Float32s(next[s])})
		}
	}
	return free
}

// aligned rounds a number of values up so that the next ones begin at a multiple of 64 bytes.
func aligned(values int) int { return (values + 15) / 16 * 16 }

// Draw fills version 0 of every chunk.
func (d *Dense) Draw(ctx context.Context) error {
	for i := range d.config.Chunks {
		values := d.config.Values(i, 0)
		for _, p := range d.config.Chunks[i].Pieces {
			filler, err := philox.NewFiller(p.Init.Kind, p.Init.Scale, p.Seed, p.Name)
			if err == nil {
				err = filler.Draw(ctx, values[p.Offset:p.Offset+p.Elements], p.From)
			}
			if err != nil {
				return fmt.Errorf("parameter %q: %w", p.Name, err)
			}
		}
	}
	return nil
}

// Begin sets the version of every chunk to v, with the values in the memory of that version.
func (d *Dense) Begin(v schema.Version) {
	for i := range d.chunks {
		d.chunks[i].version = v
	}
}

// Close frees the slots. The Dense must not be used afterwards.
func (d *Dense) Close() {
	if d != nil {
		d.memory.Free()
		d.chunks = nil
	}
}

// String lists versions, steps and checksums of slots, for tests and logs.
func (d *Dense) String() string {
	if d == nil {
		return "none"
	}
	var b strings.Builder
	for i := range d.chunks {
		c := &d.chunks[i]
		fmt.Fprintf(&b, "chunk %d: version %d steps %d", i, c.version, c.steps)
		for _, slots := range c.slotValues {
			for s, values := range slots {
				fmt.Fprintf(&b, " %s %08x", c.rule.slots[s].name, checksum(values))
			}
		}
		b.WriteString("; ")
	}
	return b.String()
}

// Version returns a chunk's newest version.
func (d *Dense) Version(i int) schema.Version { return d.chunks[i].version }

// begin returns the input and the output of a step of a chunk.
func (d *Dense) begin(i int) (c *denseChunk, now, out []float32) {
	c = &d.chunks[i]
	d.copying.keep(i)
	return c, d.config.Values(i, c.version), d.config.Values(i, c.version+1)
}

// done makes the output of begin the newest version, after a number of further steps.
func (c *denseChunk) done(steps uint64) {
	next := c.version + 1
	c.steps[next%2] = c.steps[c.version%2] + steps
	c.version = next
}

func (c *denseChunk) slotsNow() []cuda.Slot {
	return c.slots[c.version%schema.Version(len(c.slots))]
}

// Average steps a chunk by the sum of terms, which the optimizer divides once by weight, in one pass. After an error
// the chunk is unchanged unless the backend failed. An outcome that is not finite is an error, *NonFiniteError; with
// InPlace the slots are lost then.
func (d *Dense) Average(i int, weight float64, terms []cuda.Term) error {
	c, now, out := d.begin(i)
	c.touched = d.intervals.now
	if c.version < d.config.Start {
		return d.assign(i, c, out, d.config.Lanes, weight, terms)
	}
	steps := c.steps[c.version%2]
	err := d.config.Backend.AverageApply(cuda.AverageApply{
		Dim: 1, Lanes: d.config.Lanes, Optimizer: c.rule.at(c.version+c.beyond, steps), Clip: c.rule.clip,
		Weight: float32(weight), First: steps == 0,
		NonFinite: d.config.NonFinite, Terms: terms, Slots: c.slotsNow(), Param: cuda.Float32s(now), Out: cuda.Float32s(out),
	})
	if err == nil {
		err = d.checkOutcome(i, out, true)
	}
	if err == nil {
		c.done(1)
	}
	return err
}

// Step is Average for a single sum. The gradient is multiplied by scale after the division: 1, or the factor from Norm.
func (d *Dense) Step(i int, weight float64, sum []float32, scale float32) error {
	c, now, out := d.begin(i)
	c.touched = d.intervals.now
	if c.version < d.config.Start {
		return d.assign(i, c, out, 1, weight, []cuda.Term{{Count: 1, Values: cuda.Float32s(sum)}})
	}
	steps := c.steps[c.version%2]
	err := d.config.Backend.ApplyDense(cuda.ApplyDense{
		Dim: 1, Optimizer: c.rule.at(c.version+c.beyond, steps), Clip: c.rule.clipped(scale), Weight: float32(weight),
		First: steps == 0, NonFinite: d.config.NonFinite,
		Slots: c.slotsNow(), Param: cuda.Float32s(now), Grad: cuda.Float32s(sum), Out: cuda.Float32s(out),
	})
	if err == nil {
		err = d.checkOutcome(i, out, true)
	}
	if err == nil {
		c.done(1)
	}
	return err
}

// Keep makes the next version of a chunk equal to the newest, for a batch without samples.
func (d *Dense) Keep(i int) {
	c, now, out := d.begin(i)
	copy(out, now)
	c.keepSlots()
	c.done(0)
}

// assign makes the sum of terms divided by weight the next version of a chunk. This is no step.
func (d *Dense) assign(i int, c *denseChunk, out []float32, lanes int, weight float64, terms []cuda.Term) error {
	if err := d.config.Backend.Average(cuda.Average{Lanes: lanes, Weight: float32(weight), Terms: terms,
		Out: cuda.Float32s(out)}); err != nil {
		return err
	}
	if err := d.checkOutcome(i, out, false); err != nil {
		return err
	}
	c.keepSlots()
	c.done(0)
	return nil
}

// keepSlots copies the slots of the newest version to the next.
func (c *denseChunk) keepSlots() {
	if c.rule != nil {
		at := c.version % schema.Version(len(c.slotValues))
		next := (c.version + 1) % schema.Version(len(c.slotValues))
		for s, values := range c.slotValues[at] {
			copy(c.slotValues[next][s], values)
		}
	}
}

// Set makes values the next version of a chunk that another owner has stepped.
func (d *Dense) Set(i int, values []float32) {
	c, _, out := d.begin(i)
	c.touched = d.intervals.now
	copy(out, values)
	c.done(0)
}

// fill sets zeroed memory to a value.
func fill(values []float32, to float32) {
	if to == 0 {
		return // untouched pages cost nothing
	}
	for i := range values {
		values[i] = to
	}
}

// DenseCopy copies a version of every chunk while later ones are made. A chunk keeps the version before its newest, so
// only the second step after the copy began waits, for the copy of its own chunk. The user must hold the lock for
// stepping.
type DenseCopy struct {
	dense   *Dense
	version schema.Version
	at      []schema.Version  // [chunks] version that is copied
	steps   map[string]uint64 // by parameter, if its chunks may have had different numbers; else nil
	next    int               // earlier chunks are copied
	wanted  []bool            // [chunks]
	touched []bool            // [chunks] may have changed since the earlier version
	early   map[int][]Tensor
	bytes   int64 // of early
}

// Copy begins to copy version v of all chunks, or of those that may have changed since an earlier version that was
// copied. Only one copy may be open. It fails with ErrVersion if a chunk does not keep v.
func (d *Dense) Copy(v, since schema.Version, all bool) (*DenseCopy, error) {
	for i := range d.chunks {
		if err := d.has(i, v); err != nil {
			return nil, fmt.Errorf("copy dense parameters: %w", err)
		}
	}
	c := &DenseCopy{dense: d, version: v, early: map[int][]Tensor{}}
	less := d.intervals.room()
	for i := range d.chunks {
		d.chunks[i].touched -= min(d.chunks[i].touched, less)
	}
	from := d.intervals.since(since)
	for i := range d.chunks {
		touched := d.chunks[i].touched >= from || d.chunks[i].version != v
		c.touched, c.wanted, c.at = append(c.touched, touched), append(c.wanted, all || touched), append(c.at, v)
	}
	d.begun(v)
	d.copying = c
	return c, nil
}

// copyNow begins to copy each chunk at its own version, if they have none in common. Pieces get the version number v,
// and the largest number of steps of their parameter here.
func (d *Dense) copyNow(v schema.Version) *DenseCopy {
	c := &DenseCopy{dense: d, version: v, early: map[int][]Tensor{}, steps: map[string]uint64{}}
	for i := range d.chunks {
		at := d.chunks[i].version
		c.touched, c.wanted, c.at = append(c.touched, true), append(c.wanted, true), append(c.at, at)
		for _, p := range d.config.Chunks[i].Pieces {
			c.steps[p.Name] = max(c.steps[p.Name], d.chunks[i].steps[at%2])
		}
	}
	d.copying = c
	return c
}

// begun begins the next interval, with version v. Chunks at a later version have changed in it.
func (d *Dense) begun(v schema.Version) {
	d.intervals.mark(v)
	for i := range d.chunks {
		if d.chunks[i].version != v {
			d.chunks[i].touched = d.intervals.now
		}
	}
}

// Touched returns what may have changed since the earlier version, piece by piece, and its size in bytes.
func (c *DenseCopy) Touched() (all []Stretch, bytes int64) {
	for i, touched := range c.touched {
		for _, p := range c.dense.config.Chunks[i].Pieces {
			if touched {
				all = append(all, Stretch{Name: p.Name, From: p.From, Elements: p.Elements})
				bytes += int64(p.Elements*(1+c.dense.chunks[i].slotCount())) * valueBytes
			}
		}
	}
	return all, bytes
}

// slotCount returns the number of values that the optimizer keeps for each value of the chunk.
func (c *denseChunk) slotCount() int {
	if c.rule == nil {
		return 0
	}
	return len(c.rule.slots)
}

// keeps reports whether every chunk keeps a version.
func (d *Dense) keeps(v schema.Version) bool {
	for i := range d.chunks {
		if d.has(i, v) != nil {
			return false
		}
	}
	return true
}

// has returns ErrVersion if a chunk does not keep a version.
func (d *Dense) has(i int, v schema.Version) error {
	if c := &d.chunks[i]; v != c.version && (d.config.InPlace || v+1 != c.version || v < c.first) {
		return fmt.Errorf("version %d of chunk %d, which is at %d: %w", v, i, c.version, ErrVersion)
	}
	return nil
}

// keep copies a chunk whose next step overwrites the version that is being copied.
func (c *DenseCopy) keep(i int) {
	if c == nil || i < c.next || !c.wanted[i] || c.early[i] != nil ||
		c.dense.chunks[i].version == c.at[i] && !c.dense.config.InPlace {
		return
	}
	tensors := c.chunk(i)
	c.early[i] = tensors
	for _, t := range tensors {
		c.bytes += int64(len(t.Values)*(1+len(t.Slots))) * valueBytes
	}
}

func (c *DenseCopy) chunk(i int) []Tensor {
	all := Cloned(c.dense.Pieces(i, c.at[i]))
	for k := range all {
		if t := &all[k]; c.steps != nil {
			t.Version, t.Steps = c.version, c.steps[t.Name]
		}
	}
	return all
}

// Next returns the pieces of the next chunk, in new memory; false if none remain.
func (c *DenseCopy) Next() (pieces []Tensor, more bool) {
	for c.next < len(c.dense.chunks) && !c.wanted[c.next] {
		c.next++
	}
	if c.next == len(c.dense.chunks) {
		return nil, false
	}
	pieces, ok := c.early[c.next]
	if !ok {
		pieces = c.chunk(c.next)
	}
	delete(c.early, c.next)
	c.next++
	return pieces, true
}

// Bytes returns the size of the chunks that were copied before their turn.
func (c *DenseCopy) Bytes() int64 { return c.bytes }

// Close ends the copy, whether or not it is complete.
func (c *DenseCopy) Close() {
	if c.dense.copying == c {
		c.dense.copying = nil
	}
}

// Snapshot passes every piece of every chunk at version v to yield. v may be a chunk's newest version, or the one
// before it unless slots are kept in place; with Newest, each chunk is at its own. The contents of a Tensor are valid
// until yield returns; an error of yield ends the snapshot and is returned. It fails with ErrVersion if a chunk does
// not keep v.
func (d *Dense) Snapshot(v schema.Version, yield func(Tensor) error) error {
	for i := range d.chunks {
		if err := d.has(i, v); v != Newest && err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	for i := range d.chunks {
		at := v
		if v == Newest {
			at = d.chunks[i].version
		}
		for p := range d.config.Chunks[i].Pieces {
			if err := yield(d.piece(i, p, at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// piece returns a piece of a chunk at a stored version.
func (d *Dense) piece(i, piece int, v schema.Version) Tensor {
	c, p := &d.chunks[i], &d.config.Chunks[i].Pieces[piece]
	t := Tensor{Name: p.Name, From: p.From, Values: d.config.Values(i, v)[p.Offset : p.Offset+p.Elements], Version: v,
		Steps: c.steps[v%2]}
	if c.rule != nil {
		for s, values := range c.slotsAt(v) {
			t.Slots = append(t.Slots, Slot{c.rule.slots[s].name, values[p.Offset : p.Offset+p.Elements]})
		}
	}
	return t
}

// Pieces returns the pieces of a chunk at a stored version, in the owner's memory.
func (d *Dense) Pieces(i int, v schema.Version) (all []Tensor) {
	for p := range d.config.Chunks[i].Pieces {
		all = append(all, d.piece(i, p, v))
	}
	return all
}

// slotsAt returns the slots of a version.
func (c *denseChunk) slotsAt(v schema.Version) [][]float32 {
	return c.slotValues[v%schema.Version(len(c.slotValues))]
}

// DenseRestore replaces the contents of a Dense by a snapshot.
type DenseRestore struct {
	dense *Dense
	there [][]span // [chunk] restored spans
}

type span struct{ lo, hi int }

// Restore begins a restore. Until its Done has returned nil the Dense must not be used otherwise.
func (d *Dense) Restore() *DenseRestore {
	d.intervals = intervals{}
	for i := range d.chunks {
		d.chunks[i].touched = 0
	}
	return &DenseRestore{dense: d, there: make([][]span, len(d.chunks))}
}

// Tensor restores the part of a tensor that is here.
func (r *DenseRestore) Tensor(t Tensor) error {
	for i := range r.dense.chunks {
		for k := range r.dense.config.Chunks[i].Pieces {
			p := &r.dense.config.Chunks[i].Pieces[k]
			lo, hi := max(p.From, t.From), min(p.From+p.Elements, t.From+len(t.Values))
			if p.Name != t.Name || lo >= hi {
				continue
			}
			if err := r.put(i, &t, span{lo - t.From, hi - t.From}, lo-p.From+p.Offset); err != nil {
				return fmt.Errorf("restore elements %d to %d of parameter %q: %w", lo, hi-1, t.Name, err)
			}
		}
	}
	return nil
}

// put restores elements of a tensor to an offset of a chunk.
func (r *DenseRestore) put(i int, t *Tensor, from span, to int) error {
	c := &r.dense.chunks[i]
	if len(r.there[i]) == 0 {
		c.version, c.first = t.Version, t.Version
		c.steps[t.Version%2], c.beyond = t.Steps, beyond(t.Version, t.Steps)
	}
	if c.version != t.Version || c.steps[t.Version%2] != t.Steps {
		return fmt.Errorf("%w: version %d after %d steps, and others of its chunk are of %d after %d: a chunk is of one",
			ErrSnapshot, t.Version, t.Steps, c.version, c.steps[c.version%2])
	}
	if c.rule != nil {
		if err := c.rule.checkSlots(t.Slots, func(slotShape) int { return len(t.Values) }); err != nil {
			return err
		}
		for s, values := range c.slotsAt(c.version) {
			copy(values[to:], t.Slots[s].Values[from.lo:from.hi])
		}
	}
	copy(r.dense.config.Values(i, c.version)[to:], t.Values[from.lo:from.hi])
	r.there[i] = append(r.there[i], span{to, to + from.hi - from.lo})
	return nil
}

// Done returns nil if every value was restored once.
func (r *DenseRestore) Done() error {
	for i, there := range r.there {
		slices.SortFunc(there, func(a, b span) int { return a.lo - b.lo })
		n := 0
		for k, s := range there {
			if k > 0 && s.lo < there[k-1].hi {
				return fmt.Errorf("restore chunk %d: %w: values from %d on came twice", i, ErrSnapshot, s.lo)
			}
			n += s.hi - s.lo
		}
		for _, p := range r.dense.config.Chunks[i].Pieces {
			n -= p.Elements
		}
		if n != 0 {
			return fmt.Errorf("restore chunk %d: %w: %d values are missing", i, ErrSnapshot, -n)
		}
	}
	return nil
}
