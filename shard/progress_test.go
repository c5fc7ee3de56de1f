package shard

import (
	"testing"

	"gradbus/schema"
	"gradbus/shard/round"
)

// noRounds is the clock of a shard that adds up nothing.
type noRounds struct{ round.Clock }

func (noRounds) Line(int) *round.Line { return &round.Line{} }

// What a shard that adds up nothing says of complete batches is taken: the other shards of its ps, and a coordinator
// elsewhere, wait for it.
func TestIdleShardsReportAVersion(t *testing.T) {
	p := progress{clock: noRounds{}}
	frame, err := schema.EncodeControl(schema.Head{Job: 1, Generation: 1},
		schema.Control{Report: &schema.Report{Serial: 1, Done: p.Done()}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := schema.Verify(frame, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.DecodeControl(&v); err != nil {
		t.Error(err)
	}
}
