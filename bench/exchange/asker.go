package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
)

// asker is a member of a job that has no samples: it contributes empty frames, and asks for rows of the version under
// way.
type asker struct {
	*member
	chunks  []*schema.Frame // empty contributions to the dense rounds, in their order
	heads   []schema.Head
	shards  []int
	request *schema.Frame
	count   atomic.Uint64
	version atomic.Uint64 // to ask for
	asked   schema.Chunk
}

func newAsker(s *spec) (*asker, error) { return &asker{member: newMember(s)}, nil }

func (a *asker) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		if err := a.connect(ctx, o.URL); err != nil {
			return answer{}, err
		}
		return answer{}, a.build()
	case opAsk:
		r, err := a.askFor(ctx, time.Duration(o.Seconds*float64(time.Second)))
		return answer{Ran: r}, err
	case opRun:
		r, err := a.run(ctx, o.Rounds)
		return answer{Ran: r}, err
	}
	return answer{}, errors.New("unknown order")
}

func (a *asker) build() (err error) {
	for _, b := range a.place.Buckets {
		chunks := a.place.Chunks(b.ID)
		for c := range chunks {
			offset, _ := a.place.ChunkRange(b.ID, schema.Chunk(c))
			f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat32})
			if err != nil {
				return err
			}
			h := a.head(0)
			h.Bucket, h.Chunk, h.Chunks, h.Offset = b.ID, schema.Chunk(c), schema.Chunk(chunks), uint64(offset)
			h.Node = lane.Node{First: a.joined.FirstLane, Count: uint16(a.joined.LaneCount)}
			a.chunks, a.heads, a.shards = append(a.chunks, f), append(a.heads, h),
				append(a.shards, a.place.OwnerOfChunk(b.ID, schema.Chunk(c)))
		}
	}
	a.request, err = a.newLookup(0, askKeys)
	return err
}

// askFor asks for the two rows again and again, one request after the other.
func (a *asker) askFor(ctx context.Context, stretch time.Duration) (*ran, error) {
	begin := time.Now()
	return a.askUntil(ctx, func() bool { return time.Since(begin) >= stretch })
}

func (a *asker) askUntil(ctx context.Context, done func() bool) (*ran, error) {
	to := a.subject(fabric.KindLookup, string(schema.ShardMember(0)))
	times := make([]float64, 0, 1<<16)
	begin := time.Now()
	for first := true; first || !done(); first = false {
		seconds, err := a.once(ctx, to)
		if err != nil {
			return nil, err
		}
		times = append(times, seconds)
		a.count.Add(16)
	}
	r := summary(times)
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

func (a *asker) once(ctx context.Context, to fabric.Subject) (float64, error) {
	b := schema.Batch(a.version.Load())
	a.asked = (a.asked + 1) % schema.ChunksMax
	h := a.head(b)
	h.Chunk, h.Chunks = a.asked, schema.ChunksMax
	a.request.SetHead(h)
	begin := time.Now()
	v, err := a.ask(ctx, a.replies, to.WithBatch(uint64(b)), a.request.Seal(),
		func(v *schema.View) bool { return v.Head().Chunk == a.asked })
	took := time.Since(begin).Seconds()
	if err != nil {
		return 0, err
	}
	if v.Head().Kind == schema.KindRows && len(v.Float32s()) != askKeys*askDim {
		return 0, fmt.Errorf("%d values in an answer: want %d", len(v.Float32s()), askKeys*askDim)
	}
	return took, nil
}

// run takes part in a number of batches and asks all the while.
func (a *asker) run(ctx context.Context, rounds int) (*ran, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var through atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer through.Store(true)
		for range rounds {
			if err := a.round(ctx); err != nil {
				cancel(fmt.Errorf("batch %d: %w", a.batch, err))
				return
			}
			a.version.Store(uint64(a.batch))
		}
	}()
	r, err := a.askUntil(ctx, through.Load)
	if err != nil {
		cancel(err)
	}
	<-done
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.Again = a.resent()
	return r, nil
}

// round contributes nothing to one batch.
func (a *asker) round(ctx context.Context) error {
	for i, f := range a.chunks {
		h := a.heads[i]
		h.Batch = a.batch
		f.SetHead(h)
		if err := a.send(ctx, fabric.KindDense, a.shards[i], &h, f); err != nil {
			return err
		}
	}
	return a.finish(ctx, 0)
}

func (a *asker) bytes() uint64 { return a.count.Load() }

// summary sorts times in seconds and gives their middle and their 99th percentile.
func summary(times []float64) *ran {
	slices.Sort(times)
	r := &ran{Count: len(times)}
	if n := len(times); n > 0 {
		r.P50, r.P99 = times[n/2], times[min(n-1, n*99/100)]
	}
	return r
}
