package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"gradbus/internal/atomicfile"
	"gradbus/internal/safetensors"
	"gradbus/schema"
	"gradbus/shard/state"
)

// PartInfo is what is announced of a part that is on the disk.
type PartInfo struct {
	Shard    int    `json:"shard"`
	Bytes    int64  `json:"bytes"`
	Checksum uint32 `json:"crc32c"` // of the whole file
}

// Part is the part of one shard while it is written: the pieces of a snapshot come in any order, each value once. It
// holds no more than 64 KiB of values and what tells which have come. Not safe for concurrent use.
//
//	p, err := NewPart(dir, job, id, shards, shard)
//	defer p.Discard()
//	err = dense.Snapshot(id.Version, p.Tensor)
//	err = table.Snapshot(1<<16, p.Rows)
//	info, err := p.Commit()
type Part struct {
	dir, path string
	job       *schema.Job
	id        ID
	shards    int
	shard     int
	digest    string
	content   content
	writer    *safetensors.Writer
	came      map[string]*arrived // by layout.names
	keys      []int64             // scratch
	pairs     []float32           // scratch: marks and keys as they are written
	failed    error               // of the first piece that was refused; then nothing is committed
}

// arrived is what has come of one parameter or table.
type arrived struct {
	covered covered // elements or rows
	last    int64   // of an increment: the place of the newest row in a full part
	any     bool
	steps   uint64
}

// What permissions files and folders have, before the user's mask: those of saved models.
const (
	fileMode   = 0o666
	folderMode = 0o777
)

// NewPart begins a part, and makes the folders that are not there. It fails where the checkpoint is complete already,
// the job can have none (schema.Job.CheckVersions), or the file cannot be written; then it leaves nothing of the
// checkpoint.
func NewPart(dir string, job *schema.Job, id ID, shards, shard int) (*Part, error) {
	return newPart(dir, job, id, shards, shard, nil)
}

// NewIncrement begins a part of a checkpoint that goes on from another: what came since then, which is as much as
// touched says. Rows of a table come in the order of a full part, and of every table with rows on the shard comes a
// piece, perhaps without rows, which says how many steps it has had. It fails as NewPart does.
func NewIncrement(dir string, job *schema.Job, id, base ID, shards, shard int, touched *state.Extent) (*Part, error) {
	return newPart(dir, job, id, shards, shard, func(l *layout) (*increment, error) {
		if err := (&Base{ID: base}).check(id); err != nil {
			return nil, err
		}
		return newIncrement(l, base, touched)
	})
}

func newPart(dir string, job *schema.Job, id ID, shards, shard int, over func(*layout) (*increment, error)) (*Part,
	error) {
	if err := checkShards(job, shards, job.Validate()); err != nil {
		return nil, fmt.Errorf("begin part of checkpoint %s: %w", id, err)
	}
	if shard < 0 || shard >= shards {
		return nil, fmt.Errorf("begin part of checkpoint %s: shard %d: want 0 to %d", id, shard, shards-1)
	}
	digest, err := digestOf(job)
	if err != nil {
		return nil, fmt.Errorf("begin part of checkpoint %s: %w", id, err)
	}
	p := &Part{dir: dir, path: partPath(dir, job.Name, id, shard), job: job, id: id, shards: shards, shard: shard,
		digest: digest, content: content{layout: newLayout(job, placementOf(job, shards), shard)},
		came: map[string]*arrived{}}
	if over != nil {
		if p.content.inc, err = over(p.content.layout); err != nil {
			return nil, fmt.Errorf("begin part %d of checkpoint %s of job %s: %w", shard, id, job.Name, err)
		}
	}
	for name := range p.content.names() {
		p.came[name] = &arrived{last: -1}
	}
	err = p.create()
	if errors.Is(err, fs.ErrNotExist) { // who has given up another part may just have removed the folder
		err = p.create()
	}
	if err != nil {
		removeEmpty(dir, job.Name, id)
		return nil, fmt.Errorf("begin part %d of checkpoint %s of job %s: %w", shard, id, job.Name, err)
	}
	return p, nil
}

