package packages_test

import (
	"math"
	"testing"

	"gradbus/examples/packages/corpus"
	"gradbus/schema"
	"gradbus/trainer"
)

// Who pools changes no bit. Where shards pool, neither gradients nor lookups carry rows; where trainers do, gradients
// travel in the smaller form, which with bags of a few keys each is that of bags.
func TestPlacementsSameAsSingleProcess(t *testing.T) {
	data := small(t, 700)
	wide := settings(1, 4)
	wide.Dim = 64 // so that values outweigh keys
	want := referenceOf(t, wide, data)
	sent, received := map[string]uint64{}, map[string]uint64{}
	for _, placement := range []string{schema.PlacementRows, schema.PlacementColumns, schema.PlacementTables} {
		s := wide
		s.Trainers, s.Placement = 2, placement
		twice := uint64(1)
		for tries := 0; twice > 0 && tries < 20; tries++ { // once more where a busy machine made it send something twice
			sent[placement], received[placement], twice = 0, 0, 0
			for i, o := range train(t, s, data, 2, "auto") {
				if o.digest != want.Digest {
					t.Errorf("%s: trainer %d: weights %x, want %x", placement, i, o.digest[:8], want.Digest[:8])
				}
				sent[placement] += o.stats.Traffic.BytesSent
				received[placement] += o.stats.Traffic.BytesReceived
				twice += o.stats.Resent + o.stats.Pulls + o.stats.LookupsRepeated
			}
		}
	}
	t.Logf("bytes sent: %v, received: %v", sent, received)
	for _, pooled := range []string{schema.PlacementColumns, schema.PlacementTables} {
		if 2*received[pooled] > received[schema.PlacementRows] {
			t.Errorf("%d bytes received with %s, %d with rows: want less than half", received[pooled], pooled,
				received[schema.PlacementRows])
		}
	}
	if sent[schema.PlacementRows] > 2*sent[schema.PlacementTables] {
		t.Errorf("bytes sent: %v: want gradients of rows as bags", sent)
	}
}

// Gradients of 16 bits train as well as those of 32: the loss of a rounded job is within 1 % of the other's, where a
// bfloat16 gradient is off by at most 0.4 % each time (2^-8 of its size), and the accuracy within 2 % of the test set.
// For any number of shards and on either backend they end with equal bits.
func TestWireTypesConverge(t *testing.T) {
	data := small(t, 700)
	s := settings(2, 4)
	s.Epochs, s.Batch, s.LR = 6, 32, 10
	s.Dim = 64 // so that values outweigh keys
	plain := train(t, s, data, 2, "auto")[0]
	loss := lossOf(plain.model, data)
	if loss > 1 {
		t.Fatalf("a loss of %v: the model has not learned, so that this compares nothing", loss)
	}
	wires := []schema.Wire{
		{Gradients: schema.GradientsBFloat16}, {Gradients: schema.GradientsFloat16},
		{Gradients: schema.GradientsBFloat16, ErrorFeedback: true},
	}
	if testing.Short() {
		wires = wires[2:] // the one with everything
	}
	for _, wire := range wires {
		s.Wire = wire
		var first outcome
		for i, c := range []struct {
			shards  int
			backend string
		}{{1, "go"}, {3, "auto"}} {
			o := train(t, s, data, c.shards, c.backend)[0]
			if i == 0 {
				first = o
			}
			if o.digest != first.digest {
				t.Errorf("%+v: weights %x on %d shards and backend %s, %x on one and the portable one", wire, o.digest[:6],
					c.shards, c.backend, first.digest[:6])
			}
		}
		got := lossOf(first.model, data)
		t.Logf("%+v: loss %.5f, accuracy %.4f, %d bytes sent; float32: %.5f, %.4f, %d", wire, got, first.accuracy,
			first.stats.Traffic.BytesSent,
			loss, plain.accuracy, plain.stats.Traffic.BytesSent)
		if math.Abs(got-loss) > 0.01*loss || math.Abs(first.accuracy-plain.accuracy) > 0.02 {
			t.Errorf("%+v: loss %v and accuracy %v, with float32 %v and %v", wire, got, first.accuracy, loss, plain.accuracy)
		}
		if first.digest == plain.digest {
			t.Errorf("%+v: the bits of float32: nothing was rounded", wire)
		}
		if first.stats.Traffic.BytesSent > plain.stats.Traffic.BytesSent*3/4 {
			t.Errorf("%+v: %d bytes sent, %d with float32: want a quarter less at the least", wire, first.stats.Traffic.BytesSent,
				plain.stats.Traffic.BytesSent)
		}
	}
}

// lossOf is the mean loss of a model over the training set, in float64.
func lossOf(m *trainer.Model, data *corpus.Data) float64 {
	sum, weight, bias := 0.0, m.Param("linear.weight"), m.Param("linear.bias")
	dim := len(weight) / len(bias)
	for i := range data.Train.Len() {
		pooled := make([]float64, dim)
		keys := data.Train.KeysOf(i)
		for _, key := range keys {
			for d := range pooled {
				pooled[d] += float64(m.Row("embedding.weight", key)[d]) / float64(len(keys))
			}
		}
		total, own := 0.0, 0.0
		for c := range bias {
			logit := float64(bias[c])
			for d, x := range pooled {
				logit += x * float64(weight[c*dim+d])
			}
			total += math.Exp(logit)
			if c == int(data.Train.Labels[i]) {
				own = logit
			}
		}
		sum += math.Log(total) - own
	}
	return sum / float64(data.Train.Len())
}
