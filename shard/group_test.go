package shard

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// groupRun drives a shard of a grouped job by trainers of which each has one request at a time, in any order, and
// replays what the shard says that it has made of them.
type groupRun struct {
	t            *testing.T
	r            *rand.Rand
	job          *schema.Job
	place        *schema.Placement
	contributors []Contributor
	shard        *Shard
	leases       shardtest.Leases
	counts       map[schema.Reason]int

	batch   []schema.Batch             // of each trainer's request
	waiting [][]*schema.Frame          // of each trainer: frames of its request that are not sent
	sent    [][]*schema.Frame          // and those that are
	missing []map[schema.Chunk]bool    // of each trainer: what has not been answered
	groups  map[schema.Batch][]member2 // as the shard says
	gone    []bool

	values, momentum []float32
	versions         map[schema.Version][]float32
	made             schema.Version
}

// member2 is a request: of which trainer, and which of its batches.
type member2 struct {
	contributor int
	batch       schema.Batch
}

func newGroupRun(t *testing.T, seed uint64) *groupRun {
	r := rand.New(rand.NewPCG(seed, 9))
	trainers := 1 + r.IntN(5)
	job := shardtest.SmallJob("grouped", trainers, trainers+r.IntN(6))
	job.Consistency, job.Group, job.Apply, job.Tables = schema.ConsistencyGrouped, 1+r.IntN(trainers),
		schema.ApplyUpdate, nil
	// three chunks
	job.Parameters = []schema.Parameter{{Name: "w", Shape: []int{2500}, Init: schema.Init{Kind: schema.InitZeros}}}
	job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.05, Momentum: 0.9}
	must(t, job.Validate())
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	g := &groupRun{t: t, r: r, job: job, place: schema.NewPlacement(job, 1), contributors: round.ContributorsOf(job),
		counts: map[schema.Reason]int{},
		groups: map[schema.Batch][]member2{}, batch: make([]schema.Batch, trainers),
		waiting: make([][]*schema.Frame, trainers),
		sent:    make([][]*schema.Frame, trainers), missing: make([]map[schema.Chunk]bool, trainers),
		gone:   make([]bool, trainers),
		values: make([]float32, 2500), momentum: make([]float32, 2500),
		versions: map[schema.Version][]float32{0: make([]float32, 2500)}}
	g.shard, err = New(context.Background(),
		Config{Job: job, Placement: g.place, RunID: shardtest.RunID, Generation: shardtest.Generation,
			Backend: backend, Contributors: g.contributors, StagedBytesMax: 64 << 20, OnGroup: g.note})
	must(t, err)
	t.Cleanup(g.shard.Close)
	return g
}

func (g *groupRun) note(e GroupEvent) {
	if !e.Closed {
		g.groups[e.Group] = append(g.groups[e.Group],
			member2{slices.IndexFunc(g.contributors, func(h Contributor) bool { return h.Member == e.Member }), e.Batch})
	}
}

// weight of a lane in a batch: its samples, in every fifth none.
func weightOf(l int, b schema.Batch) float32 { return float32((l + 2*int(b)) % 5) }

// gradient of a value in a lane.
func gradientOf(l int, b schema.Batch, i int) float32 {
	return float32((l*31+int(b)*17+i)%97)/13 - 3.5
}

// sum adds up a node of the tree over the lanes that are there.
func (g *groupRun) sum(n lane.Node, there func(l int) (schema.Batch, bool), i int) (sum float32, ok bool) {
	if n.Count == 1 {
		b, ok := there(int(n.First))
		if !ok || weightOf(int(n.First), b) == 0 {
			return 0, false
		}
		return gradientOf(int(n.First), b, i), true
	}
	left, right := n.Split()
	l, okL := g.sum(left, there, i)
	r, okR := g.sum(right, there, i)
	switch {
	case okL && okR:
		return l + r, true
	case okL:
		return l, true
	}
	return r, okR
}

