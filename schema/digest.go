package schema

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"sort"
	"unsafe"

	"gradbus/schema/crc32c"
)

// WeightsDigest computes the digest of a job's weights: the SHA-256 over the values of all parameters and tables, and
// over nothing else. Tensors (parameters and tables together) come in ascending order of their names' bytes. A
// parameter's values come in their own order; a table's rows by partition ascending, and by key ascending within a
// partition, every key of [0, Rows) once. A value is its four bytes, little-endian, so that -0 and NaN payloads count.
// The digest is the same at any placement, and for any number of trainers and shards.
//
// Values may be given as they arrive, but only in that order, which Next tells; the first mistake is kept and returned
// by Sum. Not safe for concurrent use.
//
//	d := NewWeightsDigest(job)
//	for t, ok := d.Next(); ok; t, ok = d.Next() {
//		if t.IsTable { d.Rows(partition, keys, rows) ... } else { d.Values(parameters[t.Index]) }
//	}
//	sum, err := d.Sum()
type WeightsDigest struct {
	job     *Job
	tensors []Tensor
	hash    hash.Hash
	err     error

	at        int // in tensors
	done      uint64
	partition Partition // of the last row
	key       uint64    // of the last row
}

// Tensor is a parameter or a table of a job.
type Tensor struct {
	Name    string
	IsTable bool
	Index   int // in the manifest's Parameters or Tables
}

// Tensors is a job's parameters and tables in ascending order of their names' bytes.
func (j *Job) Tensors() []Tensor {
	all := make([]Tensor, 0, len(j.Parameters)+len(j.Tables))
	for i, p := range j.Parameters {
		all = append(all, Tensor{p.Name, false, i})
	}
	for i, t := range j.Tables {
		all = append(all, Tensor{t.Name, true, i})
	}
	sort.Slice(all, func(a, b int) bool { return all[a].Name < all[b].Name })
	return all
}

// NewWeightsDigest begins the digest of a job that Validate has found right.
func NewWeightsDigest(job *Job) *WeightsDigest {
	return &WeightsDigest{job: job, tensors: job.Tensors(), hash: sha256.New()}
}

// Next is the tensor whose values are wanted next; false where there are no more, or after a mistake.
func (d *WeightsDigest) Next() (Tensor, bool) {
	if d.err != nil || d.at == len(d.tensors) {
		return Tensor{}, false
	}
	return d.tensors[d.at], true
}

// Values adds values of the parameter that Next names, in order; several calls may share them out.
func (d *WeightsDigest) Values(values []float32) error {
	t, ok := d.Next()
	if !ok || t.IsTable {
		return d.fail("values where Next does not name a parameter")
	}
	want := uint64(d.job.Parameters[t.Index].Elements())
	if uint64(len(values)) > want-d.done {
		return d.fail("parameter %q: %d values more than its %d", t.Name, uint64(len(values))-(want-d.done), want)
	}
	d.add(values)
	d.advance(uint64(len(values)), want)
	return nil
}

// Rows adds rows [len(keys), Dim] of one partition of the table that Next names: keys ascending, within the call and
// from call to call of a partition, partitions ascending. Partitions without keys may be left out.
func (d *WeightsDigest) Rows(p Partition, keys []uint64, rows []float32) error {
	t, ok := d.Next()
	if !ok || !t.IsTable {
		return d.fail("rows where Next does not name a table")
	}
	spec := &d.job.Tables[t.Index]
	if len(rows) != len(keys)*spec.Dim {
		return d.fail("table %q: %d values for %d keys of dim %d", t.Name, len(rows), len(keys), spec.Dim)
	}
	first := d.done == 0
	for _, key := range keys {
		switch {
		case key >= spec.Rows || PartitionOf(key, spec.Partitions) != p:
			return d.fail("table %q: key %d is not in partition %d", t.Name, key, p)
		case !first && (p < d.partition || p == d.partition && key <= d.key):
			return d.fail("table %q: key %d of partition %d after key %d of partition %d", t.Name, key, p, d.key, d.partition)
		}
		d.partition, d.key, first = p, key, false
	}
	d.add(rows)
	d.advance(uint64(len(keys)), spec.Rows)
	return nil
}

// Table adds all rows [Rows, Dim] of the table that Next names, held whole in order of the key.
func (d *WeightsDigest) Table(rows []float32) error {
	t, ok := d.Next()
	if !ok || !t.IsTable || d.done != 0 {
		return d.fail("a whole table where Next does not name one, or after some of its rows")
	}
	spec := &d.job.Tables[t.Index]
	if uint64(len(rows)) != spec.Rows*uint64(spec.Dim) {
		return d.fail("table %q: %d values, want %d rows of %d", t.Name, len(rows), spec.Rows, spec.Dim)
	}
	keys := spec.Partitioning()
	for p := range Partition(spec.Partitions) {
		for at := range keys.Rows(p) {
			key := int(keys.Key(p, at))
			d.add(rows[key*spec.Dim : (key+1)*spec.Dim])
		}
	}
	d.advance(spec.Rows, spec.Rows)
	return nil
}

// Sum is the digest; it fails where a call before it did, and while values are missing.
func (d *WeightsDigest) Sum() ([sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	if t, missing := d.Next(); missing {
		return sum, fmt.Errorf("digest of weights: %q is not complete", t.Name)
	}
	if d.err != nil {
		return sum, d.err
	}
	d.hash.Sum(sum[:0])
	return sum, nil
}

func (d *WeightsDigest) add(values []float32) { d.hash.Write(bytesOf(values)) }

func (d *WeightsDigest) advance(n, of uint64) {
	if d.done += n; d.done == of {
		d.at, d.done = d.at+1, 0
	}
}

func (d *WeightsDigest) fail(format string, args ...any) error {
	if d.err == nil {
		d.err = errors.New("digest of weights: " + fmt.Sprintf(format, args...))
	}
	return d.err
}

// bytesOf views values as the bytes of the wire.
func bytesOf(values []float32) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*valueBytes)
}

// AddReplica adds values, as their little-endian bytes, to the CRC-32C of a replica of the dense parameters: what
// ReplicaDigest tells. It begins with 0 and takes the parameters in the manifest's order. -0 and NaN payloads count.
//
//	sum := AddReplica(AddReplica(0, first), second)
func AddReplica(sum uint32, values []float32) uint32 {
	if len(values) == 0 {
		return sum
	}
	return crc32c.Update(sum, unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), valueBytes*len(values)))
}
