package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"gradbus/internal/atomicfile"
	"gradbus/schema"
	"gradbus/schema/crc32c"
)

// Formats that this package writes and reads: a full checkpoint is of format 1, an increment of format 2.
const (
	formatFull = 1
	Format     = 2 // the highest
)

// Why a checkpoint cannot be used.
var (
	// ErrIncomplete says that a checkpoint has no manifest: it is being written, was given up, or is being removed.
	ErrIncomplete = errors.New("incomplete checkpoint")
	// ErrDamaged says that a file of a complete checkpoint is missing, or not what was written.
	ErrDamaged = errors.New("damaged checkpoint")
	// ErrNewer says that a checkpoint is of a format that this program does not know. It may be whole.
	ErrNewer = errors.New("checkpoint of a newer format")
)

// manifestBytesMax is more than a manifest takes: that of a job has at most 1 MiB, which indentation may triple, and
// each of 4096 parts some 100 bytes.
const manifestBytesMax = 8 << 20

// Manifest is what complete.json says: that a checkpoint is whole, and what it is. Its fields are not to be changed
// once it was read.
type Manifest struct {
	Format  int               `json:"format"`
	ID      ID                `json:"id"`
	Job     *schema.Job       `json:"-"` // as the shards had it; its own encoding stands under "job"
	Shards  int               `json:"shards"`
	Parts   []PartInfo        `json:"parts"`                   // of all shards, ascending
	LR      []schema.LRChange `json:"lr"`                      // the changes of the learning rates by then, ascending by batch
	Here    int               `json:"trainers_here,omitempty"` // trainers that there were then; 0: nobody has noted that
	Created time.Time         `json:"created"`
	Base    *Base             `json:"base,omitempty"` // of an increment; nil of a full one

	digest string    // of the job's manifest as it was read; "" if it was not
	base   *Manifest // as it was opened
	sum    uint32    // of the text, as Base.Checksum has it
}

// manifestFile is complete.json, field by field. The checksum is the last field of every format, and is the CRC-32C of
// all bytes before its digits, so that no byte can change unnoticed.
type manifestFile struct {
	Manifest
	Job      json.RawMessage `json:"job"`
	Checksum string          `json:"crc32c,omitempty"`
}

// What stands before and behind the digits of the checksum.
const (
	checksumHead   = ",\n  \"crc32c\": \""
	checksumDigits = 8
	checksumTail   = "\"\n}\n"
)

// Complete writes the manifest of a checkpoint, which counts from then on. It sets Format, Base.Checksum, and Created
// where that is zero. It is refused where a part is not there with its size, or is not what it should be, where the
// base of an increment cannot be used, or the manifest is not right by itself; then nothing on the disk has changed.
func Complete(dir string, m *Manifest) error {
	if err := complete(dir, m); err != nil {
		return fmt.Errorf("complete checkpoint %s in %s: %w", m.ID, dir, err)
	}
	return nil
}

func complete(dir string, m *Manifest) error {
	if m.Format = formatFull; m.Base != nil {
		m.Format = Format
	}
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
	if _, err := decodeManifest(text); err != nil { // who cannot read it would take it for damaged
		return err
	}
	return atomicfile.Write(completePath(dir, m.Job.Name, m.ID), fileMode, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// check says what is wrong with a manifest by itself.
func (m *Manifest) check() error {
	switch {
	case m.Format == formatFull && m.Base != nil || m.Format == Format && m.Base == nil:
		return fmt.Errorf("format %d: want %d of a full checkpoint, and %d of one with a base", m.Format, formatFull, Format)
	case m.Format < formatFull || m.Format > Format:
		return fmt.Errorf("format %d: want %d or %d", m.Format, formatFull, Format)
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
	if !m.Job.NeedsShards() && m.Shards == 1 { // a trainer of an earlier build wrote it, under any policy: it is a model
		model := *m.Job
		model.Policy = schema.PolicyFail
		return model.ValidateStored()
	}
	return checkShards(m.Job, m.Shards, m.Job.ValidateStored())
}

// sizes says which part is not there with its size.
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

// bytes is how much its parts take.
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

// decodeManifest reads what encode wrote, to the byte.
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
	err := json.Compact(&job, file.Job) // which has a bound, that blanks do not count for
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

// Open reads the manifests of a checkpoint and of its bases, and looks at the sizes of their parts. It is
// ErrIncomplete, ErrDamaged or ErrNewer where the checkpoint cannot be used.
func Open(dir string, job schema.JobName, id ID) (*Manifest, error) {
	return newOpener(dir, job).open(id)
}

// openAlone opens a checkpoint without what it goes on from.
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
