package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/internal/safetensors"
	"gradbus/schema"
	"gradbus/schema/crc32c"
	"gradbus/shard/state"
)

// Formats that this package writes and reads: a full checkpoint has format 1, an increment format 2, and either of them
// with a program's part format 3.
const (
	formatFull      = 1
	formatIncrement = 2
	Format          = 3 // the highest
)

// Reasons why a checkpoint cannot be used.
var (
	// ErrIncomplete reports that a checkpoint has no manifest: it is being written or removed, or was abandoned.
	ErrIncomplete = errors.New("incomplete checkpoint")
	// ErrDamaged reports that a file of a complete checkpoint is missing or was changed.
	ErrDamaged = errors.New("damaged checkpoint")
	// ErrNewer reports that a checkpoint has a format that this program does not know. It may be complete.
	ErrNewer = errors.New("checkpoint of a newer format")
)

// manifestBytesMax exceeds the size of any manifest: that of a job has at most 1 MiB, which indentation may triple, and
// each of 4096 parts takes about 100 bytes.
const manifestBytesMax = 8 << 20

// Manifest is the contents of complete.json. Its fields must not be changed after it was read.
type Manifest struct {
	Format  int               `json:"format"`
	ID      ID                `json:"id"`
	Job     *schema.Job       `json:"-"` // as the shards had it; encoded separately under "job"
	Shards  int               `json:"shards"`
	Parts   []PartInfo        `json:"parts"`                   // of all shards, ascending
	LR      []schema.LRChange `json:"lr"`                      // changes of the learning rates so far, ascending
	Here    int               `json:"trainers_here,omitempty"` // number of trainers at that time; 0: not recorded
	Created time.Time         `json:"created"`
	Base    *Base             `json:"base,omitempty"`    // of an increment; nil for a full checkpoint
	Program *ProgramInfo      `json:"program,omitempty"` // nil: there is no such part

	digest string    // of the job's manifest as it was read; "" if it was not read
	base   *Manifest // the opened base
	sum    uint32    // of the text, as Base.Checksum has it
}

// manifestFile is complete.json, field by field. The checksum is the last field of every format, and is the CRC-32C of
// all bytes before its digits, so that every change is detected.
type manifestFile struct {
	Manifest
	Job      json.RawMessage `json:"job"`
	Checksum string          `json:"crc32c,omitempty"`
}

// ProgramInfo is the size and the checksum of a program's part: bytes whose meaning the program knows alone.
type ProgramInfo struct {
	Bytes    int64  `json:"bytes"`
	Checksum uint32 `json:"crc32c"`
}

// ProgramBytesMax bounds a program's part.
const ProgramBytesMax = 64 << 20

// WriteProgram writes the program's part of a checkpoint that is to be completed.
func (m *Manifest) WriteProgram(dir string, data []byte) error {
	if len(data) > ProgramBytesMax {
		return fmt.Errorf("program's part of checkpoint %s: %d bytes: want at most %d", m.ID, len(data), ProgramBytesMax)
	}
	err := atomicfile.Write(programPath(dir, m.Job.Name, m.ID), fileMode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("program's part of checkpoint %s: %w", m.ID, err)
	}
	m.Program = &ProgramInfo{Bytes: int64(len(data)), Checksum: crc32c.Update(0, data)}
	return nil
}

// ReadProgram returns the program's part of a checkpoint; nil: there is none. It fails with ErrDamaged if it is not what
// was written.
func (m *Manifest) ReadProgram(dir string) ([]byte, error) {
	if m.Program == nil {
		return nil, nil
	}
	path := programPath(dir, m.Job.Name, m.ID)
	data, err := regular.ReadIn(dir, filepath.Join(string(m.Job.Name), m.ID.String(), programName), ProgramBytesMax)
	if err != nil {
		return nil, judged(err)
	}
	if int64(len(data)) != m.Program.Bytes || crc32c.Update(0, data) != m.Program.Checksum {
		return nil, fmt.Errorf("%s: %w: it is not what was written", path, ErrDamaged)
	}
	return data, nil
}

