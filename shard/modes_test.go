package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Where trainers run ahead, rounds of several batches are open at once, and come in any order that is allowed: each
// result is still that of the naive model, which takes whole batches one after the other, and each round's results
// come in the order of batches. Rows are those of a whole number of batches, at most ahead behind.
func TestBoundedShardsAgreeWithTheModel(t *testing.T) {
	counts, waited := map[schema.Reason]int{}, 0
	defer func() { checkWaited(t, waited) }()
	lags := map[uint64]int{}
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulationOf(t, seed, schema.ConsistencyBounded, 1+int(seed%3))
			s.waited = &waited
			s.runAhead(0, 6)
			for reason, n := range s.counts {
				counts[reason] += n
			}
			for lag, n := range s.lags {
				lags[lag] += n
			}
		})
	}
	checkDisturbed(t, counts, schema.ReasonDuplicate, schema.ReasonEarlyBatch, schema.ReasonStaleBatch)
	for lag := range uint64(4) {
		if lags[lag] == 0 {
			t.Errorf("no rows were %d batches behind: the simulation runs ahead less than it should", lag)
		}
	}
}

// runAhead drives shards through batches of which ahead+1 are open at once, from the one that they have resumed at.
func (s *simulation) runAhead(first, batches schema.Batch) {
	ahead := schema.Batch(s.p.Job.Ahead)
	for b := range batches + 1 {
		s.begin(b)
	}
	s.order, s.first = map[string]schema.Batch{}, first
	var waiting []delivery
	next := first
	for {
		done := s.done(batches)
		for ; next < batches && next <= done+ahead; next++ {
			s.batch = next
			waiting = append(waiting, s.contributions()...)
		}
		if len(waiting) == 0 {
			break
		}
		at := s.r.IntN(len(waiting))
		if s.r.IntN(3) > 0 { // mostly the newest, so that they wait for older ones
			at = len(waiting) - 1 - s.r.IntN(min(len(waiting), 20))
		}
		d := waiting[at]
		waiting = slices.Delete(waiting, at, at+1)
		s.deliver(&d, schema.ReasonOK)
		s.sent = append(s.sent, d)
		s.disturbAhead(s.done(batches), next)
		for _, shard := range s.shards {
			if shard.holding {
				s.heldOpen++
			}
		}
		s.copySome(1 + s.r.IntN(3))
	}
	s.answerAll()
	for i, shard := range s.shards {
		if shard.StagedBytes() != 0 {
			s.t.Errorf("s%d still holds %d bytes of closed rounds", i, shard.StagedBytes())
		}
	}
	for name, b := range s.order {
		if b != batches {
			s.t.Errorf("round %s has %d results, want %d", name, b, batches)
		}
	}
	s.leases.Check(s.t, 0)
	s.batch = batches
	for i := range s.p.Job.Tables {
		s.compareTable(i)
	}
}

// done is how many of the batches have closed on every shard.
func (s *simulation) done(batches schema.Batch) schema.Batch {
	done := batches
	for i := range s.shards {
		if l := s.shards[i].clock.Line(0); l.Rounds() > 0 {
			done = min(done, l.Done())
		}
	}
	return done
}

// disturbAhead sends something that must change nothing. Batches before done are complete, those before next have
// begun.
func (s *simulation) disturbAhead(done, next schema.Batch) {
	ahead := schema.Batch(s.p.Job.Ahead)
	some := s.sent[s.r.IntN(len(s.sent))]
	switch s.r.IntN(5) {
	case 0: // what is too old to be known is stale
		s.deliver(&some, schema.ReasonDuplicate, schema.ReasonStaleBatch)
	case 1:
		if len(s.shards) == 1 { // of several, one may be further than the others
			s.deliver(s.reheaded(some, func(h *schema.Head) { h.Batch = done + ahead + 1 }), schema.ReasonEarlyBatch)
		}
	case 2:
		s.batch = next - 1
		s.lookup()
	case 4:
		s.lookAhead(s.r.IntN(len(s.contributors)), s.r.IntN(len(s.shards)), next)
	case 3:
		h := shardtest.View(s.t, some.frame.Seal()).Head()
		s.pulling = true
		defer func() { s.pulling = false }()
		f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: h.Batch, Bucket: h.Bucket,
			Chunk: h.Chunk, Chunks: h.Chunks})
		s.deliver(&delivery{some.from, some.shard, f}, schema.ReasonOK, schema.ReasonStaleBatch)
	}
}

