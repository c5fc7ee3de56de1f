package trainer

import (
	"fmt"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/round"
	"gradbus/schema"
)

// segmentBytesMax is the budget for contributions to open rounds of a segment, as a shard's; see stagedBytes.
const segmentBytesMax = 128 << 20

// segment is what this trainer adds up for all, in a job that reduces between trainers: its chunks of every dense bucket.
// It is to the other trainers what a shard is: contributions come through windows and are acknowledged, what cannot be
// taken is refused, results are published once and kept for whoever missed them. This trainer's own contributions go in
// where they lie (contribute), and its own results come out without a message.
//
// Frames are taken on the goroutines of the data server's connection, own contributions on the one that calls Run. Lock
// order: mu, then results.mu; publishing happens under mu, which keeps results in the frames that they are sent from.
type segment struct {
	job     *schema.Job
	place   *schema.Placement
	flat    *flatSpace
	joined  *schema.Joined
	owner   int // this trainer
	self    int // the same among hosts
	backend cuda.Backend
	hosts   []round.Host
	own     *ownServer // set before the first frame
	epoch   time.Time  // what contributor.since counts from
	results *results
	fail    func(error)

	mu      sync.Mutex
	batch   schema.Batch // under way
	open    int          // rounds of batch that are not closed
	weights round.Weights
	held    *round.Held
	dense   *round.Dense
	sparse  *round.Sparse // nil where no table is reduced between trainers
	means   *round.RowResults
	senders []contributor // by host

	lent      bool  // contributions lie in memory of their senders, so that nothing is added up before a round closes
	stagedMax int64 // bytes of contributions to open rounds
	limit     fabric.Limiter
	counts    segmentCounts
}

// segmentCounts says what became of frames.
type segmentCounts struct {
	taken, repeated, refused, dropped uint64
}

func newSegment(s *Session) (*segment, error) {
	g := &segment{epoch: time.Now(), job: s.job, place: s.place, flat: s.flat, joined: &s.joined, owner: s.owners[string(s.joined.Member)],
		backend: s.config.Backend, results: s.results, fail: s.fail, hosts: round.HostsOf(s.job), held: round.NewHeld(s.job.Trainers),
		limit: fabric.Limiter{PerSecond: refusalsPerSecond}, lent: s.config.Bus != nil}
	g.self = g.owner - s.place.Shards
	var chunks []round.Chunk
	for i := range s.flat.rounds {
		r := &s.flat.rounds[i]
		if r.owner == g.owner {
			chunks = append(chunks, round.Chunk{Bucket: r.bucket, Chunk: r.chunk, Chunks: r.chunks, Offset: r.offset,
				Elements: s.flat.chunks[i].hi - s.flat.chunks[i].lo})
		}
	}
	var err error
	g.dense, err = round.NewDense(round.DenseConfig{Backend: g.backend, Lanes: s.job.Lanes, AtClose: g.lent || s.place.Plan.SumAtClose, Held: g.held, Chunks: chunks, Place: g.place,
		Head: schema.Head{Kind: schema.KindMean, Job: s.joined.RunID, Generation: s.joined.Generation, Lanes: uint16(s.job.Lanes)}})
	if err != nil {
		return nil, fmt.Errorf("make segment of %s: %w", s.joined.Member, err)
	}
	if s.place.HasRows(g.owner) {
		g.makeSparse()
	}
	g.open = g.rounds()
	return g, g.makeSenders()
}

// rounds is the number of rounds of every batch that this trainer closes.
func (g *segment) rounds() int {
	if g.sparse != nil {
		return g.dense.Chunks() + 1
	}
	return g.dense.Chunks()
}

// reach says whether a frame may speak of batch b: 0 for the batch under way, 1 for the next one, when every round here
// is closed. Who speaks of the next batch holds all results of this one, so whoever takes its frame calls advance.
func (g *segment) reach(b schema.Batch) (ahead int, refused *schema.FrameError) {
	switch {
	case b == g.batch:
		return 0, nil
	case b < g.batch:
		return 0, schema.Refuse(schema.ReasonStaleBatch, "batch %d: batch %d is under way", b, g.batch)
	case b == g.batch+1 && g.open == 0:
		return 1, nil
	}
	return 0, schema.Refuse(schema.ReasonEarlyBatch, "batch %d: batch %d is under way with %d of %d rounds open on %s",
		b, g.batch, g.open, g.rounds(), g.joined.Member)
}

func (g *segment) advance() {
	g.batch++
	g.open = g.rounds()
	g.weights.Reset()
}

// contribute takes this trainer's own sum over one node and chunk, which must not change until the batch is complete.
// What a shard would refuse is an error.
func (g *segment) contribute(h *schema.Head, values cuda.Vector) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, _ := g.flat.find(h.Bucket, h.Chunk)
	c := round.Contribution{Batch: h.Batch, Chunk: at / g.place.Trainers, Node: h.Node, Weight: h.Weight, Values: values, Host: g.self}
	refused, err := g.add(&c, h)
	if err == nil && refused != nil {
		err = g.refusedOwn(h, refused)
	}
	if err != nil {
		return err
	}
	g.acknowledge()
	return nil
}

