package trainer

import (
	"fmt"

	"gradbus/fabric"
	"gradbus/round"
	"gradbus/schema"
)

// makeSparse makes the rounds over the rows of replicated tables whose partitions this trainer adds up.
func (g *segment) makeSparse() {
	g.sparse = round.NewSparse(round.SparseConfig{Backend: g.backend, Lanes: g.job.Lanes, AtClose: g.lent || g.place.Plan.SumAtClose,
		DType: g.place.Plan.DType, Held: g.held, Tables: g.place.SumTables(g.owner)})
	g.means = round.NewRowResults(round.RowResultsConfig{Backend: g.backend, Lanes: g.job.Lanes, ChunkBytes: g.job.ChunkBytes, Versions: 2,
		Head:   schema.Head{Job: g.joined.RunID, Generation: g.joined.Generation, Bucket: g.place.SparseBucket(g.owner)},
		Tables: round.Replicated(g.job, g.place.Plan, schema.ByTrainers)})
}

// contributeRows takes a chunk of this trainer's own rows, in a frame that must not change until the batch is complete.
func (g *segment) contributeRows(f *schema.Frame) error {
	v := f.View()
	h := v.Head()
	g.mu.Lock()
	defer g.mu.Unlock()
	c := round.SparseChunk{Head: h, View: v, Host: g.self}
	refused, err := g.addRows(&c)
	if err == nil && refused != nil {
		err = g.refusedOwn(&h, refused)
	}
	if err != nil {
		return err
	}
	g.acknowledge()
	return nil
}

// takeSparse takes a chunk of another trainer's rows. It keeps the payload where it says so.
func (g *segment) takeSparse(host int, h *schema.Head, v *schema.View, p round.Payload) (kept bool, refused *schema.FrameError, err error) {
	if err := g.place.CheckFrame(v, g.owner); err != nil {
		return false, schema.Refusing(err), nil
	}
	c := round.SparseChunk{Head: *h, View: *v, Host: host, Bytes: int64(len(v.Bytes())), Payload: p}
	refused, err = g.addRows(&c)
	return refused == nil, refused, err
}

// addRows checks a chunk, adds it, and closes the round where it is the last.
func (g *segment) addRows(c *round.SparseChunk) (refused *schema.FrameError, err error) {
	h := &c.Head
	if g.sparse == nil {
		return schema.Refuse(schema.ReasonUnknownBucket, "no table of job %s is reduced between trainers", g.job.Name), nil
	}
	ahead, refused := g.reach(h.Batch)
	if refused == nil {
		refused = round.CheckSender(&g.hosts[c.Host], g.job.Lanes, h)
	}
	if refused == nil {
		refused = c.Check()
	}
	if refused == nil && ahead == 0 {
		refused = g.sparse.Check(c, &g.weights)
	}
	if refused == nil {
		refused = g.checkShare(c.Host, h, g.sparse.Cost(c))
	}
	if refused == nil {
		refused = g.checkStaged(c.Bytes)
	}
	if refused == nil {
		refused = g.sparse.CheckFinite(c)
	}
	if refused != nil {
		return refused, nil
	}
	if ahead == 1 {
		g.advance()
	}
	if err := g.sparse.Add(c, &g.weights); err != nil {
		return nil, err
	}
	return nil, g.closeRows()
}

// checkShare refuses what does not fit its sender's share of the budget together with the rows of this batch that it has
// sent: all of them have to be here before the round closes, so waiting for room would never end.
func (g *segment) checkShare(host int, h *schema.Head, bytes int64) *schema.FrameError {
	if h.Kind != schema.KindSparse || g.sparse == nil || h.Batch != g.batch || h.Batch < g.sparse.Closed() {
		return nil
	}
	share, held := g.stagedMax/int64(len(g.hosts)), g.sparse.HeldOf(h.Batch, host)
	if held+bytes <= share {
		return nil
	}
	return schema.Refuse(schema.ReasonOverBudget, "%d bytes after %d: a trainer's rows of one batch may take %d bytes with one that adds them up, "+
		"its share of %d; use smaller batches", bytes, held, share, g.stagedMax)
}

// closeRows merges and divides what is complete, publishes it and applies it here.
func (g *segment) closeRows() error {
	b, total, ok := g.sparse.Next()
	if !ok {
		return nil
	}
	sealed, err := g.means.Make(g.sparse, b, total)
	if err != nil {
		return fmt.Errorf("reduce rows of batch %d: %w", b, err)
	}
	g.sparse.Close(&g.weights, total)
	g.open--
	to := g.subject(fabric.KindMean, schema.All).WithBucket(uint64(b), uint32(g.place.SparseBucket(g.owner)))
	for _, frame := range sealed {
		g.own.publish(to, frame)
	}
	for _, f := range g.means.Frames(b) {
		v := f.View()
		if _, err := g.results.take(g.owner, false, v.Head().Batch, &v); err != nil {
			return err
		}
	}
	return nil
}

// repeatRows answers a pull of the result of a sparse round: with all of it, since who asks does not know how much it is.
func (g *segment) repeatRows(to schema.Member, h *schema.Head) {
	if g.sparse == nil || h.Batch >= g.sparse.Closed() {
		return
	}
	for _, frame := range g.means.Kept(h.Batch) {
		g.own.publish(g.subject(fabric.KindMean, to).WithBucket(uint64(h.Batch), uint32(h.Bucket)), frame)
	}
}
