package trainer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
)

// hashedDigest is the digest that files of gradbus 0.1.0 have: there a key's partition was a hash of it, and not of its
// group, so that rows were in another order.
func (m *Model) hashedDigest() string {
	hash, buffer := sha256.New(), []byte(nil)
	add := func(values []float32) {
		buffer = buffer[:0]
		for _, v := range values {
			buffer = binary.LittleEndian.AppendUint32(buffer, math.Float32bits(v))
		}
		hash.Write(buffer)
	}
	for _, t := range m.job.Tensors() {
		if !t.IsTable {
			add(m.params[t.Index])
			continue
		}
		spec, rows := &m.job.Tables[t.Index], m.tables[t.Index]
		partitions := make([][]uint32, spec.Partitions)
		for key := range spec.Rows {
			p := mix(key) % uint64(spec.Partitions)
			partitions[p] = append(partitions[p], uint32(key))
		}
		for _, keys := range partitions {
			for _, key := range keys {
				add(rows[int(key)*spec.Dim : (int(key)+1)*spec.Dim])
			}
		}
	}
	return hex.EncodeToString(hash.Sum(nil))
}
