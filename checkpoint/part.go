package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/internal/safetensors"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/schema/crc32c"
	"gradbus/shard/state"
)

// PartInfo describes a part that is on the disk.
type PartInfo struct {
	Shard    int    `json:"shard"`
	Bytes    int64  `json:"bytes"`
	Checksum uint32 `json:"crc32c"` // of the whole file
}

// Part is the part of one shard while it is written: the pieces of a snapshot arrive in any order, each value once. It
// needs memory for at most 64 KiB of values and for the record of what has arrived. Not safe for concurrent use.
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
	pairs     []float32           // scratch: marks and keys in the form of the file
	failed    error               // error of the first refused piece; then nothing is committed
}

// arrived is the received part of one parameter or table.
type arrived struct {
	covered covered // elements or rows
	last    int64   // of an increment: the place of its newest row in a full part
	any     bool
	steps   uint64
}

// Permissions of files and folders, before the user's mask: those of saved models.
const (
	fileMode   = 0o666
	folderMode = 0o777
)

// NewPart begins a part, and makes missing folders. It fails if the checkpoint is already complete, if the job cannot
// have checkpoints (schema.Job.CheckVersions), or if the file cannot be written; then it leaves nothing of the
// checkpoint.
func NewPart(dir string, job *schema.Job, id ID, shards, shard int) (*Part, error) {
	return newPart(dir, job, id, shards, shard, nil)
}