// noteOrder checks that the results of each round come in the order of batches.
func (s *simulation) noteOrder(round string, b schema.Batch) {
	s.t.Helper()
	if s.order == nil {
		return
	}
	if want := max(s.order[round], s.first); b != want {
		s.t.Errorf("result of batch %d of round %s, want batch %d", b, round, want)
	}
	s.order[round] = b + 1
}

// A sparse frame whose rows are of another type than the job's is refused before anything of it is used.
func TestSparseFramesOfAnotherTypeAreRefused(t *testing.T) {
	s := newSimulationOf(t, 1, schema.ConsistencySync, 0)
	s.begin(0)
	f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindSparse, DType: schema.DTypeBFloat16, Values: 2 * 5, Keys: 1,
		Sections: 1})
	f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Bucket: s.place.SparseBucket(0),
		Chunks: 1,
		Node:   lane.Node{First: s.contributors[0].First, Count: 1}, Lanes: uint16(s.p.Job.Lanes), Weight: 1})
	f.SetSection(0, schema.Section{Dim: 5, Count: 1})
	s.deliver(&delivery{s.contributors[0].Member, 0, f}, schema.ReasonWrongDType)
}

// asyncModel applies one trainer's gradients after the other to whole tensors.
type asyncModel struct {
	p       *shardtest.Problem
	place   *schema.Placement
	values  map[string][]float32
	m       map[string][]float32
	stepped map[string]bool
}

func (m *asyncModel) sgd() cuda.SGD {
	o := m.p.Job.Optimizer
	return cuda.SGD{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay,
		Nesterov: o.Nesterov}
}

// apply steps one tensor, here a chunk or a row, by a gradient.
func (m *asyncModel) apply(t testing.TB, name string, grad []float32, weight float64) {
	t.Helper()
	a := cuda.ApplyDense{Optimizer: m.sgd(), Weight: float32(weight), First: !m.stepped[name],
		Param: cuda.Float32s(m.values[name]),
		Grad:  cuda.Float32s(grad), Out: cuda.Float32s(m.values[name])}
	if m.sgd().Momentum != 0 {
		v := cuda.Float32s(m.m[name])
		a.Slots = []cuda.Slot{{Name: "momentum", Before: v, After: v}}
	}
	must(t, m.p.Backend.ApplyDense(a))
	m.stepped[name] = true
}

// In async every trainer's contribution is applied when it is whole, once, in the order of arrival, and only its
// trainer is told: replaying the log of what closed in that order gives the same bits.
func TestAsyncShardsAgreeWithALog(t *testing.T) {
	counts, waited := map[schema.Reason]int{}, 0
	defer func() { checkWaited(t, waited) }()
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulationOf(t, seed, schema.ConsistencyAsync, 0)
			s.waited = &waited
			s.runAsync(4)
			for reason, n := range s.counts {
				counts[reason] += n
			}
		})
	}
	checkDisturbed(t, counts, schema.ReasonDuplicate, schema.ReasonEarlyBatch, schema.ReasonStaleBatch)
}

// asyncTrainer is one trainer on its way through its batches.
type asyncTrainer struct {
	batch   schema.Batch
	waiting []delivery
	answers int // results of batch so far
}

