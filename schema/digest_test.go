package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strings"
	"testing"
)

// naiveDigest is the definition: names ascending, partitions ascending, keys ascending, little-endian values.
func naiveDigest(j *Job, parameters, tables [][]float32) [32]byte {
	h := sha256.New()
	write := func(values []float32) {
		for _, v := range values {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
		}
	}
	for _, t := range j.Tensors() {
		if !t.IsTable {
			write(parameters[t.Index])
			continue
		}
		spec := j.Tables[t.Index]
		for p := range spec.Partitions {
			for key := range spec.Rows {
				if PartitionOf(key, spec.Partitions) == Partition(p) {
					write(tables[t.Index][int(key)*spec.Dim:][:spec.Dim])
				}
			}
		}
	}
	return [32]byte(h.Sum(nil))
}

func testWeights(j *Job) (parameters, tables [][]float32) {
	next := float32(0)
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			next += 0.25
			v[i] = next
		}
		return v
	}
	for _, p := range j.Parameters {
		parameters = append(parameters, fill(p.Elements()))
	}
	for _, t := range j.Tables {
		tables = append(tables, fill(int(t.Rows)*t.Dim))
	}
	return parameters, tables
}

// rowsOf is the part of a table that one partition has.
func rowsOf(spec TableSpec, p Partition, table []float32) (keys []uint64, rows []float32) {
	for key := range spec.Rows {
		if PartitionOf(key, spec.Partitions) == p {
			keys = append(keys, key)
			rows = append(rows, table[int(key)*spec.Dim:][:spec.Dim]...)
		}
	}
	return keys, rows
}

// One parameter named "b" with the values 1 and -0, one table named "a" with a single row 2: the row comes first.
func TestWeightsDigestLiteral(t *testing.T) {
	j := &Job{Parameters: []Parameter{{Name: "b", Shape: []int{2}}},
		Tables: []TableSpec{{Name: "a", Rows: 1, Dim: 1, Partitions: 3}}}
	d := NewWeightsDigest(j)
	if err := d.Rows(0, []uint64{0}, []float32{2}); err != nil {
		t.Fatal(err)
	}
	if err := d.Values([]float32{1, float32(math.Copysign(0, -1))}); err != nil {
		t.Fatal(err)
	}
	got, err := d.Sum()
	if want := sha256.Sum256([]byte{0, 0, 0, 0x40, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x80}); err != nil || got != want {
		t.Errorf("%x %v, want %x", got, err, want)
	}
}

// Streamed in pieces, given whole, and by the definition: one digest.
func TestWeightsDigestAgrees(t *testing.T) {
	j := testJob()
	parameters, tables := testWeights(j)
	whole, pieces := NewWeightsDigest(j), NewWeightsDigest(j)
	var names []string
	for tensor, ok := whole.Next(); ok; tensor, ok = whole.Next() {
		names = append(names, tensor.Name)
		if !tensor.IsTable {
			values := parameters[tensor.Index]
			check(t, whole.Values(values))
			check(t, pieces.Values(values[:1]))
			check(t, pieces.Values(values[1:]))
			continue
		}
		spec := j.Tables[tensor.Index]
		check(t, whole.Table(tables[tensor.Index]))
		for p := range spec.Partitions {
			keys, rows := rowsOf(spec, Partition(p), tables[tensor.Index])
			half := len(keys) / 2
			check(t, pieces.Rows(Partition(p), keys[:half], rows[:half*spec.Dim]))
			check(t, pieces.Rows(Partition(p), keys[half:], rows[half*spec.Dim:]))
		}
	}
	if got := strings.Join(names, " "); got != "authors hidden.bias hidden.weight words" {
		t.Errorf("order is %s", got)
	}
	want := naiveDigest(j, parameters, tables)
	for name, d := range map[string]*WeightsDigest{"whole": whole, "pieces": pieces} {
		if got, err := d.Sum(); err != nil || got != want {
			t.Errorf("%s: %x %v, want %x", name, got, err, want)
		}
	}
	parameters[0][0] = math.Float32frombits(math.Float32bits(parameters[0][0]) ^ 1)
	if other := naiveDigest(j, parameters, tables); bytes.Equal(other[:], want[:]) {
		t.Error("a changed bit leaves the digest as it was")
	}
}

func TestWeightsDigestRefuses(t *testing.T) {
	j := &Job{Parameters: []Parameter{{Name: "b", Shape: []int{2}}},
		Tables: []TableSpec{{Name: "a", Rows: 4, Dim: 1, Partitions: 1}}}
	rows := []float32{1, 2, 3, 4}
	for name, use := range map[string]func(d *WeightsDigest) error{
		"values before their turn": func(d *WeightsDigest) error { return d.Values(rows[:2]) },
		"a key twice":              func(d *WeightsDigest) error { return d.Rows(0, []uint64{0, 0}, rows[:2]) },
		"keys descending": func(d *WeightsDigest) error {
			_ = d.Rows(0, []uint64{2}, rows[:1])
			return d.Rows(0, []uint64{1}, rows[:1])
		},
		"a key too large":        func(d *WeightsDigest) error { return d.Rows(0, []uint64{4}, rows[:1]) },
		"another partition":      func(d *WeightsDigest) error { return d.Rows(1, []uint64{1}, rows[:1]) },
		"values that do not fit": func(d *WeightsDigest) error { return d.Rows(0, []uint64{0, 1}, rows[:3]) },
		"too few rows":           func(d *WeightsDigest) error { return d.Table(rows[:3]) },
		"a table after its rows": func(d *WeightsDigest) error { _ = d.Rows(0, []uint64{0}, rows[:1]); return d.Table(rows) },
		"too many values":        func(d *WeightsDigest) error { _ = d.Table(rows); return d.Values(rows[:3]) },
		"rows of a parameter":    func(d *WeightsDigest) error { _ = d.Table(rows); return d.Rows(0, nil, nil) },
		"not complete": func(d *WeightsDigest) error {
			_ = d.Table(rows)
			_ = d.Values(rows[:1])
			_, err := d.Sum()
			return err
		},
	} {
		d := NewWeightsDigest(j)
		if use(d) == nil {
			t.Errorf("%s passes", name)
		}
		if _, err := d.Sum(); err == nil {
			t.Errorf("%s: the mistake is forgotten", name)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