// ask makes the frames of a trainer's request.
func (g *groupRun) ask(contributor int) {
	h, b := g.contributors[contributor], g.batch[contributor]
	g.missing[contributor], g.sent[contributor] = map[schema.Chunk]bool{}, nil
	for c := range schema.Chunk(g.place.Chunks(0)) {
		g.missing[contributor][c] = true
		offset, elements := g.place.ChunkRange(0, c)
		for _, n := range lane.Nodes(h.First, h.Count, g.job.Lanes) {
			weight := float64(0)
			for l := int(n.First); l < n.End(); l++ {
				weight += float64(weightOf(l, b))
			}
			f := shardtest.NewFrame(g.t, schema.Layout{Kind: schema.KindDense, Values: 4 * elements})
			f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: b, Chunk: c,
				Chunks: schema.Chunk(g.place.Chunks(0)),
				Offset: uint64(offset), Node: n, Lanes: uint16(g.job.Lanes), Weight: weight})
			for i := range f.Float32s() {
				f.Float32s()[i], _ = g.sum(n, func(int) (schema.Batch, bool) { return b, true }, offset+i)
			}
			g.waiting[contributor] = append(g.waiting[contributor], f)
		}
	}
}

func (g *groupRun) send(contributor int, f *schema.Frame, want ...schema.Reason) {
	g.t.Helper()
	frame := f.Seal()
	v, err := schema.Verify(slices.Clone(frame), schema.Limits{}) // sums are made in place
	must(g.t, err)
	outputs, reason, err := g.shard.Step(g.contributors[contributor].Member, &v, g.leases.Of(v.Bytes()))
	must(g.t, err)
	g.counts[reason]++
	if !slices.Contains(want, reason) {
		g.t.Fatalf("%s batch %d: %v, want %v", g.contributors[contributor].Member, v.Head().Batch, reason, want)
	}
	g.take(outputs)
}

// take checks answers against the replay.
func (g *groupRun) take(outputs []Output) {
	g.t.Helper()
	for _, o := range outputs {
		if o.Kind != schema.KindMean {
			continue
		}
		v, err := schema.Verify(o.Frame, schema.Limits{})
		must(g.t, err)
		h := v.Head()
		g.replayTo(h.Batch + 1)
		offset, elements := g.place.ChunkRange(0, h.Chunk)
		if d := shardtest.FirstDifference(v.Float32s(), g.versions[h.Batch+1][offset:offset+elements]); d != "" {
			g.t.Fatalf("version %d chunk %d for %s: %s", h.Batch+1, h.Chunk, o.To, d)
		}
		for i := range g.contributors {
			if o.To != schema.All && o.To != g.contributors[i].Member {
				continue
			}
			if !slices.Contains(g.groups[h.Batch], member2{i, o.Batch}) || o.Batch != g.batch[i] {
				g.t.Fatalf("group %d answers %s's batch %d, which is not in it", h.Batch, g.contributors[i].Member, o.Batch)
			}
			if !g.missing[i][h.Chunk] {
				g.t.Fatalf("chunk %d of %s's batch %d is answered twice", h.Chunk, g.contributors[i].Member, o.Batch)
			}
			delete(g.missing[i], h.Chunk)
		}
	}
}

// replayTo makes the updates up to a version, one after the other.
func (g *groupRun) replayTo(v schema.Version) {
	for ; g.made < v; g.made++ {
		of := map[int]schema.Batch{}
		weight := float32(0)
		for _, m := range g.groups[g.made] {
			for l := int(g.contributors[m.contributor].First); l < int(g.contributors[m.contributor].First)+
				g.contributors[m.contributor].Count; l++ {
				of[l] = m.batch
				weight += weightOf(l, m.batch)
			}
		}
		next := slices.Clone(g.versions[g.made])
		for i := range next {
			sum, ok := g.sum(lane.Root(g.job.Lanes), func(l int) (schema.Batch, bool) { b, ok := of[l]; return b, ok }, i)
			if !ok {
				continue
			}
			g.momentum[i] = float32(g.job.Optimizer.Momentum*g.momentum[i]) + sum/weight // of +0 at first
			next[i] -= float32(g.job.Optimizer.LR * g.momentum[i])
		}
		g.versions[g.made+1] = next
	}
}

// disturb sends something that must change nothing.
func (g *groupRun) disturb() {
	contributor := g.r.IntN(len(g.contributors))
	if len(g.sent[contributor]) == 0 {
		return
	}
	g.send(contributor, g.sent[contributor][g.r.IntN(len(g.sent[contributor]))], schema.ReasonDuplicate)
}