// Text before and after the digits of the checksum.
const (
	checksumHead   = ",\n  \"crc32c\": \""
	checksumDigits = 8
	checksumTail   = "\"\n}\n"
)

// Complete writes the manifest of a checkpoint, which counts from then on. It sets Format, Base.Checksum, and Created
// if that is zero. It fails, and changes nothing on the disk, if a part is missing or has another size or contents, if
// the base of an increment cannot be used, or if the manifest is invalid.
func Complete(dir string, m *Manifest) error {
	if err := complete(dir, m); err != nil {
		return fmt.Errorf("complete checkpoint %s in %s: %w", m.ID, dir, err)
	}
	return nil
}

func complete(dir string, m *Manifest) error {
	m.Format = m.format()
	if m.Created.IsZero() {
		m.Created = time.Now()
	}
	m.Created = m.Created.UTC().Round(0)
	if err := m.check(); err != nil {
		return err
	}
	if err := m.sizes(dir); err != nil {
		return err
	}
	if err := m.onBase(dir); err != nil {
		return err
	}
	if err := m.eachPart(dir, func(int, *partFile) error { return nil }); err != nil {
		return err
	}
	text, err := m.encode()
	if err != nil {
		return err
	}
	if _, err := decodeManifest(text); err != nil { // else a reader would report it as damaged
		return err
	}
	return atomicfile.Write(completePath(dir, m.Job.Name, m.ID), fileMode, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// format returns the format of a manifest with these contents.
func (m *Manifest) format() int {
	switch {
	case m.Program != nil:
		return Format
	case m.Base != nil:
		return formatIncrement
	}
	return formatFull
}

// check returns what is wrong with a manifest by itself.
func (m *Manifest) check() error {
	switch {
	case m.Format != m.format():
		return fmt.Errorf("format %d: want %d of a full checkpoint, %d of one with a base, and %d with a program's part",
			m.Format, formatFull, formatIncrement, Format)
	case m.Program != nil && (m.Program.Bytes < 0 || m.Program.Bytes > ProgramBytesMax):
		return fmt.Errorf("program's part of %d bytes: want at most %d", m.Program.Bytes, ProgramBytesMax)
	case m.Job == nil:
		return errors.New("no job: want its manifest")
	case m.ID.Epoch == 0:
		return errors.New("epoch 0: want the number of the run, from 1")
	case len(m.Parts) != m.Shards:
		return fmt.Errorf("%d parts of %d shards: want one each", len(m.Parts), m.Shards)
	}
	for i, p := range m.Parts {
		if p.Shard != i {
			return fmt.Errorf("part %d is of shard %d: want them by shard, each once", i, p.Shard)
		}
	}
	if m.Base != nil {
		if err := m.Base.check(m.ID); err != nil {
			return err
		}
	}
	for i := range m.LR {
		if i > 0 && m.LR[i].From <= m.LR[i-1].From {
			return fmt.Errorf("the learning rates change at batch %d after batch %d: want them ascending", m.LR[i].From,
				m.LR[i-1].From)
		}
	}
	if !m.Job.NeedsShards() && m.Shards == 1 { // written by a trainer of an earlier build, under any policy
		model := *m.Job
		model.Policy = schema.PolicyFail
		return model.ValidateStored()
	}
	return checkShards(m.Job, m.Shards, m.Job.ValidateStored())
}

// sizes returns an error for a part that is missing or has another size.
func (m *Manifest) sizes(dir string) error {
	for i, p := range m.Parts {
		path := partPath(dir, m.Job.Name, m.ID, i)
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return judged(err)
		case !info.Mode().IsRegular() || info.Size() != p.Bytes:
			return fmt.Errorf("%s: %w: %d bytes, want %d", path, ErrDamaged, info.Size(), p.Bytes)
		}
	}
	return nil
}

// bytes returns the size of all parts.
func (m *Manifest) bytes() (n int64) {
	for _, p := range m.Parts {
		n += p.Bytes
	}
	return n
}

func (m *Manifest) encode() ([]byte, error) {
	job, err := m.Job.Encode()
	if err != nil {
		return nil, err
	}
	file := manifestFile{Manifest: *m, Job: job}
	if file.LR == nil {
		file.LR = []schema.LRChange{}
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return nil, err
	}
	text = append(bytes.TrimSuffix(text, []byte("\n}")), checksumHead...)
	sum := fmt.Sprintf("%0*x", checksumDigits, crc32c.Update(0, text))
	if text = append(append(text, sum...), checksumTail...); len(text) > manifestBytesMax {
		return nil, fmt.Errorf("a manifest of %d bytes: want at most %d", len(text), manifestBytesMax)
	}
	return text, nil
}

// decodeManifest reads the text that encode wrote, and refuses any other byte.
func decodeManifest(text []byte) (*Manifest, error) {
	body, found := bytes.CutSuffix(text, []byte(checksumTail))
	at := len(body) - checksumDigits
	if !found || at < 0 || !bytes.HasSuffix(body[:at], []byte(checksumHead)) {
		return nil, fmt.Errorf("%w: its manifest does not end with a checksum", ErrDamaged)
	}
	if want := fmt.Sprintf("%0*x", checksumDigits, crc32c.Update(0, body[:at])); string(body[at:]) != want {
		return nil, fmt.Errorf("%w: its manifest has checksum %q, want %q", ErrDamaged, body[at:], want)
	}
	var known struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &known); err == nil && known.Format > Format {
		return nil, fmt.Errorf("%w: %d, and this program reads up to %d: want a newer gradbus", ErrNewer, known.Format,
			Format)
	}
	var file manifestFile
	if err := decodeStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%w: its manifest: %w", ErrDamaged, err)
	}
	m := &file.Manifest
	m.sum = crc32c.Update(0, text)
	var job bytes.Buffer
	err := json.Compact(&job, file.Job) // its bound does not count blanks
	if err == nil {
		m.digest = fmt.Sprintf("%x", sha256.Sum256(job.Bytes()))
		m.Job, err = schema.DecodeStoredJob(job.Bytes())
	}
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: its manifest: %w", ErrDamaged, err)
	}
	return m, nil
}

