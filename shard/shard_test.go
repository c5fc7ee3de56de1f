package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// Whatever the order of arrival, however often frames are repeated, however lanes are cut into nodes, whatever stale,
// early and foreign frames come between, and on any number of shards: every result and every row is, bit for bit, that
// of the naive model.
func TestShardsAgreeWithTheModel(t *testing.T) {
	counts, waited := map[schema.Reason]int{}, 0
	defer func() { checkWaited(t, waited) }()
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			s.waited = &waited
			s.run(4)
			for reason, n := range s.counts {
				counts[reason] += n
			}
		})
	}
	checkDisturbed(t, counts, schema.ReasonDuplicate, schema.ReasonForeignJob, schema.ReasonEarlyBatch,
		schema.ReasonStaleBatch,
		schema.ReasonUnknownSender, schema.ReasonNonFinite)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkDisturbed checks that frames were refused for each of these reasons.
func checkDisturbed(t *testing.T, counts map[schema.Reason]int, reasons ...schema.Reason) {
	t.Helper()
	for _, r := range reasons {
		if counts[r] == 0 {
			t.Errorf("no frame was %v: the simulation disturbs less than it should", r)
		}
	}
}

// simulation drives the shards of one random job through batches.
type simulation struct {
	t            *testing.T
	r            *rand.Rand
	p            *shardtest.Problem
	place        *schema.Placement
	shards       []*Shard
	contributors []Contributor
	model        *shardtest.Model

	batch   schema.Batch
	want    []expectation            // by batch
	seen    map[string]int           // results of the batch, by bucket and chunk, or by bucket and who was told
	parked  map[string]*parkedFrames // by shard and trainer
	asked   schema.Sequence
	waited  *int       // where not nil: counts the answers to these
	copies  []*copied  // by shard; nil where nothing is copied
	replica *mirrored  // nil where no ps has a replica
	old     []delivery // of batches that are over
	sent    []delivery // of this batch
	counts  map[schema.Reason]int
	leases  shardtest.Leases

	// Of takeover_test.go.
	takingOver bool
	since      map[schema.Member]schema.Generation // of places that were taken over
	risen      schema.Generation                   // how often one was
	stale      int                                 // lookups of rows that had changed by then

	// Of modes_test.go.
	lags     map[uint64]int                                  // how often rows were so many batches behind
	order    map[string]schema.Batch                         // where not nil: the next batch of each round
	first    schema.Batch                                    // of order
	heldOpen int                                             // steps after which a round may have stayed open for a copy
	applied  func(schema.Member, *schema.Head, *schema.View) // where not nil: takes results
	pulling  bool                                            // the result was asked for again
	rowsNow  func(table schema.Table, key uint64) []float32  // where not nil: what rows must be
}

// expectation is what a batch begins with and must result in.
type expectation struct {
	before [][]float32 // the model's tables at the version of the batch
	means  [][]float32 // by parameter: what the batch's results must be
	weight float64     // of the batch
}

// delivery is a frame on its way.
type delivery struct {
	from  schema.Member
	shard int
	frame *schema.Frame
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	return newSimulationOf(t, seed, schema.ConsistencySync, 0)
}

func (s *simulation) run(batches int) { s.runFrom(0, batches) }

// runFrom begins at a batch, of shards that have been resumed there.
func (s *simulation) runFrom(first schema.Batch, batches int) {
	for b := range first {
		s.begin(b)
	}
	for b := first; b < schema.Batch(batches); b++ {
		s.begin(b)
		s.sent = s.contributions()
		for i, at := range s.r.Perm(len(s.sent)) {
			want := []schema.Reason{schema.ReasonOK}
			if s.takingOver {
				want = append(want, schema.ReasonDuplicate)
			}
			s.deliver(&s.sent[at], want...)
			if s.takingOver && s.r.IntN(len(s.sent)) < 3 {
				s.takeOver(s.r.IntN(len(s.contributors)))
			}
			s.disturb(at, i)
			s.copySome(1 + s.r.IntN(3))
			s.mirrorSome()
		}
		for i := range s.sent { // what was dropped when places were taken
			if s.takingOver {
				s.deliver(&s.sent[i], schema.ReasonOK, schema.ReasonDuplicate)
			}
		}
		s.complete()
		s.old = append(s.old, s.sent[:min(len(s.sent), 20)]...)
	}
	s.begin(schema.Batch(batches))
	for i := range s.p.Job.Tables {
		s.compareTable(i)
	}
	for i, shard := range s.shards {
		if shard.StagedBytes() != 0 {
			s.t.Errorf("s%d still holds %d bytes of closed rounds", i, shard.StagedBytes())
		}
	}
}

