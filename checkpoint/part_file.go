package checkpoint

import (
	"bytes"
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

	"gradbus/internal/regular"
	"gradbus/internal/safetensors"
	"gradbus/schema"
	"gradbus/schema/crc32c"
	"gradbus/shard/state"
)

// What the metadata of a part say.
const (
	partFormat    = "gradbus checkpoint part 1"
	incFormat     = "gradbus checkpoint increment 1"
	formatEntry   = "format"
	idEntry       = "gradbus.checkpoint"
	jobEntry      = "gradbus.job" // the digest of its manifest
	shardEntry    = "gradbus.shard"
	shardsEntry   = "gradbus.shards"
	versionEntry  = "gradbus.version"
	stepsEntry    = "gradbus.steps" // of each parameter and table that has anything in the part
	baseEntry     = "gradbus.base"  // of an increment
	runsEntry     = "gradbus.runs"  // of an increment: which elements of parameters it has
	checksumBytes = 1 << 20         // read at once
)

// partMetadata are those of a part. They have as many bytes whatever the steps are.
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
		panic(fmt.Sprintf("checkpoint: encode steps: %v", err)) // numbers by strings always encode
	}
	return b
}

// digestOf is that of a job's manifest, as parts have it.
func digestOf(job *schema.Job) (string, error) {
	digest, err := job.Digest()
	return hex.EncodeToString(digest[:]), err
}

// checkShards says whether a job that is valid has a placement on so many shards, and can have checkpoints.
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
	indices map[string]*rowIndex // of an increment, by tableLayout.name; nil where there are no rows
}

// openPart opens the part of a shard, and compares what it says of itself with what the manifest says of it. It reads
// no value, and the keys of an increment.
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

// judged is an error of reading a file that must be there: ErrDamaged where the file is not what was written, and as it
// is where another attempt, or another user, may find the file well.
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

// increment takes what the file says of what it has.
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

// checksum is the length of a file below dir and the CRC-32C of all of it.
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

// join appends the marks that pairs in a file stand for.
func join(marks []int64, pairs []float32) ([]int64, error) {
	marks, err := state.JoinMarks(marks, pairs)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return marks, nil
}

// decodeStrict reads one JSON value whose names are all known.
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
