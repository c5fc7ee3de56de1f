package trainer

import (
	"fmt"

	"gradbus/schema"
)

// flatSpace lays all dense parameters of the job end to end: bucket after bucket, in the order in which rounds are
// sent, which is the reverse of the forward pass. Chunks cut it into wire frames.
type flatSpace struct {
	place  *schema.Placement
	specs  []schema.Parameter // in the order of the space
	params []span             // of specs
	chunks []span
	rounds []denseRound // of chunks
	first  []int        // by bucket: its first chunk
}

// denseRound names a chunk on the wire.
type denseRound struct {
	owner         int // who adds it up
	bucket        schema.Bucket
	chunk, chunks schema.Chunk
	offset        uint64 // first element within the bucket
}

func newFlatSpace(job *schema.Job, place *schema.Placement) (*flatSpace, error) {
	f := &flatSpace{place: place}
	base := 0
	for i, b := range place.Buckets {
		if int(b.ID) != i {
			return nil, fmt.Errorf("bucket %d is placed at %d: buckets are numbered from 0", b.ID, i)
		}
		f.first = append(f.first, len(f.chunks))
		for _, p := range b.Spans {
			if err := f.part(&job.Parameters[p.Parameter], base+p.Offset, p.From); err != nil {
				return nil, err
			}
		}
		chunks := place.Chunks(b.ID)
		for c := range chunks {
			offset, elements := place.ChunkRange(b.ID, schema.Chunk(c))
			f.chunks = append(f.chunks, span{base + offset, base + offset + elements})
			f.rounds = append(f.rounds, denseRound{owner: place.OwnerOfChunk(b.ID, schema.Chunk(c)), bucket: b.ID,
				chunk:  schema.Chunk(c),
				chunks: schema.Chunk(chunks), offset: uint64(offset)})
		}
		base += b.Elements
	}
	if n := len(f.specs); n != len(job.Parameters) || n > 0 && f.params[n-1].hi != base {
		return nil, fmt.Errorf("placement covers %d of %d parameters in %d values", n, len(job.Parameters), base)
	}
	return f, nil
}

// part takes a part of a parameter, which begins at element first of it and lies at position at. The parts of a
// parameter that is larger than a bucket follow each other, so that the parameter is whole in the space.
func (f *flatSpace) part(spec *schema.Parameter, at, first int) error {
	if first == 0 {
		f.specs = append(f.specs, *spec)
		f.params = append(f.params, span{at, at + spec.Elements()})
	}
	if n := len(f.specs); n == 0 || f.specs[n-1].Name != spec.Name || f.params[n-1].lo+first != at {
		return fmt.Errorf("element %d of parameter %q does not follow the one before it", first, spec.Name)
	}
	return nil
}

// find gives the chunk that a frame names.
func (f *flatSpace) find(bucket schema.Bucket, chunk schema.Chunk) (int, bool) {
	if int(bucket) >= len(f.first) {
		return 0, false
	}
	at := f.first[bucket]
	if chunk >= f.rounds[at].chunks {
		return 0, false
	}
	return at + int(chunk), true
}

// elementName names the value at a place of the space, for people.
func (f *flatSpace) elementName(at int) string {
	for i, s := range f.params {
		if at >= s.lo && at < s.hi {
			return fmt.Sprintf("parameter %q, element %d", f.specs[i].Name, at-s.lo)
		}
	}
	return fmt.Sprintf("value %d of no parameter", at)
}