// Open reads the manifests of a checkpoint and of its bases, and checks the sizes of their parts. It fails with
// ErrIncomplete, ErrDamaged or ErrNewer if the checkpoint cannot be used.
func Open(dir string, job schema.JobName, id ID) (*Manifest, error) {
	return newOpener(dir, job).open(id)
}

// openAlone opens a checkpoint without its base.
func openAlone(dir string, job schema.JobName, id ID) (*Manifest, error) {
	path := completePath(dir, job, id)
	f, err := openBelow(dir, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no %s", ErrIncomplete, completeName)
	}
	if err != nil {
		return nil, judged(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, manifestBytesMax+1))
	if err != nil {
		return nil, judged(err)
	}
	m, err := decodeManifest(text)
	switch {
	case err != nil:
	case m.ID != id:
		err = fmt.Errorf("%w: its manifest is of checkpoint %s", ErrDamaged, m.ID)
	case m.Job.Name != job:
		err = fmt.Errorf("%w: its manifest is of job %s", ErrDamaged, m.Job.Name)
	default:
		err = m.sizes(dir)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// ID names a checkpoint among those of a job. Its text sorts by age, as Compare does.
type ID struct {
	Epoch   uint64         // the number of the run, among the runs of this job name that wrote into the folder, from 1
	Run     schema.RunID   // of the job
	Version schema.Version // of everything in the checkpoint
}

const idForm = "%06d-%016x-%012d"

// String returns the name of the checkpoint's folder.
//
//	ID{1, 0xabc, 500}.String() // 000001-0000000000000abc-000000000500
func (id ID) String() string {
	return fmt.Sprintf(idForm, id.Epoch, uint64(id.Run), uint64(id.Version))
}

// ParseID parses a result of String, and nothing else.
func ParseID(s string) (ID, error) {
	var epoch, run, version uint64
	_, err := fmt.Sscanf(s, "%d-%x-%d", &epoch, &run, &version)
	id := ID{epoch, schema.RunID(run), schema.Version(version)}
	if err != nil || id.String() != s {
		return ID{}, fmt.Errorf("checkpoint id %q: want the number of a run, its id and a version, as %s", s,
			ID{1, 0xabc, 500})
	}
	return id, nil
}

// Compare returns a negative number if id is older than other, and a positive one if it is newer.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Run, other.Run),
		cmp.Compare(id.Version, other.Version))
}

