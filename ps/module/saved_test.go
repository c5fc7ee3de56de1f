package module

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/state"
)

// train does a pass of a batch, forward and backward, and steps: the requests with numbers n and n+1.
func (b *bench) train(n schema.Sequence, batch schema.Batch) {
	b.t.Helper()
	b.deliver(b.request(0, schema.KindForward, schema.Head{Sequence: n, Batch: batch, Node: laneOf(0), Weight: 1}, nil,
		randomInput(uint64(batch), 1))...)
	pass := b.answer(int(n))
	b.deliver(b.request(0, schema.KindBackward, schema.Head{Sequence: n + 1, Weight: 1, Flags: schema.FlagStep},
		pass.Keys(), []float32{1, 2})...)
	b.answer(int(n) + 1)
}

func momentumJob() *schema.Job {
	job := testJob()
	job.Optimizer.Momentum = 0.5
	return job
}

// capture is Capture, which does not fail.
func (b *bench) capture(v schema.Version, within time.Duration) *Captured {
	b.t.Helper()
	c, err := b.Capture(context.Background(), v, within)
	must(b.t, err)
	return c
}

// held is the values that were captured.
func held(c *Captured) (all []float32, steps uint64) {
	_ = c.Tensors(func(t state.Tensor) error {
		all, steps = append(all, t.Values...), t.Steps
		for _, s := range t.Slots {
			all = append(all, s.Values...)
		}
		return nil
	})
	return all, steps
}

// A module is captured before the first pass on the version, whatever is stepped later and whenever it is written;
// without a request, at any time.
func TestCapturedBeforeThePass(t *testing.T) {
	b := newClosedBench(t, momentumJob())
	must(t, b.Open())
	b.CaptureAt(2, 0)
	want, n := []float32(nil), schema.Sequence(1)
	for batch := range schema.Batch(4) {
		if batch == 2 {
			now := b.capture(0, 0)
			want, _ = held(now)
			want = slices.Clone(want)
			now.Release()
		}
		b.train(n, batch)
		n += 2
	}
	c := b.capture(2, patience)
	got, steps := held(c)
	c.Release()
	if steps != 2 || !slices.Equal(got, want) {
		t.Errorf("taken after %d steps, want 2; the same values: %v", steps, slices.Equal(got, want))
	}
	c = b.capture(2, 0)
	if _, steps := held(c); steps != 4 {
		t.Errorf("taken a second time after %d steps, want those of now, 4", steps)
	}
	c.Release()
	b.CaptureAt(4, 0) // replaced by the next request
	b.train(n, 4)
	b.CaptureAt(5, 0)
	b.train(n+2, 5)
	b.capture(5, patience).Release()
	b.CaptureAt(5, 0)
	if _, err := b.Capture(context.Background(), 5, patience); !errors.Is(err, ErrLate) {
		b.t.Errorf("asked for after a pass of its batch: %v", err)
	}
	b.CaptureAt(7, 0) // in place of which another one is asked for
	b.CaptureAt(8, 0)
	if _, err := b.Capture(context.Background(), 7, patience); !errors.Is(err, ErrLate) {
		b.t.Errorf("another version was asked for since: %v", err)
	}
	b.train(n+4, 50)
	b.capture(8, 0).Release()
	b.CaptureAt(9, 0) // by a program that counts in another way
	b.capture(9, 0).Release()
}

// If trainers run ahead, a module is captured when all of them have stepped it by the batches before the version:
// before the first pass that shows it.
func TestCapturedWhereTrainersRunAhead(t *testing.T) {
	const ahead = 2
	b := newClosedBench(t, momentumJob())
	must(t, b.Open())
	b.CaptureAt(1, ahead)
	n := schema.Sequence(1)
	for batch := range schema.Batch(5) {
		b.train(n, batch)
		n += 2
	}
	c := b.capture(1, patience)
	if _, steps := held(c); steps != 1+ahead {
		t.Errorf("taken after %d steps, want %d", steps, 1+ahead)
	}
	c.Release()
	b.CaptureAt(2, ahead)
	if _, err := b.Capture(context.Background(), 2, patience); !errors.Is(err, ErrLate) {
		t.Errorf("asked for after the pass that it is taken before: %v", err)
	}
}

// A capture continues in another set as in its own. If part of it is missing or belongs to no module, there is an error
// and requests are refused.
func TestRestored(t *testing.T) {
	first := newClosedBench(t, momentumJob())
	second, third := newClosedBench(t, momentumJob()), newClosedBench(t, momentumJob())
	must(t, first.Open())
	first.train(1, 0)
	c := first.capture(1, 0)
	defer c.Release()
	tensors := 0
	must(t, c.Tensors(func(one state.Tensor) error {
		if taken, err := second.Restore(one); !taken || err != nil {
			t.Errorf("%s: %v %v", one.Name, taken, err)
		}
		if tensors++; tensors == 1 {
			_, err := third.Restore(one)
			return err
		}
		return nil
	}))
	if taken, err := second.Restore(state.Tensor{Name: "weight", Values: []float32{1}}); taken || err != nil {
		t.Errorf("a parameter of the job: %v %v", taken, err)
	}
	must(t, second.Open())
	if err := third.Open(); err == nil || !strings.Contains(err.Error(), `module "m"`) {
		t.Errorf("with one of %d tensors: %v", tensors, err)
	}
	first.train(3, 1)
	second.train(1, 1)
	a, b := first.capture(2, 0), second.capture(2, 0)
	defer a.Release()
	defer b.Release()
	one, steps := held(a)
	other, same := held(b)
	if steps != 2 || same != 2 || !slices.Equal(one, other) {
		t.Errorf("after %d and %d steps, want 2; the same values: %v", steps, same, slices.Equal(one, other))
	}
}