func (s *simulation) runAsync(batches schema.Batch) {
	m := s.newAsyncModel()
	trainers := make([]asyncTrainer, len(s.contributors))
	rounds := 0
	for i := range s.shards {
		rounds += s.shards[i].clock.Line(0).Rounds()
	}
	s.seen, s.parked = map[string]int{}, map[string]*parkedFrames{}
	s.applied = func(to schema.Member, h *schema.Head, v *schema.View) { s.replay(m, trainers, to, h, v) }
	for left := len(s.contributors); left > 0; {
		i := s.r.IntN(len(trainers))
		tr := &trainers[i]
		if tr.batch == batches {
			continue
		}
		if tr.waiting == nil && tr.answers == 0 {
			s.batch = tr.batch
			for _, d := range s.contributions() {
				if d.from == s.contributors[i].Member {
					tr.waiting = append(tr.waiting, d)
				}
			}
			s.r.Shuffle(len(tr.waiting), func(a, b int) { tr.waiting[a], tr.waiting[b] = tr.waiting[b], tr.waiting[a] })
		}
		d := tr.waiting[0]
		tr.waiting = tr.waiting[1:]
		s.batch = tr.batch
		s.deliver(&d, schema.ReasonOK)
		s.sent = append(s.sent, d)
		s.disturbAsync(trainers)
		if len(tr.waiting) > 0 {
			continue
		}
		if tr.answers != rounds {
			s.t.Fatalf("%s has %d results of batch %d, want %d", d.from, tr.answers, tr.batch, rounds)
		}
		*tr = asyncTrainer{batch: tr.batch + 1}
		if tr.batch == batches {
			left--
		}
	}
	s.leases.Check(s.t, 0)
}

// disturbAsync sends what must change nothing, or asks for rows.
func (s *simulation) disturbAsync(trainers []asyncTrainer) {
	some := s.sent[s.r.IntN(len(s.sent))]
	switch s.r.IntN(5) {
	case 0:
		s.deliver(&some, schema.ReasonDuplicate, schema.ReasonStaleBatch)
	case 4: // of a trainer that is about to contribute to the round that it waits for
		if i := s.r.IntN(len(trainers)); len(trainers[i].waiting) > 0 {
			s.lookAhead(i, s.r.IntN(len(s.shards)), trainers[i].batch+1)
		}
	case 1:
		s.deliver(s.reheaded(some, func(h *schema.Head) { h.Batch += 2 + trainers[s.hostOf(some.from)].batch }),
			schema.ReasonEarlyBatch)
	case 2:
		if i := s.r.IntN(len(trainers)); len(s.p.Job.Tables) > 0 && trainers[i].answers == 0 && trainers[i].waiting != nil {
			s.batch = trainers[i].batch
			s.lookupBy(i, s.r.IntN(len(s.shards)))
		}
	case 3:
		h := shardtest.View(s.t, some.frame.Seal()).Head()
		f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: h.Batch, Bucket: h.Bucket,
			Chunk: h.Chunk, Chunks: h.Chunks})
		s.pulling = true
		s.deliver(&delivery{some.from, some.shard, f}, schema.ReasonOK, schema.ReasonStaleBatch)
		s.pulling = false
	}
}

func (s *simulation) hostOf(m schema.Member) int {
	return slices.IndexFunc(s.contributors, func(h Contributor) bool { return h.Member == m })
}

func (s *simulation) newAsyncModel() *asyncModel {
	m := &asyncModel{p: s.p, place: s.place, values: map[string][]float32{}, m: map[string][]float32{},
		stepped: map[string]bool{}}
	for _, b := range s.place.Buckets {
		all := make([]float32, b.Elements)
		for _, span := range b.Spans {
			copy(all[span.Offset:], s.model.Params[span.Parameter][span.From:span.From+span.Elements])
		}
		for c := range s.place.Chunks(b.ID) {
			offset, n := s.place.ChunkRange(b.ID, schema.Chunk(c))
			m.put(fmt.Sprint(b.ID, "/", c), all[offset:offset+n])
		}
	}
	for i, table := range s.p.Job.Tables {
		for key := range table.Rows {
			m.put(fmt.Sprint("table ", i, "/", key), s.model.Tables[i][int(key)*table.Dim:][:table.Dim])
		}
	}
	return m
}

func (m *asyncModel) put(name string, values []float32) {
	m.values[name], m.m[name] = slices.Clone(values), make([]float32, len(values))
}

