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
	fmt.Fprintf(&b, "held %v", *s.held)
	for i := range s.lines {
		l := &s.lines[i]
		fmt.Fprintf(&b, " batch %d done %d open %v", l.batch, l.done, l.open)
		for k := range l.weights {
			fmt.Fprintf(&b, " weights %v", &l.weights[k])
		}
		if l.sparse != nil {
			fmt.Fprintf(&b, " sparse %v", l.sparse)
		}
		for k := range l.dense.Chunks() {
			fmt.Fprintf(&b, " %d:%v", k, l.dense.Closed(k))
			for batch := l.batch - min(l.batch, l.ahead); batch <= l.batch; batch++ {
				fmt.Fprintf(&b, " %v %d", l.dense.Nodes(k, batch), l.dense.Sums(k, batch))
			}
		}
	}
	fmt.Fprintf(&b, " dense %v", s.dense.state)
	for i := range s.lines[0].dense.Chunks() {
		for v := range schema.Version(s.job.Ahead + 2) {
			fmt.Fprintf(&b, " %x", sum(s.dense.results.Values(i, v)))
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