func (p *Part) create() error {
	if err := checkBelow(p.dir, folderOf(p.dir, p.job.Name, p.id)); err != nil {
		return err
	}
	if err := atomicfile.MakeFolder(folderOf(p.dir, p.job.Name, p.id), folderMode); err != nil {
		return err
	}
	if _, err := os.Lstat(completePath(p.dir, p.job.Name, p.id)); err == nil {
		return errors.New("the checkpoint is complete: want one that is not")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var err error
	p.writer, err = safetensors.Create(p.path, p.metadata(), p.content.tensors())
	return err
}

// metadata are those of the part's file, with the steps that are known. They have one length.
func (p *Part) metadata() map[string]string {
	steps := map[string]uint64{}
	for name, a := range p.came {
		steps[name] = a.steps
	}
	return partMetadata(p.digest, p.id, p.shards, p.shard, steps, p.content.inc)
}

// Tensor writes a stretch of a dense parameter, with its slots.
func (p *Part) Tensor(t state.Tensor) error {
	if err := p.tensor(&t); err != nil {
		return p.fail(fmt.Errorf("write elements %d to %d of parameter %q to checkpoint %s: %w", t.From,
			t.From+len(t.Values)-1, t.Name, p.id, err))
	}
	return nil
}

func (p *Part) tensor(t *state.Tensor) error {
	d, err := p.content.parameter(t.Name)
	if err != nil {
		return err
	}
	at, err := p.content.at(d, t.From, len(t.Values))
	if err != nil {
		return err
	}
	a := p.came[d.file]
	if err := a.check(p.id.Version, t.Version, t.Steps); err != nil {
		return err
	}
	if err := checkSlots(d.slots, t.Slots, func(state.SlotShape) int { return len(t.Values) }); err != nil {
		return err
	}
	if err := a.covered.add(at, at+int64(len(t.Values))); err != nil {
		return fmt.Errorf("value %w", err)
	}
	return p.put(d.file, at, t.Values, t.Slots, func(state.SlotShape) int64 { return at }, d.slots)
}

// Rows writes rows of a partition: the columns of this shard, with slots and marks. Keys are consecutive in their
// partition.
func (p *Part) Rows(r state.Rows) error {
	if err := p.rows(&r); err != nil {
		return p.fail(fmt.Errorf("write %d rows of partition %d of table %q to checkpoint %s: %w", len(r.Keys), r.Partition,
			r.Table, p.id, err))
	}
	return nil
}

func (p *Part) rows(r *state.Rows) error {
	t, err := p.content.tableOf(r.Table)
	if err != nil {
		return err
	}
	a, n := p.came[t.file], int64(len(r.Keys))
	if n == 0 {
		return a.check(p.id.Version, r.Version, r.Steps)
	}
	place, err := p.place(t, a, r)
	if err != nil {
		return err
	}
	if err := a.check(p.id.Version, r.Version, r.Steps); err != nil {
		return err
	}
	if err := t.checkRows(r); err != nil {
		return err
	}
	if err := a.covered.add(place, place+n); err != nil {
		return fmt.Errorf("row %w", err)
	}
	if t.marks {
		if err := p.putPairs(t.lastName(), place, r.Last); err != nil {
			return err
		}
	}
	if p.content.inc != nil {
		p.keys = p.keys[:0]
		for _, key := range r.Keys {
			p.keys = append(p.keys, int64(key))
		}
		if err := p.putPairs(t.keyName(), place, p.keys); err != nil {
			return err
		}
	}
	return p.put(t.file, place*int64(t.columns), r.Values, r.Slots,
		func(s state.SlotShape) int64 { return place * int64(s.Width(t.columns)) }, t.slots)
}

// place is where the first of rows lies in the part.
func (p *Part) place(t *tableLayout, a *arrived, r *state.Rows) (int64, error) {
	if p.content.inc == nil {
		return t.place(r)
	}
	at, last := int64(0), a.last
	if len(a.covered) > 0 {
		at = a.covered[0].hi // they come in their order, so there is one span
	}
	for _, key := range r.Keys {
		place, ok := t.placeOf(key)
		partition, _ := t.keys.At(key)
		if !ok || partition != r.Partition {
			return 0, fmt.Errorf("key %d is not in partition %d, or not on shard %d", key, r.Partition, p.shard)
		}
		if place <= last {
			return 0, fmt.Errorf("key %d, which is row %d here, after row %d: want them ascending", key, place, last)
		}
		last = place
	}
	if n := p.content.inc.rows[t.file]; at+int64(len(r.Keys)) > n {
		return 0, fmt.Errorf("more than the %d rows that were touched", n)
	}
	a.last = last
	return at, nil
}

// putPairs writes numbers as pairs, from a row on.
func (p *Part) putPairs(name string, row int64, numbers []int64) (err error) {
	if p.pairs, err = state.SplitMarks(p.pairs[:0], numbers); err != nil {
		return err
	}
	return p.writer.Put(name, 2*row, p.pairs)
}

// put writes values and slots.
func (p *Part) put(name string, at int64, values []float32, slots []state.Slot, slotAt func(state.SlotShape) int64,
	shapes []state.SlotShape) error {
	if err := p.writer.Put(name, at, values); err != nil {
		return err
	}
	for i, s := range shapes {
		if err := p.writer.Put(slotName(name, s.Name), slotAt(s), slots[i].Values); err != nil {
			return err
		}
	}
	return nil
}

// place is where the first of consecutive rows lies in a full part.
func (t *tableLayout) place(r *state.Rows) (int64, error) {
	if int(r.Partition) >= t.spec.Partitions || t.first[r.Partition] == t.first[r.Partition+1] {
		return 0, errors.New("the partition is not on this shard")
	}
	if r.Keys[0] >= t.spec.Rows {
		return 0, fmt.Errorf("key %d: the table has %d", r.Keys[0], t.spec.Rows)
	}
	partition, position := t.keys.At(r.Keys[0])
	if partition != r.Partition {
		return 0, fmt.Errorf("key %d is in partition %d", r.Keys[0], partition)
	}
	if end := position + uint64(len(r.Keys)); end > t.keys.Rows(partition) {
		return 0, fmt.Errorf("rows up to position %d: the partition has %d", end, t.keys.Rows(partition))
	}
	for i, key := range r.Keys {
		if want := t.keys.Key(partition, position+uint64(i)); key != want {
			return 0, fmt.Errorf("key %d after key %d: want %d, the next of the partition", key, r.Keys[i-1], want)
		}
	}
	return t.first[partition] + int64(position), nil
}

// checkRows compares the sizes of rows with what the part has room for.
func (t *tableLayout) checkRows(r *state.Rows) error {
	n := len(r.Keys)
	marks := 0
	if t.marks {
		marks = n
	}
	switch {
	case r.Column != t.column || r.Columns != t.columns:
		return fmt.Errorf("columns from %d on, %d of them: want %d from %d on", r.Column, r.Columns, t.columns, t.column)
	case len(r.Values) != n*t.columns:
		return fmt.Errorf("%d values: want %d", len(r.Values), n*t.columns)
	case len(r.Last) != marks:
		return fmt.Errorf("%d marks: want %d", len(r.Last), marks)
	}
	return checkSlots(t.slots, r.Slots, func(s state.SlotShape) int { return n * s.Width(t.columns) })
}

func checkSlots(want []state.SlotShape, slots []state.Slot, size func(state.SlotShape) int) error {
	if len(slots) != len(want) {
		return fmt.Errorf("%d slots: want %d", len(slots), len(want))
	}
	for i, s := range want {
		if slots[i].Name != s.Name || len(slots[i].Values) != size(s) {
			return fmt.Errorf("slot %q of %d values: want %q of %d", slots[i].Name, len(slots[i].Values), s.Name, size(s))
		}
	}
	return nil
}

// check compares version and steps of a piece with the checkpoint's and with those of the pieces before it.
func (a *arrived) check(want, version schema.Version, steps uint64) error {
	if version != want {
		return fmt.Errorf("version %d: want %d", version, want)
	}
	if a.any && steps != a.steps {
		return fmt.Errorf("after %d steps, and others are after %d: want as many", steps, a.steps)
	}
	a.any, a.steps = true, steps
	return nil
}

// fail remembers that the part is not what it says.
func (p *Part) fail(err error) error {
	if p.failed == nil {
		p.failed = err
	}
	return err
}

// Commit gives the part its name; it is on the disk when Commit returns. It fails where a piece was refused or is
// missing. After an error there is no part, and the caller calls Discard.
func (p *Part) Commit() (PartInfo, error) {
	info, err := p.commit()
	if err != nil {
		return PartInfo{}, fmt.Errorf("commit part %d of checkpoint %s of job %s: %w", p.shard, p.id, p.job.Name, err)
	}
	return info, nil
}

func (p *Part) commit() (PartInfo, error) {
	if p.failed != nil {
		return PartInfo{}, fmt.Errorf("a piece was refused: %w", p.failed)
	}
	for name, n := range p.content.names() {
		if at, missing := p.came[name].covered.missing(n); missing {
			return PartInfo{}, fmt.Errorf("value or row %d of %s, which has %d, did not come", at, name, n)
		}
		if !p.came[name].any {
			return PartInfo{}, fmt.Errorf("nothing of %s has come, so it is not known how many steps it has had", name)
		}
	}
	if err := p.writer.Commit(p.metadata()); err != nil {
		return PartInfo{}, err
	}
	bytes, sum, err := checksum(context.Background(), p.dir, p.path)
	if err != nil {
		return PartInfo{}, errors.Join(err, atomicfile.Remove(p.path))
	}
	return PartInfo{Shard: p.shard, Bytes: bytes, Checksum: sum}, nil
}

// Discard ends a part that was not committed, and leaves nothing of it, not even folders that are empty. After a Commit
// it does nothing.
func (p *Part) Discard() {
	p.writer.Discard()
	removeEmpty(p.dir, p.job.Name, p.id)
}

// removeEmpty removes the folders of a checkpoint that has no files, and of a job that has no checkpoints.
func removeEmpty(dir string, job schema.JobName, id ID) {
	if syscall.Rmdir(folderOf(dir, job, id)) == nil {
		_ = syscall.Rmdir(jobFolder(dir, job)) // which has others, mostly
	}
}