// NewIncrement begins a part of an increment over another checkpoint, with the changes in touched. Rows of a table
// arrive in the order of a full part. Every table with rows on the shard gets a piece, perhaps without rows, with its
// number of steps. It fails as NewPart does.
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
	if errors.Is(err, fs.ErrNotExist) { // another part's Discard may just have removed the folder
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

// metadata returns the metadata of the part's file, with the steps known so far. Their length is constant.
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

// place returns the place of the first row in the part.
func (p *Part) place(t *tableLayout, a *arrived, r *state.Rows) (int64, error) {
	if p.content.inc == nil {
		return t.place(r)
	}
	at, last := int64(0), a.last
	if len(a.covered) > 0 {
		at = a.covered[0].hi // rows arrive in order, so there is one span
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

// place returns the place of the first of consecutive rows in a full part.
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

// checkRows checks the sizes of rows.
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

// check compares version and steps of a piece with the checkpoint's and with those of earlier pieces.
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

// fail records that the part is invalid.
func (p *Part) fail(err error) error {
	if p.failed == nil {
		p.failed = err
	}
	return err
}

// Commit gives the part its name; it is on the disk when Commit returns. It fails if a piece was refused or is missing.
// After an error there is no part, and the caller calls Discard.
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

// Discard ends a part that was not committed, and leaves nothing of it, not even empty folders. After a Commit it does
// nothing.
func (p *Part) Discard() {
	p.writer.Discard()
	removeEmpty(p.dir, p.job.Name, p.id)
}

// removeEmpty removes the folder of a checkpoint without files, and that of a job without checkpoints.
func removeEmpty(dir string, job schema.JobName, id ID) {
	if syscall.Rmdir(folderOf(dir, job, id)) == nil {
		_ = syscall.Rmdir(jobFolder(dir, job)) // fails unless it is empty
	}
}

// Entries of the metadata of a part.
const (
	partFormat    = "gradbus checkpoint part 1"
	incFormat     = "gradbus checkpoint increment 1"
	formatEntry   = "format"
	idEntry       = "gradbus.checkpoint"
	jobEntry      = "gradbus.job" // digest of its manifest
	shardEntry    = "gradbus.shard"
	shardsEntry   = "gradbus.shards"
	versionEntry  = "gradbus.version"
	stepsEntry    = "gradbus.steps" // of each parameter and table in the part
	baseEntry     = "gradbus.base"  // of an increment
	runsEntry     = "gradbus.runs"  // of an increment: elements of parameters
	checksumBytes = 1 << 20         // read at once
)

// partMetadata returns the metadata of a part. Their length does not depend on the steps.
func partMetadata(digest string, id ID, shards, shard int, steps map[string]uint64, inc *increment) map[string]string {
	most := map[string]uint64{}
	for name := range steps {
		most[name] = math.MaxUint64
	}
	metadata := map[string]string{formatEntry: partFormat, idEntry: id.String(), jobEntry: digest,
		shardEntry: strconv.Itoa(shard), shardsEntry: strconv.Itoa(shards),
		versionEntry: strconv.FormatUint(uint64(id.Version), 10),
		stepsEntry:   fmt.Sprintf("%-*s", len(encodeSteps(most)), encodeSteps(steps))}
	if inc != nil {
		metadata[formatEntry], metadata[baseEntry], metadata[runsEntry] = incFormat, inc.base.String(), inc.encodeRuns()
	}
	return metadata
}

func encodeSteps(steps map[string]uint64) []byte {
	b, err := json.Marshal(steps)
	if err != nil {
		panic(fmt.Sprintf("checkpoint: encode steps: %v", err)) // numbers by strings can always be encoded
	}
	return b
}

// digestOf returns the digest of a job's manifest, as parts have it.
func digestOf(job *schema.Job) (string, error) {
	digest, err := job.Digest()
	return hex.EncodeToString(digest[:]), err
}

// checkShards returns an error unless a valid job can be placed on a number of shards and have checkpoints.
func checkShards(job *schema.Job, shards int, valid error) error {
	if valid != nil {
		return valid
	}
	if shards < 1 || shards > schema.ShardsMax {
		return fmt.Errorf("%d shards: want 1 to %d", shards, schema.ShardsMax)
	}
	return job.CheckVersions()
}

// partFile is a part that is read.
type partFile struct {
	*safetensors.Reader
	content content
	steps   map[string]uint64    // by content.names
	indices map[string]*rowIndex // of an increment, by tableLayout.name; nil without rows
}

// openPart opens the part of a shard, and compares it with the manifest. It reads the keys of an increment, but no
// values.
func (m *Manifest) openPart(dir string, l *layout, shard int) (_ *partFile, err error) {
	path := partPath(dir, m.Job.Name, m.ID, shard)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, judged(err)
	}
	if want := m.Parts[shard].Bytes; info.Size() != want {
		return nil, fmt.Errorf("%s: %w: %d bytes, want %d", path, ErrDamaged, info.Size(), want)
	}
	f, err := openBelow(dir, path)
	if err != nil {
		return nil, judged(err)
	}
	r, err := safetensors.NewReader(f)
	if err != nil {
		return nil, judged(err)
	}
	p := &partFile{Reader: r, content: content{layout: l}, indices: map[string]*rowIndex{}}
	err = p.check(m, shard)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	} else {
		err = p.readKeys()
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// judged returns the error of reading a required file: ErrDamaged if the file is not what was written, and err itself
// if another attempt, or another user, may succeed.
func judged(err error) error {
	for _, damage := range []error{fs.ErrNotExist, safetensors.ErrFormat, regular.ErrNotRegular, syscall.EIO,
		syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP} {
		if errors.Is(err, damage) {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return err
}

// check compares names, shapes and metadata with those that the part must have.
func (p *partFile) check(m *Manifest, shard int) error {
	shapes, metadata := map[string][]int{}, p.Metadata()
	for _, t := range p.Tensors() {
		shapes[t.Name] = t.Shape
	}
	if m.Base != nil {
		if err := p.increment(m.Base.ID, shapes); err != nil {
			return err
		}
	}
	want := p.content.tensors()
	if len(shapes) != len(want) {
		return fmt.Errorf("%d tensors, want %d", len(shapes), len(want))
	}
	for _, t := range want {
		if shape, ok := shapes[t.Name]; !ok || !slices.Equal(shape, t.Shape) {
			return fmt.Errorf("tensor %q of shape %v, want %v", t.Name, shape, t.Shape)
		}
	}
	d := json.NewDecoder(strings.NewReader(metadata[stepsEntry]))
	if err := d.Decode(&p.steps); err != nil {
		return fmt.Errorf("metadata %s: %q: %w", stepsEntry, metadata[stepsEntry], err)
	}
	names := p.content.names()
	for name := range names {
		if _, ok := p.steps[name]; !ok || len(p.steps) != len(names) {
			return fmt.Errorf("metadata %s: %q: want the steps of each of its %d parameters and tables", stepsEntry,
				metadata[stepsEntry], len(names))
		}
	}
	digest := m.digest
	if digest == "" {
		var err error
		if digest, err = digestOf(m.Job); err != nil {
			return err
		}
	}
	for key, want := range partMetadata(digest, m.ID, m.Shards, shard, p.steps, p.content.inc) {
		if metadata[key] != want {
			return fmt.Errorf("metadata %s: %q, want %q", key, metadata[key], want)
		}
	}
	return nil
}

// increment reads the metadata of an increment.
func (p *partFile) increment(base ID, shapes map[string][]int) error {
	inc := &increment{base: base, runs: map[string][]run{}, rows: map[string]int64{}}
	p.content.inc = inc
	for i := range p.content.tables {
		t := &p.content.tables[i]
		if shape := shapes[t.file]; len(shape) > 0 {
			inc.rows[t.file] = int64(shape[0])
		}
		if n := inc.rows[t.file]; n > t.rows() {
			return fmt.Errorf("%d rows of %s, which has %d", n, t.file, t.rows())
		}
	}
	return inc.decodeRuns(p.content.layout, p.Metadata()[runsEntry])
}

// checksum returns the length of a file below dir and the CRC-32C of its contents.
func checksum(ctx context.Context, dir, path string) (length int64, sum uint32, err error) {
	f, err := openBelow(dir, path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	buffer := make([]byte, checksumBytes)
	for {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		n, err := io.ReadFull(f, buffer)
		length, sum = length+int64(n), crc32c.Update(sum, buffer[:n])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return length, sum, nil
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

// join appends the marks in the pairs of a file.
func join(marks []int64, pairs []float32) ([]int64, error) {
	marks, err := state.JoinMarks(marks, pairs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return marks, nil
}

// decodeStrict reads one JSON value without unknown names.
func decodeStrict(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

// layout is the contents of the part of one shard. It follows from the job's manifest, the number of shards and the
// shard, so writer and reader agree on it. Read-only once made.
type layout struct {
	shard  int
	dense  []denseLayout // in the manifest's order
	tables []tableLayout // likewise
}

// denseLayout is the elements of a parameter that are on the shard, or a parameter of a module that the shard hosts.
type denseLayout struct {
	parameter string // name in pieces of a snapshot
	file      string // name of the tensor with its values; slotName names those of slots
	elements  int64
	stretches []stretch // ascending, with gaps between them
	slots     []state.SlotShape
}

// stretch is consecutive elements of a parameter.
type stretch struct {
	from, elements int
	at             int64 // of the first element, in the part's tensor
}

// tableLayout is the rows of a table that are on the shard.
type tableLayout struct {
	table           schema.Table
	file            string // name of the tensor with its values
	spec            *schema.TableSpec
	keys            schema.Partitioning
	column, columns int
	// First place of each partition, and at the end the number of rows. A partition that is not here has the place of
	// the next one.
	first []int64
	slots []state.SlotShape
	marks bool
}

// placementOf returns the placement of a job in a number of parts: that of its shards, or that which they would have if
// trainers reduced nothing.
func placementOf(job *schema.Job, shards int) *schema.Placement {
	return schema.NewPlacement(job.OnShards(), shards)
}

// newLayout returns the layout of a shard of a job that has passed CheckVersions.
func newLayout(job *schema.Job, place *schema.Placement, shard int) *layout {
	l := &layout{shard: shard}
	l.addDense(job, place, shard)
	for i := range job.Modules {
		if place.ShardOfModule(i) == shard {
			l.addModule(&job.Modules[i], &job.Optimizer)
		}
	}
	for i := range job.Tables {
		l.addTable(job, place, schema.Table(i), shard)
	}
	return l
}

// addDense adds the parts of parameters that are in the chunks of a shard.
func (l *layout) addDense(job *schema.Job, place *schema.Placement, shard int) {
	pieces := map[string][]state.Piece{}
	for _, c := range place.OwnedChunks(shard) {
		for _, p := range state.PlacedChunk(job, place, c.Bucket, c.Chunk, false).Pieces {
			pieces[p.Name] = append(pieces[p.Name], p)
		}
	}
	for i := range job.Parameters {
		here := pieces[job.Parameters[i].Name]
		if len(here) == 0 {
			continue
		}
		slices.SortFunc(here, func(a, b state.Piece) int { return cmp.Compare(a.From, b.From) })
		name := job.Parameters[i].Name
		d := denseLayout{parameter: name, file: "dense/" + escaped(name), slots: state.SlotsOf(job.OptimizerOfParameter(i))}
		for _, p := range here {
			if n := len(d.stretches); n > 0 && d.stretches[n-1].from+d.stretches[n-1].elements == p.From {
				d.stretches[n-1].elements += p.Elements
			} else {
				d.stretches = append(d.stretches, stretch{from: p.From, elements: p.Elements, at: d.elements})
			}
			d.elements += int64(p.Elements)
		}
		l.dense = append(l.dense, d)
	}
}

// modulesParameters lists the parameters of a module. A module that cannot be built, which no ps accepts, has none.
func modulesParameters(spec *schema.ModuleSpec) []nn.Parameter {
	module, err := nn.Build([]byte(spec.Module))
	if err != nil {
		return nil
	}
	return module.Parameters()
}

// addModule lays out the parameters of a module.
func (l *layout) addModule(spec *schema.ModuleSpec, optimizer *schema.Optimizer) {
	for _, p := range modulesParameters(spec) {
		n := p.Elements()
		l.dense = append(l.dense, denseLayout{parameter: spec.TensorName(p.Name),
			file: "module/" + spec.Name + "/" + escaped(p.Name), elements: int64(n),
			stretches: []stretch{{elements: n}}, slots: state.SlotsOf(*optimizer)})
	}
}

// addTable lays out the partitions of a table that are on a shard, unless it has no row there.
func (l *layout) addTable(job *schema.Job, place *schema.Placement, table schema.Table, shard int) {
	spec, optimizer := &job.Tables[table], job.OptimizerOf(table)
	t := tableLayout{table: table, file: "table/" + escaped(spec.Name), spec: spec,
		keys: spec.Partitioning(), first: make([]int64, spec.Partitions+1),
		slots: state.SlotsOf(optimizer), marks: state.MarksRows(optimizer)}
	if t.column, t.columns = place.Columns(table, shard); t.columns == 0 {
		return
	}
	for p := range schema.Partition(spec.Partitions) {
		t.first[p+1] = t.first[p]
		if place.Holds(table, p, shard) {
			t.first[p+1] += int64(t.keys.Rows(p))
		}
	}
	if t.rows() > 0 {
		l.tables = append(l.tables, t)
	}
}

// rows returns the number of rows of the table here.
func (t *tableLayout) rows() int64 { return t.first[len(t.first)-1] }

// escaped returns a name without colons, different for different names.
func escaped(name string) string { return escapes.Replace(name) }

var escapes = strings.NewReplacer("%", "%25", ":", "%3A")

// slotName joins names by a separator that escaped names do not have.
func slotName(tensor, slot string) string { return tensor + ":" + slot }

// lastName returns the tensor of the marks of rows; no optimizer has a slot of that name.
func (t *tableLayout) lastName() string { return slotName(t.file, "last") }

// tensors lists the tensors of the part's file.
func (l *layout) tensors() (all []safetensors.Tensor) {
	for i := range l.dense {
		all = append(all, l.dense[i].tensors(l.dense[i].elements)...)
	}
	for i := range l.tables {
		all = append(all, l.tables[i].tensors(int(l.tables[i].rows()))...)
	}
	return all
}

// tensors lists the tensors of a parameter with a number of elements.
func (d *denseLayout) tensors(elements int64) []safetensors.Tensor {
	all := []safetensors.Tensor{{Name: d.file, Shape: []int{int(elements)}}}
	for _, s := range d.slots {
		all = append(all, safetensors.Tensor{Name: slotName(d.file, s.Name), Shape: []int{int(elements)}})
	}
	return all
}

// tensors lists the tensors of a table with a number of rows.
func (t *tableLayout) tensors(rows int) []safetensors.Tensor {
	all := []safetensors.Tensor{{Name: t.file, Shape: []int{rows, t.columns}}}
	for _, s := range t.slots {
		shape := []int{rows}
		if !s.PerRow {
			shape = []int{rows, t.columns}
		}
		all = append(all, safetensors.Tensor{Name: slotName(t.file, s.Name), Shape: shape})
	}
	if t.marks {
		all = append(all, safetensors.Tensor{Name: t.lastName(), Shape: []int{rows, 2}})
	}
	return all
}

// names returns, by parameter and table with elements or rows here, their number.
func (l *layout) names() map[string]int64 {
	names := map[string]int64{}
	for i := range l.dense {
		names[l.dense[i].file] = l.dense[i].elements
	}
	for i := range l.tables {
		names[l.tables[i].file] = l.tables[i].rows()
	}
	return names
}

// stretch returns the stretch that contains n elements from one on.
func (d *denseLayout) stretch(from, n int) (stretch, bool) {
	i, found := slices.BinarySearchFunc(d.stretches, from, func(s stretch, from int) int {
		return cmp.Compare(s.from, from)
	})
	if !found {
		i--
	}
	if i < 0 || from < 0 || n > d.stretches[i].elements || from-d.stretches[i].from > d.stretches[i].elements-n {
		return stretch{}, false
	}
	return d.stretches[i], true
}