// MarshalText implements encoding.TextMarshaler by String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler by ParseID.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}

// Names below a folder of checkpoints.
const (
	completeName = "complete.json"
	programName  = "program"
)

func jobFolder(dir string, job schema.JobName) string { return filepath.Join(dir, string(job)) }

func folderOf(dir string, job schema.JobName, id ID) string {
	return filepath.Join(jobFolder(dir, job), id.String())
}

func partPath(dir string, job schema.JobName, id ID, shard int) string {
	return filepath.Join(folderOf(dir, job, id), fmt.Sprintf("s%d.safetensors", shard))
}

// openBelow opens a file in a folder of checkpoints, in which other users may have put links and pipes.
func openBelow(dir, path string) (*os.File, error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return nil, err
	}
	return regular.OpenIn(dir, name)
}

// checkBelow refuses a path that a link leads out of a folder of checkpoints: openBelow could not read what is written
// there. A path that does not exist may be made.
func checkBelow(dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		_, err = root.Stat(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, system := errors.AsType[syscall.Errno](err); err != nil && !system { // os has no name for it
		err = fmt.Errorf("want a folder below %s, and no link out of it: %w", dir, err)
	}
	return err
}

func programPath(dir string, job schema.JobName, id ID) string {
	return filepath.Join(folderOf(dir, job, id), programName)
}

func completePath(dir string, job schema.JobName, id ID) string {
	return filepath.Join(folderOf(dir, job, id), completeName)
}

// content is the contents of a part: all of its layout, or an increment.
type content struct {
	*layout
	inc *increment // nil for a full part
}

// increment is the contents of the part of an increment: everything that has changed since the base, and perhaps more.
type increment struct {
	base ID
	runs map[string][]run // by denseLayout.name, ascending; absent if there are no elements
	rows map[string]int64 // number of rows by tableLayout.name
}

// run is consecutive elements of a parameter in an increment.
type run struct {
	from, elements int
	place          int64 // of the first element, in the tensor of a full part
	at             int64 // of the first element, in the tensor of the increment
}

// newIncrement returns the increment with everything that was touched.
func newIncrement(l *layout, base ID, e *state.Extent) (*increment, error) {
	inc := &increment{base: base, runs: map[string][]run{}, rows: map[string]int64{}}
	for _, t := range e.Tensors {
		d, err := l.parameter(t.Name)
		if err == nil {
			err = inc.add(l, d, t.From, t.Elements)
		}
		if err != nil {
			return nil, fmt.Errorf("elements %d to %d of parameter %q: %w", t.From, t.From+t.Elements-1, t.Name, err)
		}
	}
	left := 0
	for _, n := range e.Rows {
		if n != 0 {
			left++
		}
	}
	for i := range l.tables {
		t := &l.tables[i]
		n := e.Rows[t.spec.Name]
		if n < 0 || n > t.rows() {
			return nil, fmt.Errorf("%d rows of table %q: it has %d on shard %d", n, t.spec.Name, t.rows(), l.shard)
		}
		if inc.rows[t.file] = n; n > 0 {
			left--
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("rows of %d tables that are not on shard %d", left, l.shard)
	}
	return inc, inc.order()
}

func (inc *increment) add(l *layout, d *denseLayout, from, elements int) error {
	s, ok := d.stretch(from, elements)
	if !ok || elements < 1 {
		return fmt.Errorf("not all of them are on shard %d", l.shard)
	}
	inc.runs[d.file] = append(inc.runs[d.file], run{from: from, elements: elements, place: s.at + int64(from-s.from)})
	return nil
}

// order sorts runs, joins those that are adjacent, and sets their positions.
func (inc *increment) order() error {
	for name, all := range inc.runs {
		slices.SortFunc(all, func(a, b run) int { return cmp.Compare(a.from, b.from) })
		joined := all[:0]
		for _, r := range all {
			last := len(joined) - 1
			switch {
			case last >= 0 && r.from < joined[last].from+joined[last].elements:
				return fmt.Errorf("element %d of %s comes twice", r.from, name)
			case last >= 0 && r.from == joined[last].from+joined[last].elements:
				joined[last].elements += r.elements
				continue
			case last >= 0:
				r.at = joined[last].at + int64(joined[last].elements)
			}
			joined = append(joined, r)
		}
		inc.runs[name] = joined
	}
	return nil
}

// elements returns the number of elements of a parameter in the increment.
func (inc *increment) elements(d *denseLayout) (n int64) {
	for _, r := range inc.runs[d.file] {
		n += int64(r.elements)
	}
	return n
}

// at returns the position of the first of n elements in the part.
func (c content) at(d *denseLayout, from, n int) (int64, error) {
	s, ok := d.stretch(from, n)
	if !ok {
		return 0, fmt.Errorf("not all of them are on shard %d", c.shard)
	}
	if c.inc == nil {
		return s.at + int64(from-s.from), nil
	}
	for _, r := range c.inc.runs[d.file] {
		if from >= r.from && from+n <= r.from+r.elements {
			return r.at + int64(from-r.from), nil
		}
	}
	return 0, errors.New("not all of them were touched")
}

// encodeRuns and decodeRuns convert runs to and from metadata: for each parameter, pairs of the first element and the
// number of elements.
func (inc *increment) encodeRuns() string {
	pairs := map[string][][2]int{}
	for name, runs := range inc.runs {
		for _, r := range runs {
			pairs[name] = append(pairs[name], [2]int{r.from, r.elements})
		}
	}
	b, err := json.Marshal(pairs)
	if err != nil {
		panic(fmt.Sprintf("checkpoint: encode runs: %v", err)) // numbers by strings can always be encoded
	}
	return string(b)
}

func (inc *increment) decodeRuns(l *layout, text string) error {
	var pairs map[string][][2]int
	if err := decodeStrict([]byte(text), &pairs); err != nil {
		return fmt.Errorf("metadata %s: %w", runsEntry, err)
	}
	for i := range l.dense {
		d := &l.dense[i]
		for _, p := range pairs[d.file] {
			if err := inc.add(l, d, p[0], p[1]); err != nil {
				return fmt.Errorf("metadata %s: elements from %d on, %d of them, of %s: %w", runsEntry, p[0], p[1], d.file, err)
			}
		}
	}
	return inc.order()
}

// tensors lists the tensors of the part's file.
func (c content) tensors() (all []safetensors.Tensor) {
	if c.inc == nil {
		return c.layout.tensors()
	}
	for i := range c.dense {
		if d := &c.dense[i]; len(c.inc.runs[d.file]) > 0 {
			all = append(all, d.tensors(c.inc.elements(d))...)
		}
	}
	for i := range c.tables {
		t := &c.tables[i]
		if rows := int(c.inc.rows[t.file]); rows > 0 {
			all = append(append(all, t.tensors(rows)...), safetensors.Tensor{Name: t.keyName(), Shape: []int{rows, 2}})
		}
	}
	return all
}

// names returns, by parameter and table whose steps the part has, its number of elements or rows.
func (c content) names() map[string]int64 {
	if c.inc == nil {
		return c.layout.names()
	}
	names := map[string]int64{}
	for i := range c.dense {
		if d := &c.dense[i]; len(c.inc.runs[d.file]) > 0 {
			names[d.file] = c.inc.elements(d)
		}
	}
	for i := range c.tables {
		names[c.tables[i].file] = c.inc.rows[c.tables[i].file]
	}
	return names
}

// keyName returns the tensor of the keys of an increment's rows; no optimizer has a slot of that name.
func (t *tableLayout) keyName() string { return slotName(t.file, "key") }

// placeOf returns the place of the row of a key in a full part; false if it is not on the shard.
func (t *tableLayout) placeOf(key uint64) (int64, bool) {
	if key >= t.spec.Rows {
		return 0, false
	}
	p, position := t.keys.At(key)
	return t.first[p] + int64(position), t.first[p] < t.first[p+1]
}

// parameter returns the layout of a parameter on the shard.
func (l *layout) parameter(name string) (*denseLayout, error) {
	for i := range l.dense {
		if l.dense[i].parameter == name {
			return &l.dense[i], nil
		}
	}
	return nil, fmt.Errorf("shard %d has none of it", l.shard)
}

// tableOf returns the layout of a table on the shard.
func (l *layout) tableOf(name string) (*tableLayout, error) {
	for i := range l.tables {
		if l.tables[i].spec.Name == name {
			return &l.tables[i], nil
		}
	}
	return nil, fmt.Errorf("shard %d has none of it", l.shard)
}

// Base is the checkpoint since which an increment has the changes. It is an earlier version of the same run.
type Base struct {
	ID       ID     `json:"id"`
	Checksum uint32 `json:"crc32c"` // of its whole complete.json
}

// check returns an error unless an increment of a run can have this base.
func (b *Base) check(of ID) error {
	if b.ID.Epoch != of.Epoch || b.ID.Run != of.Run || b.ID.Version >= of.Version || b.ID.Version == 0 {
		return fmt.Errorf("base %s of checkpoint %s: want an earlier version of the same run", b.ID, of)
	}
	return nil
}

// Chain lists the checkpoints to read: a full one, and the increments over it up to this one, oldest first.
func (m *Manifest) Chain() (all []*Manifest) {
	for at := m; at != nil; at = at.base {
		all = append(all, at)
	}
	slices.Reverse(all)
	return all
}

// Full reports whether the checkpoint has no base.
func (m *Manifest) Full() bool { return m.Base == nil }

// onBase opens the base of an increment that is to be completed.
func (m *Manifest) onBase(dir string) error {
	if m.Base == nil {
		return nil
	}
	base, err := Open(dir, m.Job.Name, m.Base.ID)
	if err != nil {
		return fmt.Errorf("its base: %w", err)
	}
	m.Base.Checksum = base.sum
	if err := m.checkBase(base); err != nil {
		return err
	}
	m.base = base
	return nil
}

// checkBase compares an increment with its opened base.
func (m *Manifest) checkBase(base *Manifest) error {
	digest, err := digestOf(m.Job)
	if err != nil {
		return err
	}
	of, err := digestOf(base.Job)
	switch {
	case err != nil:
		return err
	case base.sum != m.Base.Checksum:
		return fmt.Errorf("%w: its base %s has a manifest with checksum %08x, want %08x", ErrDamaged, base.ID, base.sum,
			m.Base.Checksum)
	case base.Shards != m.Shards || digest != of:
		return fmt.Errorf("%w: its base %s is of another job, or of %d shards: want %d", ErrDamaged, base.ID, base.Shards,
			m.Shards)
	}
	return nil
}

// opener opens checkpoints of a job, each once.
type opener struct {
	dir  string
	job  schema.JobName
	seen map[ID]opened
}

type opened struct {
	manifest *Manifest
	err      error
}

func newOpener(dir string, job schema.JobName) *opener { return &opener{dir, job, map[ID]opened{}} }

// open is Open.
func (o *opener) open(id ID) (*Manifest, error) {
	if was, ok := o.seen[id]; ok {
		return was.manifest, was.err
	}
	m, err := openAlone(o.dir, o.job, id)
	if err == nil && m.Base != nil {
		err = o.openBase(m)
	}
	if err != nil {
		m, err = nil, fmt.Errorf("checkpoint %s of job %s: %w", id, o.job, err)
	}
	o.seen[id] = opened{m, err}
	return m, err
}

// openBase opens the base of an increment. An increment without its base is damaged.
func (o *opener) openBase(m *Manifest) error {
	base, err := o.open(m.Base.ID) // of an earlier version, so the recursion ends
	if errors.Is(err, ErrIncomplete) {
		return fmt.Errorf("%w: its base: %v", ErrDamaged, err)
	}
	if err != nil {
		return fmt.Errorf("its base: %w", err)
	}
	if err := m.checkBase(base); err != nil {
		return err
	}
	m.base = base
	return nil
}

// Verify reads every byte of every part, including its bases, and compares sizes, checksums, tensors and steps with the
// manifest. It fails with ErrDamaged if one differs.
func (m *Manifest) Verify(dir string) error { return NewVerifier(context.Background(), dir).Verify(m) }

// Verifier verifies checkpoints of a folder, each file once, even if it is the base of many. Use it for a short time:
// files that it has read are not read again.
type Verifier struct {
	ctx  context.Context
	dir  string
	seen map[verified]error
}

type verified struct {
	job schema.JobName
	id  ID
}

// NewVerifier makes a Verifier. After ctx ends, Verify fails with its error.
func NewVerifier(ctx context.Context, dir string) *Verifier {
	return &Verifier{ctx, dir, map[verified]error{}}
}

// Verify is Manifest.Verify.
func (v *Verifier) Verify(m *Manifest) error {
	for _, link := range m.Chain() {
		key := verified{m.Job.Name, link.ID}
		err, known := v.seen[key]
		if !known {
			err = link.verify(v.ctx, v.dir)
			v.seen[key] = err
		}
		switch {
		case err != nil && link != m:
			return fmt.Errorf("verify checkpoint %s of job %s: its base %s: %w", m.ID, m.Job.Name, link.ID, err)
		case err != nil:
			return fmt.Errorf("verify checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
		}
	}
	return nil
}

func (m *Manifest) verify(ctx context.Context, dir string) error {
	if err := m.check(); err != nil {
		return err
	}
	for i, want := range m.Parts {
		path := partPath(dir, m.Job.Name, m.ID, i)
		length, sum, err := checksum(ctx, dir, path)
		switch {
		case err != nil:
			return judged(err)
		case length != want.Bytes:
			return fmt.Errorf("%s: %w: %d bytes, want %d", path, ErrDamaged, length, want.Bytes)
		case sum != want.Checksum:
			return fmt.Errorf("%s: %w: checksum %08x, want %08x", path, ErrDamaged, sum, want.Checksum)
		}
	}
	if _, err := m.ReadProgram(dir); err != nil {
		return err
	}
	return m.eachPart(dir, func(int, *partFile) error { return nil })
}

// eachPart opens the part of one shard after the other, without its bases. All parts of a tensor must have the same
// number of steps, unless the checkpoint is fuzzy.
func (m *Manifest) eachPart(dir string, use func(shard int, p *partFile) error) error {
	place, steps := placementOf(m.Job, m.Shards), agreement{}
	for shard := range m.Parts {
		p, err := m.openPart(dir, newLayout(m.Job, place, shard), shard)
		if err != nil {
			return err
		}
		if !m.Job.Moments() {
			err = steps.agree(shard, p.steps)
		}
		if err == nil {
			err = use(shard, p)
		}
		p.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// agreement has the number of steps of each tensor, and the first part that stated it.
type agreement map[string]struct {
	shard int
	steps uint64
}

func (a agreement) agree(shard int, steps map[string]uint64) error {
	for name, n := range steps {
		first, ok := a[name]
		if !ok {
			first.shard, first.steps = shard, n
			a[name] = first
		}
		if n != first.steps {
			return fmt.Errorf("%w: part %d has %s after %d steps, and part %d after %d", ErrDamaged, shard, name, n,
				first.shard, first.steps)
		}
	}
	return nil
}
