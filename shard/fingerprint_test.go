package shard

import (
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"unsafe"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// fingerprint is everything that a frame may change in a shard, as a text.
func fingerprint(s *Shard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "held %v", *s.held)
	for i := range s.parked {
		fmt.Fprintf(&b, " parked %d %d %d", s.parked[i].batch, len(s.parked[i].frames), s.parked[i].bytes)
	}
	for _, l := range s.clock.Lines() {
		fmt.Fprintf(&b, " batch %d done %d open %v", l.Batch(), l.Done(), l.Open())
		for batch := l.Oldest(); batch <= l.Batch(); batch++ {
			fmt.Fprintf(&b, " weights %v", l.Weights(batch))
		}
		if l.Sparse != nil {
			fmt.Fprintf(&b, " sparse %v", l.Sparse)
		}
		for k := range l.Dense.Chunks() {
			fmt.Fprintf(&b, " %d:%v", k, l.Dense.Closed(k))
			for batch := l.Oldest(); batch <= l.Batch(); batch++ {
				fmt.Fprintf(&b, " %v %d", l.Dense.Nodes(k, batch), l.Dense.Sums(k, batch))
			}
		}
	}
	fmt.Fprintf(&b, " dense %v", s.dense)
	for i := range s.clock.Line(0).Dense.Chunks() {
		if s.clock.Line(0).Renumbered { // versions are of groups, and few are kept
			break
		}
		for v := range schema.Version(s.config.Job.Ahead + 2) {
			fmt.Fprintf(&b, " %x", sum(s.values(i, v)))
		}
	}
	for _, t := range s.tables {
		if t != nil {
			fmt.Fprintf(&b, " table %v", t)
		}
	}
	return b.String()
}

func sum(values []float32) uint32 {
	if len(values) == 0 {
		return 0
	}
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values)),
		crc32.MakeTable(crc32.Castagnoli))
}

// The fingerprint sees what frames change.
func TestFingerprintSees(t *testing.T) {
	s := newSimulation(t, 3)
	s.begin(0)
	shard := s.shards[0]
	before := fingerprint(shard)
	for _, d := range s.contributions() {
		if d.shard == 0 {
			_, reason, err := shard.Step(d.from, shardtest.View(t, d.frame.Seal()), nil)
			must(t, err)
			after := fingerprint(shard)
			if reason != schema.ReasonOK || after == before {
				t.Fatalf("%v, and the fingerprint is the same", reason)
			}
			before = after
		}
	}
}