// replay applies what a result says was applied, and compares.
func (s *simulation) replay(m *asyncModel, trainers []asyncTrainer, to schema.Member, h *schema.Head, v *schema.View) {
	s.t.Helper()
	i := s.hostOf(to)
	if i < 0 {
		s.t.Fatalf("a result went to %s", to)
	}
	name := fmt.Sprint(h.Bucket, "/", h.Chunk)
	if !s.pulling {
		trainers[i].answers++
		if h.Batch != trainers[i].batch {
			s.t.Fatalf("a result of batch %d for %s, which is at batch %d", h.Batch, to, trainers[i].batch)
		}
		w := s.hostWork(i, h.Batch)
		if h.Weight != w.Weight {
			s.t.Fatalf("weight %v of %s, want %v", h.Weight, to, w.Weight)
		}
		if w.Weight > 0 {
			s.replayWork(m, h, w)
		}
	}
	if s.place.IsDense(h.Bucket) {
		if d := shardtest.FirstDifference(v.Float32s(), m.values[name]); d != "" {
			s.t.Fatalf("batch %d of %s, chunk %s: %s", h.Batch, to, name, d)
		}
	}
}

// hostWork is the sum over the lanes of a trainer.
func (s *simulation) hostWork(contributor int, b schema.Batch) *shardtest.LaneWork {
	absent := map[int]bool{}
	for l := range s.p.Job.Lanes {
		absent[l] = l < int(s.contributors[contributor].First) ||
			l >= int(s.contributors[contributor].First)+s.contributors[contributor].Count
	}
	s.p.Absent = absent
	defer func() { s.p.Absent = nil }()
	return s.p.Node(s.t, b, lane.Root(s.p.Job.Lanes))
}

func (s *simulation) replayWork(m *asyncModel, h *schema.Head, w *shardtest.LaneWork) {
	if s.place.IsDense(h.Bucket) {
		b := s.place.Buckets[h.Bucket]
		all := make([]float32, b.Elements)
		for _, span := range b.Spans {
			copy(all[span.Offset:], w.Dense[span.Parameter][span.From:span.From+span.Elements])
		}
		offset, n := s.place.ChunkRange(h.Bucket, h.Chunk)
		m.apply(s.t, fmt.Sprint(h.Bucket, "/", h.Chunk), all[offset:offset+n], w.Weight)
		return
	}
	for i, table := range s.p.Job.Tables {
		for k, key := range w.Keys[i] {
			if s.place.SparseBucket(s.place.OwnerOfKey(schema.Table(i), key)) == h.Bucket {
				m.apply(s.t, fmt.Sprint("table ", i, "/", key), w.Rows[i][k*table.Dim:(k+1)*table.Dim], w.Weight)
			}
		}
	}
	s.rowsNow = func(table schema.Table, key uint64) []float32 { return m.values[fmt.Sprint("table ", table, "/", key)] }
}

func newSimulationOf(t *testing.T, seed uint64, consistency string, ahead int) *simulation {
	r := rand.New(rand.NewPCG(seed, 1))
	trainers := 1 + r.IntN(4)
	job := shardtest.SmallJob("simulated", trainers, trainers+r.IntN(6))
	job.Seed, job.Consistency, job.Ahead = seed, consistency, ahead
	switch r.IntN(4) {
	case 0:
		if consistency == schema.ConsistencySync {
			job.Apply, job.Sum = schema.ApplyMean, []string{schema.SumFused, schema.SumClose}[seed%2]
		}
	case 1:
		job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.05}
	case 2:
		job.Optimizer.Nesterov = true
	case 3:
		job.Optimizer.Dampening = 0.25
	}
	if r.IntN(5) == 0 {
		job.Tables = nil
	}
	p := shardtest.New(t, job)
	s := &simulation{t: t, r: r, p: p, contributors: round.ContributorsOf(job), model: p.Model(t),
		counts: map[schema.Reason]int{}, lags: map[uint64]int{}}
	s.place = schema.NewPlacement(job, 1+r.IntN(3))
	s.makeShards(nil)
	return s
}