func (g *segment) refusedOwn(h *schema.Head, r *schema.FrameError) error {
	return fmt.Errorf("%w: %s: batch %d bucket %d chunk %d lanes %v: %v: %s%s", ErrFrameRefused, g.joined.Member, h.Batch, h.Bucket,
		h.Chunk, h.Node, r.Reason, r.Detail, adviceFor(r.Reason.String()))
}

// takeDense takes a contribution of another trainer's. It keeps the payload where it says so.
func (g *segment) takeDense(host int, h *schema.Head, v *schema.View, p round.Payload) (kept bool, refused *schema.FrameError, err error) {
	if err := g.place.CheckFrame(v, g.owner); err != nil {
		return false, schema.Refusing(err), nil
	}
	at, _ := g.flat.find(h.Bucket, h.Chunk) // found by CheckFrame
	c := round.Contribution{Batch: h.Batch, Chunk: at / g.place.Trainers, Node: h.Node, Weight: h.Weight,
		Values: round.Values(v), Host: host, Bytes: int64(len(v.Bytes())), Payload: p}
	refused, err = g.add(&c, h)
	return refused == nil, refused, err
}

// add checks a contribution, adds it, and closes its round where it is the last.
func (g *segment) add(c *round.Contribution, h *schema.Head) (refused *schema.FrameError, err error) {
	ahead, refused := g.reach(c.Batch)
	if refused == nil {
		refused = round.CheckSender(&g.hosts[c.Host], g.job.Lanes, h)
	}
	if refused == nil && ahead == 0 {
		refused = g.dense.Check(c, &g.weights)
	}
	if refused == nil {
		refused = g.checkStaged(c.Bytes)
	}
	if refused == nil {
		refused = g.dense.CheckFinite(c)
	}
	if refused != nil {
		return refused, nil
	}
	if ahead == 1 {
		g.advance()
	}
	if err := g.dense.Add(c, &g.weights); err != nil {
		return nil, err
	}
	return nil, g.closeDense(c.Chunk)
}

// checkStaged refuses what the budget for open rounds has no room for.
func (g *segment) checkStaged(bytes int64) *schema.FrameError {
	if staged := g.held.Bytes(); staged+bytes > g.stagedMax {
		return schema.Refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; use smaller batches",
			bytes, staged, g.stagedMax)
	}
	return nil
}

// closeDense divides what is complete, publishes it and puts it in place here.
func (g *segment) closeDense(i int) error {
	for {
		c, ok := g.dense.Next(i)
		if !ok {
			return nil
		}
		out := g.dense.Result(i, c.Batch+1)
		if len(c.Terms) == 0 {
			clear(out)
		} else if err := g.backend.Average(cuda.Average{Lanes: g.job.Lanes, Weight: float32(c.Weight), Terms: c.Terms, Out: cuda.Float32s(out)}); err != nil {
			return fmt.Errorf("average batch %d: %w", c.Batch, g.dense.NameMismatch(i, err))
		}
		sealed := g.dense.Close(i, &g.weights, c.Weight)
		g.open--
		k := g.dense.Chunk(i)
		g.own.publish(g.subject(fabric.KindMean, schema.All).WithBucket(uint64(c.Batch), uint32(k.Bucket)), sealed)
		h := schema.Head{Batch: c.Batch, Bucket: k.Bucket, Chunk: k.Chunk, Chunks: k.Chunks, Offset: k.Offset, Weight: c.Weight}
		if _, err := g.results.put(g.owner, false, &h, h.Batch+1, out, nil); err != nil {
			return err
		}
	}
}

// takePull answers with a kept result: of the batch under way if its round is closed, or of the one before.
func (g *segment) takePull(from schema.Member, h *schema.Head, v *schema.View) *schema.FrameError {
	if err := g.place.CheckFrame(v, g.owner); err != nil {
		return schema.Refusing(err)
	}
	switch {
	case h.Flags&schema.FlagParameters != 0 || len(v.Sections()) > 0:
		return schema.Refuse(schema.ReasonUnknownBucket, "parameters and tables of job %s are kept by every trainer: segments only average", g.job.Name)
	case h.Batch == g.batch+1 && g.open == 0:
		g.advance() // it has overtaken its sender's contributions
		return nil
	case h.Batch > g.batch:
		return schema.Refuse(schema.ReasonEarlyBatch, "result of batch %d: batch %d is under way", h.Batch, g.batch)
	case h.Batch+1 < g.batch:
		return schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: those of batches %d and %d are kept", h.Batch, g.batch-1, g.batch)
	}
	if !g.place.IsDense(h.Bucket) {
		g.repeatRows(from, h)
		return nil
	}
	at, _ := g.flat.find(h.Bucket, h.Chunk)
	if kept := g.dense.Kept(at/g.place.Trainers, h.Batch); kept != nil {
		g.own.publish(g.subject(fabric.KindMean, from).WithBucket(uint64(h.Batch), uint32(h.Bucket)), kept)
	}
	return nil
}

func (g *segment) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(g.job.Name), string(g.joined.Member), kind, string(to))
}
