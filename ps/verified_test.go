package ps

import (
	"context"
	"math"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// bentBackend has one bit wrong in what an optimizer step writes.
type bentBackend struct{ cuda.Backend }

func (b bentBackend) AverageApply(a cuda.AverageApply) error {
	err := b.Backend.AverageApply(a)
	var last [1]float32
	at := a.Out.Slice(a.Out.Len()-1, a.Out.Len())
	if copied := b.Copy(cuda.Float32s(last[:]), at); err == nil {
		err = copied
	}
	last[0] = math.Float32frombits(math.Float32bits(last[0]) ^ 1)
	if copied := b.Copy(at, cuda.Float32s(last[:])); err == nil {
		err = copied
	}
	return err
}

// P6: an optimizer step that came out wrong ends its job before anybody is sent the result, and reports say so.
func TestWrongArithmeticEndsTheJob(t *testing.T) {
	t.Parallel()
	right, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	backend, err := cuda.Verify(bentBackend{right}, right, 1)
	must(t, err)
	l := newReportLog(t)
	s, err := Start(context.Background(), Config{Shards: 1}, Options{Backend: backend, Telemetry: l.take})
	must(t, err)
	defer s.Close()
	job := shardtest.SmallJob("wrong", 1, 1)
	job.Apply = schema.ApplyUpdate
	m := gather(t, s, shardtest.New(t, job), "j-a")[0]
	for _, c := range m.p.Frames(t, m.place, m.joined.RunID, 0, lane.Node{First: m.joined.FirstLane, Count: 1}) {
		m.send(kindToken(c.Kind), c.Shard, schema.Head{Batch: 0, Bucket: c.Bucket}, c.Frame)
	}
	if f := m.failure(); f.Member != "s0" ||
		!strings.Contains(f.Text, "verification failed: average apply: parameters at position") {
		t.Errorf("told %+v, want s0 and what differed", f)
	}
	p := l.own(s, "a mismatch", func(p *schema.ServerReport) bool { return p.Verification.Mismatches > 0 })
	if v := p.Verification; v.OneIn != 1 || v.Blocks == 0 {
		t.Errorf("verification %+v", v)
	}
}