// begin notes what a batch must result in, and steps the model past it.
func (s *simulation) begin(b schema.Batch) {
	s.batch, s.seen, s.parked = b, map[string]int{}, map[string]*parkedFrames{}
	var e expectation
	for _, rows := range s.model.Tables {
		e.before = append(e.before, slices.Clone(rows))
	}
	w := s.p.Node(s.t, b, lane.Root(s.p.Job.Lanes))
	e.weight = w.Weight
	s.model.Step(s.t, b)
	for i := range s.p.Job.Parameters {
		if s.p.Job.Apply == schema.ApplyUpdate {
			e.means = append(e.means, slices.Clone(s.model.Params[i]))
			continue
		}
		mean := make([]float32, len(w.Dense[i]))
		if w.Weight > 0 {
			must(s.t,
				s.p.Backend.Average(cuda.Average{Lanes: 1, Weight: float32(w.Weight),
					Terms: []cuda.Term{{Count: 1, Values: cuda.Float32s(w.Dense[i])}}, Out: cuda.Float32s(mean)}))
		}
		e.means = append(e.means, mean)
	}
	s.want = append(s.want, e)
}

// contributions are all frames of the batch. Every round is cut into nodes in its own way.
func (s *simulation) contributions() []delivery {
	var out []delivery
	built := map[lane.Node][]shardtest.Contribution{}
	type round struct {
		bucket schema.Bucket
		chunk  schema.Chunk
	}
	for _, host := range s.contributors {
		cuts := map[round][]lane.Node{}
		var order []round
		for _, node := range lane.Nodes(host.First, host.Count, s.p.Job.Lanes) {
			for _, sub := range subtree(node) {
				built[sub] = s.p.Frames(s.t, s.place, shardtest.RunID, s.batch, sub)
			}
			for _, c := range built[node] {
				h := shardtest.View(s.t, c.Frame.Seal()).Head()
				at := round{h.Bucket, h.Chunk}
				if c.Kind == schema.KindSparse {
					at.chunk = 0
				}
				if h.Chunk == at.chunk {
					if cuts[at] == nil {
						order = append(order, at)
					}
					cuts[at] = append(cuts[at], s.cut(node)...)
				}
			}
		}
		for _, at := range order {
			for _, node := range cuts[at] {
				for _, c := range built[node] {
					h := shardtest.View(s.t, c.Frame.Seal()).Head()
					if h.Bucket == at.bucket && (c.Kind == schema.KindSparse || h.Chunk == at.chunk) {
						out = append(out, delivery{host.Member, c.Shard, c.Frame})
						s.stamp(&out[len(out)-1])
					}
				}
			}
		}
	}
	return out
}

// deliver hands a frame over and checks what comes back.
func (s *simulation) deliver(d *delivery, want ...schema.Reason) {
	s.t.Helper()
	before := fingerprint(s.shards[d.shard])
	v := shardtest.View(s.t, d.frame.Seal())
	h, payload := v.Head(), s.leases.Of(v.Bytes())
	outputs, reason, err := s.shards[d.shard].Step(d.from, v, payload)
	must(s.t, err)
	s.counts[reason]++
	if after := fingerprint(s.shards[d.shard]); reason != schema.ReasonOK && after != before {
		s.t.Fatalf("a frame that was %v changed the shard:\n%s\n%s", reason, before, after)
	}
	if !slices.Contains(want, reason) {
		text := ""
		for _, o := range outputs {
			text += string(shardtest.View(s.t, o.Frame).Body())
		}
		s.t.Fatalf("%v frame of batch %d from %s: %v, want %v: %s", h.Kind, s.batch, d.from, reason, want, text)
	}
	for i := range outputs {
		s.check(d, &outputs[i], reason)
	}
	for s.shards[d.shard].Due() && (s.applied != nil || s.r.IntN(4) > 0) {
		s.answer(d.shard)
	}
}

// check checks what a step has put out.
func (s *simulation) check(d *delivery, o *Output, reason schema.Reason) {
	s.t.Helper()
	v := shardtest.View(s.t, o.Frame)
	switch o.Kind {
	case schema.KindMean:
		h := v.Head()
		if !s.pulling && !s.place.IsDense(h.Bucket) {
			s.tell(o.To, &h)
		}
		if s.applied != nil {
			s.applied(o.To, &h, v)
			return
		}
		s.checkMean(o, v)
	case schema.KindRows:
		s.checkRows(v)
	case schema.KindRefusal:
		if reason == schema.ReasonOK || o.To != d.from {
			s.t.Fatalf("frame that was %v gave a refusal to %s", reason, o.To)
		}
	}
}

// tell notes that somebody hears that a round over rows is over, from its result or from the rows that it has made.
func (s *simulation) tell(to schema.Member, h *schema.Head) {
	s.t.Helper()
	for _, host := range s.contributors {
		if to == schema.All || to == host.Member {
			name := fmt.Sprint(h.Bucket, " to ", host.Member)
			s.seen[name]++
			s.noteOrder(name, h.Batch)
		}
	}
}

