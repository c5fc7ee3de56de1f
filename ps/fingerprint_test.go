package ps

import (
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"unsafe"

	"gradbus/schema"
)

// fingerprint is everything that a frame may change in a shard, as a text.
func fingerprint(s *Shard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "batch %d open %d staged %d held %v weights %v sparse closed %v", s.batch, s.open, s.held.Bytes(), *s.held,
		&s.weight, s.sparse.closed)
	for i := range s.sparse.terms {
		t := &s.sparse.terms[i]
		fmt.Fprintf(&b, " %v:%v/%d(%d)", t.node, len(t.parts), t.chunks, t.bytes)
	}
	for i := range s.dense.Chunks() {
		fmt.Fprintf(&b, " %d:%v %v %d", i, s.dense.Closed(i), s.dense.Nodes(i, s.batch), s.dense.Sums(i, s.batch))
		for v := range schema.Version(2) {
			fmt.Fprintf(&b, " %x", sum(s.dense.Result(i, v)))
		}
		if s.dense.owned != nil {
			fmt.Fprintf(&b, " %v %x %x", s.dense.owned[i].stepped, sum(s.dense.owned[i].momentum[0]), sum(s.dense.owned[i].momentum[1]))
		}
	}
	for _, t := range s.tables {
		if t != nil {
			fmt.Fprintf(&b, " table %d: %x %x %v staged %v", t.id, sum(t.rows), sum(t.momentum), len(t.stepped), t.staged.index)
		}
	}
	return b.String()
}

func sum(values []float32) uint32 {
	if len(values) == 0 {
		return 0
	}
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values)), crc32.MakeTable(crc32.Castagnoli))
}

// The fingerprint sees what frames change.
func TestFingerprintSees(t *testing.T) {
	s := newSimulation(t, 3)
	s.begin(0)
	shard := s.shards[0]
	before := fingerprint(shard)
	for _, d := range s.contributions() {
		if d.shard == 0 {
			_, reason, err := shard.Step(d.from, view(t, d.frame.Seal()), nil)
			must(t, err)
			after := fingerprint(shard)
			if reason != schema.ReasonOK || after == before {
				t.Fatalf("%v, and the fingerprint is the same", reason)
			}
			before = after
		}
	}
}
