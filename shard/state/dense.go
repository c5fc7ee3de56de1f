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

// DenseConfig is what dense state is made from. Every field but LR, NonFinite and Start is needed.
type DenseConfig struct {
	Backend cuda.Backend
	Lanes   int
	// Values is where a version of a chunk lies: in frames that are published, in a flat space, in a module's tensors.
	// What it gives for a chunk's newest version stays as it is until that of the next is whole. The two may not overlap.
	Values func(chunk int, v schema.Version) []float32
	Chunks []Chunk
	LR     *LRChanges
	// InPlace keeps slots of the newest version alone. Else those of the version before are there, too.
	InPlace bool
	// NonFinite is what becomes of gradients that are not finite: cuda.Refuse leaves the chunk as it is.
	NonFinite cuda.NonFinite
	// Start is the first version that steps move: before it they assign (schema.StartModel).
	Start schema.Version
}

// Chunk is a stretch of dense values that one optimizer steps at once.
type Chunk struct {
	Elements  int
	Optimizer *schema.Optimizer // nil where values are only set, by Set
	Pieces    []Piece           // what the chunk is made of; between them there may be gaps, of zeros
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

// Dense is chunks of dense parameters in versions, with their optimizers. Version v of a chunk is what v outcomes have
// made of it: each is a step, or, where no lane had a sample, the values as they were. Values lie where the owner wants
// them; slots lie here, outside the Go heap. Different chunks may be stepped at the same time; otherwise it is not safe
// for concurrent use.
//
//	d, err := NewDense(config)
//	err = d.Draw(ctx)
//	err = d.Average(i, weight, terms)   // version v+1 of chunk i, from v and the sum of terms
type Dense struct {
	config DenseConfig
	chunks []denseChunk
	memory *cuda.Buffer

	intervals intervals // between copies

	copying *DenseCopy // nil where nothing is copied
}

// denseChunk is a chunk's newest version. Index v % len of what is kept by version is version v's.
type denseChunk struct {
	version schema.Version
	first   schema.Version // that has been here: one that was restored, or 0
	rule    *rule          // its own: a step changes it
	kept    [][][]float32  // of each version, each slot of the rule
	slots   [][]cuda.Slot  // the same, from each version to the next
	steps   [2]uint64      // that were done by then
	beyond  schema.Version // by which the steps of a restored moment were more than its number: learning rates count them
	touched uint8          // the interval in which it changed last
}

// NewDense makes state whose values are what Values holds: see Draw.
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

// lay gives a chunk its slots, and the rest of the memory back.
func (c *denseChunk) lay(free []float32, elements, versions int) []float32 {
	if c.rule == nil {
		return free
	}
	c.kept, c.slots = make([][][]float32, versions), make([][]cuda.Slot, versions)
	for v := range c.kept {
		for range c.rule.slots {
			fill(free[:elements], c.rule.initial)
			c.kept[v] = append(c.kept[v], free[:elements:elements])
			free = free[aligned(elements):]
		}
	}
	for v := range c.slots {
		next := c.kept[(v+1)%versions]
		for s, shape := range c.rule.slots {
			c.slots[v] = append(c.slots[v], cuda.Slot{Name: shape.name, Before: cuda.Float32s(c.kept[v][s]),
				After: cuda.Float32s(next[s])})
		}
	}
	return free
}

// aligned is the room that so many values take, where all begin at multiples of 64 bytes.
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

// Begin makes v the newest version of every chunk, as if so many outcomes had been set. Its values are those that lie
// there.
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

// String is versions, steps and checksums of slots, for tests and logs.
func (d *Dense) String() string {
	if d == nil {
		return "none"
	}
	var b strings.Builder
	for i := range d.chunks {
		c := &d.chunks[i]
		fmt.Fprintf(&b, "chunk %d: version %d steps %d", i, c.version, c.steps)
		for _, slots := range c.kept {
			for s, values := range slots {
				fmt.Fprintf(&b, " %s %08x", c.rule.slots[s].name, checksum(values))
			}
		}
		b.WriteString("; ")
	}
	return b.String()
}

// Version is a chunk's newest version.
func (d *Dense) Version(i int) schema.Version { return d.chunks[i].version }

// begin is what a step of a chunk starts from and where it ends.
func (d *Dense) begin(i int) (c *denseChunk, now, out []float32) {
	c = &d.chunks[i]
	d.copying.keep(i)
	return c, d.config.Values(i, c.version), d.config.Values(i, c.version+1)
}

// done makes what begin gave the newest version, with a step more or none.
func (c *denseChunk) done(steps uint64) {
	next := c.version + 1
	c.steps[next%2] = c.steps[c.version%2] + steps
	c.version = next
}

func (c *denseChunk) slotsNow() []cuda.Slot {
	return c.slots[c.version%schema.Version(len(c.slots))]
}

// Average steps a chunk by the sum of terms, which the optimizer divides once by weight, in one pass. After an error
// the chunk is as it was, unless the error says that the backend failed. An outcome that is not finite is an error,
// *NonFiniteError; with InPlace the slots are lost then.
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

// Step is Average of one sum. scale is by what the gradient is multiplied once it is divided: 1, or what Norm says.
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

// Keep makes the next version of a chunk what the newest is: no lane had a sample.
func (d *Dense) Keep(i int) {
	c, now, out := d.begin(i)
	copy(out, now)
	c.keepSlots()
	c.done(0)
}

// assign makes the sum of terms by weight the next version of a chunk, which is no step.
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

// keepSlots makes the slots of the next version those of the newest.
func (c *denseChunk) keepSlots() {
	if c.rule != nil {
		at := c.version % schema.Version(len(c.kept))
		next := (c.version + 1) % schema.Version(len(c.kept))
		for s, values := range c.kept[at] {
			copy(c.kept[next][s], values)
		}
	}
}

// Set makes values the next version of a chunk: another owner has stepped it.
func (d *Dense) Set(i int, values []float32) {
	c, _, out := d.begin(i)
	c.touched = d.intervals.now
	copy(out, values)
	c.done(0)
}

// fill sets memory that is zeroed.
func fill(values []float32, to float32) {
	if to == 0 {
		return // untouched pages cost nothing
	}
	for i := range values {
		values[i] = to
	}
}

// DenseCopy copies a version of every chunk while later ones are made. A chunk keeps the version before its newest, so
// only the step after the next one has to wait, for the copy of its own chunk. Its user must be allowed to step.
type DenseCopy struct {
	dense   *Dense
	version schema.Version
	at      []schema.Version  // [chunks] which of its own is copied
	steps   map[string]uint64 // by parameter, where chunks may have had different ones; else nil
	next    int               // chunks before it are copied
	wanted  []bool            // [chunks]
	touched []bool            // [chunks] may have changed since the earlier version
	early   map[int][]Tensor
	bytes   int64 // of early
}

// Copy begins to copy version v of chunks: of all of them, or of those that may have changed since an earlier version
// that was copied. Each must have it; one copy at a time. It is ErrVersion where one does not.
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

// copyNow begins to copy each chunk as it is, where they are at no common version. Pieces have the number v as theirs,
// and as many steps as any of their parameter's here.
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

// begun begins the next interval, with version v. Chunks that are at a later one have changed in it.
func (d *Dense) begun(v schema.Version) {
	d.intervals.mark(v)
	for i := range d.chunks {
		if d.chunks[i].version != v {
			d.chunks[i].touched = d.intervals.now
		}
	}
}

// Touched is what may have changed since the earlier version, piece by piece, and what that takes in bytes.
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

// slotCount is how many values the optimizer keeps for each of the chunk's.
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

// has says whether a chunk keeps a version.
func (d *Dense) has(i int, v schema.Version) error {
	if c := &d.chunks[i]; v != c.version && (d.config.InPlace || v+1 != c.version || v < c.first) {
		return fmt.Errorf("version %d of chunk %d, which is at %d: %w", v, i, c.version, ErrVersion)
	}
	return nil
}

// keep copies a chunk whose next step takes the memory of the version that is copied.
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

// Next gives the pieces of the next chunk, in memory of their own. It is false where none is left.
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

// Bytes is what chunks took that were copied before their turn.
func (c *DenseCopy) Bytes() int64 { return c.bytes }

// Close ends the copy, whether or not it is whole.
func (c *DenseCopy) Close() {
	if c.dense.copying == c {
		c.dense.copying = nil
	}
}

// Snapshot gives yield every piece of every chunk at version v, which may be a chunk's newest, or the one before unless
// slots are kept in place; with Newest each chunk is at its own. What a Tensor holds is valid until yield returns,
// whose error ends the snapshot and is returned. It is ErrVersion where a chunk does not keep v.
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

// piece is a piece of a chunk at a version that is there.
func (d *Dense) piece(i, piece int, v schema.Version) Tensor {
	c, p := &d.chunks[i], &d.config.Chunks[i].Pieces[piece]
	t := Tensor{Name: p.Name, From: p.From, Values: d.config.Values(i, v)[p.Offset : p.Offset+p.Elements], Version: v,
		Steps: c.steps[v%2]}
	if c.rule != nil {
		for s, kept := range c.keptAt(v) {
			t.Slots = append(t.Slots, Slot{c.rule.slots[s].name, kept[p.Offset : p.Offset+p.Elements]})
		}
	}
	return t
}

// Pieces are those of a chunk at a version that is there, in the memory of the owner.
func (d *Dense) Pieces(i int, v schema.Version) (all []Tensor) {
	for p := range d.config.Chunks[i].Pieces {
		all = append(all, d.piece(i, p, v))
	}
	return all
}

// keptAt is the slots of a version.
func (c *denseChunk) keptAt(v schema.Version) [][]float32 {
	return c.kept[v%schema.Version(len(c.kept))]
}

// DenseRestore puts a snapshot in the place of what a Dense has.
type DenseRestore struct {
	dense *Dense
	there [][]span // [chunk] what has been restored
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

// Tensor restores what of a tensor is here.
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

// put restores elements of a tensor to a place of a chunk.
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
		for s, kept := range c.keptAt(c.version) {
			copy(kept[to:], t.Slots[s].Values[from.lo:from.hi])
		}
	}
	copy(r.dense.config.Values(i, c.version)[to:], t.Values[from.lo:from.hi])
	r.there[i] = append(r.there[i], span{to, to + from.hi - from.lo})
	return nil
}

// Done says whether every value was restored, once.
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