// Requests of trainers in any order of arrival, chunk by chunk, with repeats, late and early frames: every update is
// the sum over exactly the requests of its group, and each request is answered once with it, whole.
func TestGroupedShardsAgreeWithAReplay(t *testing.T) {
	counts := map[schema.Reason]int{}
	for seed := range uint64(25) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			g := newGroupRun(t, seed)
			g.run(5)
			for reason, n := range g.counts {
				counts[reason] += n
			}
		})
	}
	checkDisturbed(t, counts, schema.ReasonDuplicate, schema.ReasonEarlyBatch, schema.ReasonStaleBatch)
}

// run has each trainer make so many requests; those who are done leave.
func (g *groupRun) run(batches schema.Batch) {
	for i := range g.contributors {
		g.ask(i)
	}
	for left := len(g.contributors); left > 0; {
		contributor := g.r.IntN(len(g.contributors))
		switch {
		case g.gone[contributor]:
		case len(g.waiting[contributor]) > 0:
			at := g.r.IntN(len(g.waiting[contributor]))
			f := g.waiting[contributor][at]
			g.waiting[contributor] = slices.Delete(g.waiting[contributor], at, at+1)
			g.sent[contributor] = append(g.sent[contributor], f)
			g.send(contributor, f, schema.ReasonOK)
		case len(g.missing[contributor]) > 0:
			if g.r.IntN(4) == 0 { // impatient
				early := shardtest.NewFrame(g.t, schema.Layout{Kind: schema.KindDense, Values: g.job.ChunkBytes})
				early.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: g.batch[contributor] + 1,
					Chunks: 3, Lanes: uint16(g.job.Lanes),
					Node: lane.Nodes(g.contributors[contributor].First, g.contributors[contributor].Count, g.job.Lanes)[0]})
				g.send(contributor, early, schema.ReasonEarlyBatch)
			}
		case g.batch[contributor]+1 == batches:
			g.gone[contributor] = true
			left--
			outputs, err := g.shard.Gone([]schema.Member{g.contributors[contributor].Member})
			must(g.t, err)
			g.take(outputs)
		default:
			late := g.sent[contributor]
			g.batch[contributor]++
			g.ask(contributor)
			f := g.waiting[contributor][0]
			g.waiting[contributor] = g.waiting[contributor][1:]
			g.send(contributor, f, schema.ReasonOK)
			g.send(contributor, late[g.r.IntN(len(late))], schema.ReasonStaleBatch)
			g.sent[contributor] = append(g.sent[contributor], f)
		}
		if g.r.IntN(3) == 0 && left == len(g.contributors) {
			g.disturb()
		}
	}
	if g.shard.StagedBytes() != 0 {
		g.t.Errorf("%d bytes of closed rounds are held", g.shard.StagedBytes())
	}
	g.leases.Check(g.t, 0)
	if kept, free := g.shard.clock.(*round.Grouped).Versions(); kept+free > round.Versions(g.job) {
		g.t.Errorf("%d versions were kept at once, want at most %d", kept+free, round.Versions(g.job))
	}
}

// A batch whose number is the largest there is follows on none: it is refused of one who has made no request yet.
func TestGroupedRefusesTheLargestBatch(t *testing.T) {
	g := newGroupRun(t, 0)
	for seed := uint64(1); len(g.contributors) < 2 || g.job.Group > 1; seed++ {
		g = newGroupRun(t, seed)
	}
	head := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Batch: math.MaxUint64,
		Lanes: uint16(g.job.Lanes)}
	pull := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindPull})
	dense := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: g.job.ChunkBytes})
	for range 3 {
		pull.SetHead(head)
		g.send(1, pull, schema.ReasonEarlyBatch)
		h := head
		h.Chunks, h.Node = 3, lane.Nodes(g.contributors[1].First, g.contributors[1].Count, g.job.Lanes)[0]
		dense.SetHead(h)
		g.send(1, dense, schema.ReasonEarlyBatch)
		for g.ask(0); len(g.waiting[0]) > 0; g.waiting[0] = g.waiting[0][1:] {
			g.send(0, g.waiting[0][0], schema.ReasonOK)
		}
		g.batch[0]++
	}
}