// disturb sends something that must change nothing.
func (s *simulation) disturb(at, sent int) {
	some := s.sent[s.r.IntN(len(s.sent))]
	v := shardtest.View(s.t, some.frame.Seal())
	switch s.r.IntN(9) {
	case 0:
		want := []schema.Reason{schema.ReasonDuplicate}
		if s.takingOver {
			want = append(want, schema.ReasonOK) // it was dropped
		}
		s.deliver(&s.sent[at], want...)
	case 8: // the lookup of the next batch, of a trainer that has sent what it contributes
		s.lookAhead(s.r.IntN(len(s.contributors)), s.r.IntN(len(s.shards)), s.batch+1)
	case 1: // a frame of another run
		s.deliver(s.reheaded(some, func(h *schema.Head) { h.Job++ }), schema.ReasonForeignJob)
	case 2: // of a batch that has not begun
		s.deliver(s.reheaded(some, func(h *schema.Head) { h.Batch += 2 }), schema.ReasonEarlyBatch)
	case 3: // under a wrong name
		d := some
		d.from = "t9"
		s.deliver(&d, schema.ReasonUnknownSender)
	case 4: // of a batch that is over; before the shard has moved on, it is a repetition
		if len(s.old) > 0 {
			s.deliver(&s.old[s.r.IntN(len(s.old))], schema.ReasonStaleBatch, schema.ReasonDuplicate,
				schema.ReasonOldGeneration)
		}
	case 5: // a lookup at this version, which is there until the round over its rows closes
		s.lookup()
	case 6: // a pull, open or closed
		h := v.Head()
		s.pulling = true
		defer func() { s.pulling = false }()
		f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: s.generation(some.from), Batch: s.shards[some.shard].Batch(),
			Bucket: h.Bucket, Chunk: h.Chunk})
		s.deliver(&delivery{some.from, some.shard, f}, schema.ReasonOK)
	case 7: // values that are not numbers, in a place that is still open
		if v.Head().Weight > 0 && len(v.Float32s()) > 0 && sent < len(s.sent)-1 {
			d := s.reheaded(some, func(*schema.Head) {})
			values := d.frame.Float32s()
			values[s.r.IntN(len(values))] = []float32{float32(math.NaN()), float32(math.Inf(1)),
				float32(math.Inf(-1))}[s.r.IntN(3)]
			s.deliver(d, schema.ReasonNonFinite, schema.ReasonDuplicate)
		}
	}
}

// reheaded is a copy of a frame with another head.
func (s *simulation) reheaded(d delivery, change func(*schema.Head)) *delivery {
	v := shardtest.View(s.t, d.frame.Seal())
	h := v.Head()
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: h.Kind, Values: 4 * len(v.Float32s()), Keys: len(v.Keys()),
		Sections: len(v.Sections())})
	change(&h)
	f.SetHead(h)
	copy(f.Float32s(), v.Float32s())
	copy(f.Keys(), v.Keys())
	copy(f.Sections(), v.Sections())
	return &delivery{d.from, d.shard, f}
}

// lookup asks a random shard for some of its rows at the batch's version.
func (s *simulation) lookup() { s.lookupBy(s.r.IntN(len(s.contributors)), s.r.IntN(len(s.shards))) }

func (s *simulation) lookupBy(contributor, shard int) {
	s.t.Helper()
	want := schema.ReasonOK
	if l := s.shards[shard].clock.Line(contributor); l.Sparse != nil && l.Sparse.Closed() > s.batch &&
		s.since[s.contributors[contributor].Member] == 0 {
		want = schema.ReasonStaleBatch
	}
	if len(s.p.Job.Tables) > 0 {
		s.deliver(s.lookupOf(contributor, shard, s.batch), want)
	}
}

// lookupOf asks for some rows of a shard at a version.
func (s *simulation) lookupOf(contributor, shard int, b schema.Batch) *delivery {
	keys := make([][]uint64, len(s.p.Job.Tables))
	for i, table := range s.p.Job.Tables {
		for key := range table.Rows {
			if s.r.IntN(9) == 0 && s.place.OwnerOfKey(schema.Table(i), key) == shard {
				keys[i] = append(keys[i], key)
			}
		}
	}
	f := shardtest.LookupFrame(s.t, s.p.Job, shardtest.RunID, b, keys)
	s.asked++
	f.SetSequence(s.asked)
	d := &delivery{s.contributors[contributor].Member, shard, f}
	s.stamp(d)
	return d
}

