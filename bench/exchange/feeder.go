package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
)

// feeder contributes its values to every round of a job and takes no results but those it checks.
type feeder struct {
	*member
	rounds []feederRound
	count  atomic.Uint64
	pull   *schema.Frame
}

// feederRound is a dense chunk.
type feederRound struct {
	shard         int
	bucket        schema.Bucket
	chunk, chunks schema.Chunk
	offset        int // within the bucket
	element       int // of the flat space: the buckets, one behind the other
	elements      int
	frame         *schema.Frame
}

func newFeeder(s *spec) (*feeder, error) { return &feeder{member: newMember(s)}, nil }

func (f *feeder) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		if err := f.connect(ctx, o.URL); err != nil {
			return answer{}, err
		}
		return answer{}, f.build()
	case opRun:
		r, err := f.run(ctx, o.Rounds)
		return answer{Ran: r}, err
	}
	return answer{}, errors.New("unknown order")
}

// build makes a frame for every chunk, with the values that stay the same.
func (f *feeder) build() (err error) {
	element := 0
	for _, b := range f.place.Buckets {
		chunks := f.place.Chunks(b.ID)
		for c := range chunks {
			offset, elements := f.place.ChunkRange(b.ID, schema.Chunk(c))
			r := feederRound{shard: f.place.OwnerOfChunk(b.ID, schema.Chunk(c)), bucket: b.ID, chunk: schema.Chunk(c),
				chunks: schema.Chunk(chunks),
				offset: offset, element: element + offset, elements: elements}
			if r.frame, err = schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: schema.DTypeFloat32,
				Values: elements * 4}); err != nil {
				return err
			}
			for i := range elements {
				r.frame.Float32s()[i] = pattern(f.spec.Index, r.element+i)
			}
			f.rounds = append(f.rounds, r)
		}
		element += b.Elements
	}
	f.pull, err = schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	return err
}

// run contributes to a number of batches. After the first and the last one the first feeder asks for every sum and
// compares it.
func (f *feeder) run(ctx context.Context, rounds int) (*ran, error) {
	checks := f.spec.Index == 0
	r := &ran{Count: rounds}
	begin := time.Now()
	for i := range rounds {
		if err := f.round(ctx); err != nil {
			return nil, fmt.Errorf("batch %d: %w", f.batch, err)
		}
		if i == rounds-1 {
			r.Seconds = time.Since(begin).Seconds()
		}
		if checks && (f.batch == 1 || i == rounds-1) {
			n, err := f.check(ctx, f.batch-1)
			if err != nil {
				return nil, fmt.Errorf("check batch %d: %w", f.batch-1, err)
			}
			r.Checked += n
		}
	}
	r.Again = f.resent()
	return r, nil
}

// round contributes to one batch, in the order of the flat space as all trainers do.
func (f *feeder) round(ctx context.Context) error {
	for i := range f.rounds {
		c := &f.rounds[i]
		c.frame.Float32s()[0] = stamp(f.batch)
		h := f.contribution(f.batch)
		h.Bucket, h.Chunk, h.Chunks, h.Offset, h.Weight = c.bucket, c.chunk, c.chunks, uint64(c.offset), 1
		h.Node = lane.Node{First: f.joined.FirstLane, Count: uint16(f.joined.LaneCount)}
		c.frame.SetHead(h)
		if err := f.send(ctx, fabric.KindDense, c.shard, &h, c.frame); err != nil {
			return err
		}
		f.count.Add(uint64(len(c.frame.Values())))
	}
	return f.finish(ctx, 1)
}

// check pulls the result of every chunk of a complete batch, one after the other, and compares every value.
func (f *feeder) check(ctx context.Context, b schema.Batch) (values int, err error) {
	for i := range f.rounds {
		c := &f.rounds[i]
		h := f.head(b)
		h.Bucket, h.Chunk, h.Chunks = c.bucket, c.chunk, c.chunk+1
		f.pull.SetHead(h)
		to := f.subject(fabric.KindPull, string(schema.ShardMember(c.shard)))
		v, err := f.ask(ctx, f.replies, to, f.pull.Seal(), func(v *schema.View) bool {
			got := v.Head()
			return got.Kind == schema.KindMean && got.Batch == b && got.Bucket == c.bucket && got.Chunk == c.chunk
		})
		if err != nil {
			return 0, err
		}
		if err := f.compare(c, b, v); err != nil {
			return 0, err
		}
		values += len(v.Float32s())
	}
	return values, nil
}

func (f *feeder) compare(c *feederRound, b schema.Batch, v *schema.View) error {
	got := v.Float32s()
	if len(got) != c.elements {
		return fmt.Errorf("bucket %d chunk %d: %d values: want %d", c.bucket, c.chunk, len(got), c.elements)
	}
	if w := v.Head().Weight; w != float64(f.spec.Feeders) {
		return fmt.Errorf("bucket %d chunk %d: weight %v: want %d", c.bucket, c.chunk, w, f.spec.Feeders)
	}
	for i, x := range got {
		want := mean(f.spec.Feeders, c.element+i)
		if i == 0 {
			want = stamp(b)
		}
		if x != want {
			return fmt.Errorf("bucket %d chunk %d element %d: mean %v: want %v", c.bucket, c.chunk, i, x, want)
		}
	}
	return nil
}

func (f *feeder) bytes() uint64 { return f.count.Load() }