// makeShards makes the shards, at version 0 or at one that they resume.
func (s *simulation) makeShards(resumed *Resumed) {
	for i := range s.place.Shards {
		s.makeShard(i, resumed)
	}
}

// makeShard makes the next shard.
func (s *simulation) makeShard(i int, resumed *Resumed) {
	shard, err := New(context.Background(), Config{Job: s.p.Job, Placement: s.place, Index: i, RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: s.p.Backend, Contributors: s.contributors,
		StagedBytesMax: 64 << 20, ParkedBytesMax: 1 << 20, Undo: true, Touches: s.r.IntN(4) > 0,
		Resumed: resumed})
	must(s.t, err)
	s.t.Cleanup(shard.Close)
	s.shards = append(s.shards, shard)
}

// A lookup of no keys is answered, however far ahead, also where a shard has no rows of which the answer could be
// behind.
func TestLookupOfNothingWithoutTables(t *testing.T) {
	for consistency, far := range map[string]schema.Batch{schema.ConsistencyBounded: 2, schema.ConsistencyGrouped: 1} {
		job := shardtest.SmallJob("bare", 2, 2)
		if job.Tables, job.Consistency = nil, consistency; consistency == schema.ConsistencyBounded {
			job.Ahead = 2
		} else {
			job.Group = 2
		}
		s, err := New(context.Background(), Config{Job: job, Placement: schema.NewPlacement(job, 1), RunID: shardtest.RunID,
			Generation: shardtest.Generation, Backend: shardtest.New(t, job).Backend, Contributors: round.ContributorsOf(job),
			StagedBytesMax: 1 << 20})
		must(t, err)
		t.Cleanup(s.Close)
		outputs, reason, err := s.Step("t0",
			shardtest.View(t, shardtest.LookupFrame(t, job, shardtest.RunID, far, nil).Seal()), nil)
		if err != nil || reason != schema.ReasonOK || len(outputs) != 1 ||
			shardtest.View(t, outputs[0].Frame).Head().Offset != 0 {
			t.Errorf("%s: %v, %v, %d frames", consistency, err, reason, len(outputs))
		}
	}
}

// A shard that has no rows of async tables answers a lookup without keys.
func TestLookupOfNothingWithoutRows(t *testing.T) {
	job := shardtest.SmallJob("elsewhere", 1, 1)
	job.Tables = job.Tables[:1]
	job.Tables[0].Placement, job.Tables[0].Pooling = schema.PlacementTables, schema.PoolingSum
	job.TableConsistency = schema.ConsistencyAsync
	job.Reduce, job.Apply = schema.ReduceTrainers, schema.ApplyMean
	p := shardtest.New(t, job)
	s, err := New(t.Context(), Config{Job: job, Placement: schema.NewPlacement(job, 2), Index: 1, RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: p.Backend, Contributors: round.ContributorsOf(job),
		StagedBytesMax: 1 << 20})
	must(t, err)
	defer s.Close()
	f := shardtest.LookupFrame(t, job, shardtest.RunID, 0, nil)
	outputs, reason, err := s.Step("t0", shardtest.View(t, f.Seal()), nil)
	must(t, err)
	if reason != schema.ReasonOK || len(outputs) != 1 || s.Due() {
		t.Errorf("%v, %d frames, more of them: %v", reason, len(outputs), s.Due())
	}
}

// subtree is a node and all nodes below it.
func subtree(n lane.Node) []lane.Node {
	if n.Count == 1 {
		return []lane.Node{n}
	}
	left, right := n.Split()
	return append(append([]lane.Node{n}, subtree(left)...), subtree(right)...)
}

// cut replaces a node by nodes below it, at random.
func (s *simulation) cut(n lane.Node) []lane.Node {
	if n.Count == 1 || s.r.IntN(2) == 0 {
		return []lane.Node{n}
	}
	left, right := n.Split()
	return append(s.cut(left), s.cut(right)...)
}