// checkMean compares a dense result with what the batch must result in.
func (s *simulation) checkMean(o *Output, v *schema.View) {
	s.t.Helper()
	h := v.Head()
	if o.To == schema.All && s.place.IsDense(h.Bucket) {
		name := fmt.Sprint(h.Bucket, "/", h.Chunk)
		s.seen[name]++
		s.noteOrder(name, h.Batch)
	}
	e := &s.want[h.Batch]
	if h.Weight != e.weight {
		s.t.Errorf("batch %d bucket %d: weight %v, want %v", h.Batch, h.Bucket, h.Weight, e.weight)
	}
	if !s.place.IsDense(h.Bucket) {
		return
	}
	want := make([]float32, s.place.Buckets[h.Bucket].Elements)
	for _, span := range s.place.Buckets[h.Bucket].Spans {
		copy(want[span.Offset:], e.means[span.Parameter][span.From:span.From+span.Elements])
	}
	offset, elements := s.place.ChunkRange(h.Bucket, h.Chunk)
	if d := shardtest.FirstDifference(v.Float32s(), want[offset:offset+elements]); d != "" {
		s.t.Errorf("batch %d bucket %d chunk %d: %s", h.Batch, h.Bucket, h.Chunk, d)
	}
}

// checkRows compares rows with the model's at the version they were asked for.
func (s *simulation) checkRows(v *schema.View) {
	s.t.Helper()
	version := v.Head().Batch - schema.Batch(v.Head().Offset)
	s.lags[v.Head().Offset]++
	for _, part := range v.Parts() {
		for i, key := range part.Keys {
			var want []float32
			switch {
			case s.rowsNow != nil:
				want = s.rowsNow(part.Table, key)
			case int(version) >= len(s.want): // async, before the first step; else that which the batch under way makes
				want = s.model.Tables[part.Table][int(key)*part.Dim:][:part.Dim]
			default:
				want = s.want[version].before[part.Table][int(key)*part.Dim:][:part.Dim]
			}
			if d := shardtest.FirstDifference(part.Rows[i*part.Dim:(i+1)*part.Dim], want); d != "" {
				s.t.Fatalf("version %d table %d key %d: %s", version, part.Table, key, d)
			}
		}
	}
}

// complete checks that every round has closed, once.
func (s *simulation) complete() {
	s.t.Helper()
	s.answerAll()
	rounds := 0
	for i, shard := range s.shards {
		if l := shard.clock.Line(0); l.Rounds() > 0 && l.Done() <= s.batch {
			s.t.Fatalf("batch %d: s%d has open rounds: %+v", s.batch, i, shard.Waiting())
		}
		rounds += shard.clock.Line(0).Rounds()
		if shard.clock.Line(0).Sparse != nil { // of which each trainer is told by itself
			rounds += len(s.contributors) - 1
		}
	}
	if len(s.seen) != rounds {
		s.t.Errorf("batch %d: %d results, want %d", s.batch, len(s.seen), rounds)
	}
	if len(s.parked) > 0 {
		s.t.Errorf("batch %d: lookups are parked that wait for nothing: %v", s.batch, s.parked)
	}
	for name, n := range s.seen {
		if n != 1 {
			s.t.Errorf("batch %d: result %s was published %d times", s.batch, name, n)
		}
	}
}

// compareTable pulls a whole table and compares it with the model's.
func (s *simulation) compareTable(id int) {
	s.t.Helper()
	spec := s.p.Job.Tables[id]
	rows := 0
	for part := range spec.Partitions {
		shard := s.shards[s.place.OwnerOfPartition(schema.Table(id), schema.Partition(part))]
		for cursor, more := uint64(0), true; more; {
			f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
			f.SetHead(schema.Head{Job: shardtest.RunID, Generation: s.generation(s.contributors[0].Member), Batch: s.batch,
				Bucket: schema.Bucket(part)})
			f.SetSection(0, schema.Section{Table: schema.Table(id), Dim: uint32(spec.Dim), Count: uint64(1 + s.r.IntN(30))})
			f.Keys()[0] = cursor
			outputs, reason, err := shard.Step(s.contributors[0].Member, shardtest.View(s.t, f.Seal()), nil)
			must(s.t, err)
			if reason != schema.ReasonOK || len(outputs) != 1 {
				s.t.Fatalf("pull of table %d partition %d: %v", id, part, reason)
			}
			v := shardtest.View(s.t, outputs[0].Frame)
			s.checkRows(v)
			for _, key := range v.Keys() {
				if key < cursor {
					s.t.Fatalf("key %d came below cursor %d", key, cursor)
				}
				cursor = key + 1
				rows++
			}
			more = v.Head().Flags&schema.FlagMore != 0
		}
	}
	if rows != int(spec.Rows) {
		s.t.Errorf("table %d has %d rows, want %d", id, rows, spec.Rows)
	}
}
