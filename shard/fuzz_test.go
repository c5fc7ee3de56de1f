package shard

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
	"gradbus/shard/state"
)

// FuzzShardStep steps an owner with well-sealed frames of any kind and content, as a broken or hostile trainer might
// send them, in jobs of every plan. It must neither panic nor fail, what it refuses must not change it, and what it
// puts out must be what receivers take.
//
// The input is three bytes that say which owner of which job it is, and the frames.
func FuzzShardStep(f *testing.F) {
	jobs := fuzzJobs(f)
	for seed := range byte(40) {
		input := make([]byte, 3+40*12)
		for i := range input {
			input[i] = byte(uint64(i+1) * (uint64(seed) + 77) * 0x9e3779b97f4a7c15 >> 40)
		}
		f.Add(input)
	}
	f.Add(make([]byte, 400))
	f.Fuzz(func(t *testing.T, input []byte) {
		in := fuzzInput(input)
		z := newFuzzed(t, jobs, &in)
		defer z.shard.Close()
		for n := 0; len(in) > 0 && n < 64; n++ {
			z.step(z.frame(&in))
		}
	})
}

// The fuzzer's frames are such that owners take many of them, of every kind that they take, and get through batches.
// Most reasons to refuse one occur.
func TestFuzzFramesAreTaken(t *testing.T) {
	r, jobs := rand.New(rand.NewPCG(5, 5)), fuzzJobs(t)
	reasons, taken, batches := map[schema.Reason]int{}, map[schema.Kind]int{}, schema.Batch(0)
	if len(jobs) < 60 {
		t.Errorf("%d jobs: want one of every plan", len(jobs))
	}
	for i := range 8 * len(jobs) {
		in := fuzzInput{byte(i), byte(r.Uint32()), byte(r.Uint32())}
		z := newFuzzed(t, jobs, &in)
		first := z.shard.Batch()
		for range 64 {
			in = make(fuzzInput, 80)
			for i := range in {
				in[i] = byte(r.Uint32())
			}
			kind, reason := z.step(z.frame(&in))
			if reasons[reason]++; reason == schema.ReasonOK {
				taken[kind]++
			}
		}
		batches += z.shard.Batch() - first
		z.shard.Close()
	}
	t.Logf("%d batches, %v taken of %v", batches, taken, reasons)
	for _, k := range []schema.Kind{schema.KindDense, schema.KindSparse, schema.KindLookup, schema.KindPull} {
		if taken[k] < 20 {
			t.Errorf("%d frames of kind %v were taken", taken[k], k)
		}
	}
	if batches < 200 || reasons[schema.ReasonOK] < 2500 || len(reasons) < 20 {
		t.Errorf("%d batches after %v", batches, reasons)
	}
}

// fuzzInput is bytes that say what a frame is; where they have ended, zeros follow.
type fuzzInput []byte

func (in *fuzzInput) next() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// below is a number below n.
func (in *fuzzInput) below(n int) int { return int(in.next()) % n }

// odd is true now and then.
func (in *fuzzInput) odd() bool { return in.next() >= 244 }

// number is a number of any size: small ones, and those at which something may overflow.
func (in *fuzzInput) number() uint64 {
	b := in.next()
	if b < 192 {
		return uint64(b % 8)
	}
	return [...]uint64{math.MaxUint64, math.MaxUint64 - 1, math.MaxInt64, 1 << 63, math.MaxUint32, 1 << 31, 1 << 20,
		255}[b%8]
}

// fuzzJobs is a small job of every plan.
func fuzzJobs(t testing.TB) (jobs []*schema.Job) {
	t.Helper()
	text, err := os.ReadFile("../schema/testdata/plans.txt")
	must(t, err)
	legal, _, _ := strings.Cut(string(text), "\n\n")
	for _, line := range strings.Split(legal, "\n") {
		words, _, _ := strings.Cut(line, ": ")
		job := fuzzJob(t, strings.Fields(words))
		if module := fuzzModule(*job); module.Validate() == nil {
			job = module
		}
		must(t, job.Validate())
		jobs = append(jobs, job)
	}
	return jobs
}

func fuzzModule(job schema.Job) *schema.Job {
	job.Modules = []schema.ModuleSpec{{Name: "top", In: []int{2}, Module: "{}", Samples: 4, Contexts: 2}}
	return &job
}

// fuzzJob is a job of a line's words: consistency, who applies and reduces, sums, tables, whether these are async, and
// gradients.
func fuzzJob(t testing.TB, w []string) *schema.Job {
	t.Helper()
	job := shardtest.SmallJob("fuzz", 2, 3)
	job.Parameters = job.Parameters[1:]
	job.Consistency, job.Apply, job.Reduce, job.Sum = w[0], w[1], w[2], w[3]
	if job.Consistency == schema.ConsistencyBounded {
		job.Ahead = 2
	}
	if job.Consistency == schema.ConsistencyGrouped {
		job.Group = 1
	}
	if w[5] == schema.ConsistencyAsync {
		job.TableConsistency = w[5]
	}
	gradients, feedback := strings.CutSuffix(w[len(w)-1], "+feedback")
	job.Wire = schema.Wire{Gradients: gradients, ErrorFeedback: feedback}
	if w[4] == "none" {
		job.Tables = nil
	}
	for i := range job.Tables {
		s := &job.Tables[i]
		switch cut, reduce, _ := strings.Cut(w[4], ":"); cut {
		case "columns":
			s.Placement, s.Pooling = schema.PlacementColumns, schema.PoolingSum
		case "whole":
			s.Placement, s.Pooling = schema.PlacementTables, schema.PoolingMean
		case "replicated":
			s.Replicated, s.Reduce = true, reduce
		}
	}
	return job
}

// fuzzed is an owner of a job.
type fuzzed struct {
	t     *testing.T
	job   *schema.Job
	place *schema.Placement
	owner int
	shard *Shard
}

// newFuzzed makes the owner that three bytes name: the job, one of its owners on one shard or two, and whether the job
// was resumed, is copied, and has had a place taken over.
func newFuzzed(t *testing.T, jobs []*schema.Job, in *fuzzInput) *fuzzed {
	t.Helper()
	z := &fuzzed{t: t, job: jobs[in.below(len(jobs))]}
	b, how := in.next(), in.next()
	z.place = schema.NewPlacement(z.job, 1+int(b&1))
	z.owner = int(b>>1) % z.place.Owners()
	config := Config{Job: z.job, Placement: z.place, Index: z.owner, RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: shardtest.New(t, z.job).Backend,
		Contributors: round.ContributorsOf(z.job), StagedBytesMax: 1 << 20, ParkedBytesMax: 1 << 14,
		Undo: how&2 != 0, Touches: how&4 != 0}
	if plan := z.place.Plan; how&1 != 0 && plan.Clock.Common() && z.place.PartyOf(z.owner) == schema.ByShards &&
		!plan.AsyncTables {
		config.Resumed = fuzzResumed(t, z.job)
	}
	var err error
	z.shard, err = New(context.Background(), config)
	must(t, err)
	z.shard.CopyAt(state.CopyRequest{At: schema.Version(how >> 4), All: true, BytesMax: state.CopyBytesMax})
	if how&10 == 10 && z.place.Plan.Sync() {
		z.shard.TakeOver(1, shardtest.Generation+1)
	}
	return z
}

// fuzzResumed is version 3 of a job, all of it zeros.
func fuzzResumed(t testing.TB, job *schema.Job) *Resumed {
	t.Helper()
	slots := func(o schema.Optimizer, n, columns int) (all []state.Slot) {
		for _, s := range state.SlotsOf(o) {
			all = append(all, state.Slot{Name: s.Name, Values: make([]float32, n*s.Width(columns))})
		}
		return all
	}
	return &Resumed{Version: 3, Read: func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
		for i, p := range job.Parameters {
			n := p.Elements()
			must(t, tensor(state.Tensor{Name: p.Name, Values: make([]float32, n), Version: 3, Steps: 3,
				Slots: slots(job.OptimizerOfParameter(i), n, 1)}))
		}
		for i, s := range job.Tables {
			o, n := job.OptimizerOf(schema.Table(i)), int(s.Rows)
			r := state.Rows{Table: s.Name, Columns: s.Dim, Values: make([]float32, n*s.Dim), Version: 3, Steps: 3,
				Slots: slots(o, n, s.Dim)}
			for key := range s.Rows {
				r.Keys = append(r.Keys, key)
			}
			if state.MarksRows(o) {
				r.Last = make([]int64, n)
			}
			must(t, rows(r))
		}
		return nil
	}}
}

// step gives the owner a frame, and says what became of it.
func (z *fuzzed) step(from schema.Member, frame []byte) (schema.Kind, schema.Reason) {
	z.t.Helper()
	v, err := schema.Verify(frame, schema.Limits{})
	if err != nil {
		return 0, schema.ReasonOf(err)
	}
	before := fingerprint(z.shard)
	outputs, reason, err := z.shard.Step(from, &v, nil)
	must(z.t, err)
	if reason != schema.ReasonOK && fingerprint(z.shard) != before {
		z.t.Fatalf("%v: a %v frame that was %v changed the shard: %+v", z.place.Plan, v.Head().Kind, reason, v.Head())
	}
	z.check(outputs)
	for z.shard.Due() {
		outputs, err := z.shard.Answer()
		must(z.t, err)
		z.check(outputs)
	}
	return v.Head().Kind, reason
}

// check checks what is put out as its receiver does.
func (z *fuzzed) check(outputs []Output) {
	z.t.Helper()
	for _, o := range outputs {
		v, err := schema.Verify(o.Frame, schema.Limits{})
		if err == nil {
			err = z.place.CheckFrame(&v, z.owner)
		}
		if err != nil {
			z.t.Fatalf("%v, owner %d: a %v frame of batch %d was put out that its receiver refuses: %v: %+v", z.place.Plan,
				z.owner, o.Kind, o.Batch, err, v.Head())
		}
	}
}

// fuzzNodes are those of the tree over three lanes: t0 has the first, t1 the others.
var fuzzNodes = []lane.Node{{First: 0, Count: 1}, {First: 1, Count: 2}, {First: 1, Count: 1}, {First: 2, Count: 1},
	{First: 0, Count: 2}, {First: 0, Count: 3}}

// frame builds a frame that says what the bytes say: of most fields what a trainer would, of each now and then
// something else.
func (z *fuzzed) frame(in *fuzzInput) (from schema.Member, frame []byte) {
	kind := schema.Kind(1 + in.below(int(schema.KindState)))
	if usual := in.next(); usual < 200 {
		kind = [...]schema.Kind{schema.KindDense, schema.KindDense, schema.KindDense, schema.KindSparse, schema.KindSparse,
			schema.KindLookup, schema.KindPull, schema.KindPull}[usual%8]
	}
	node := fuzzNodes[in.below(4)]
	from = schema.TrainerMember(min(1, int(node.First)))
	h := schema.Head{Kind: kind, Job: shardtest.RunID, Generation: z.shard.Since(min(1, int(node.First))),
		Batch: z.shard.Batch() + schema.Batch(in.below(2)), Chunks: 1, Lanes: uint16(z.job.Lanes)}
	if kind == schema.KindDense || kind == schema.KindSparse {
		h.Node, h.Weight = node, float64(node.Count)
	}
	l, sections := z.parts(&h, in)
	var bags []schema.Bags
	if kind == schema.KindSparse || kind == schema.KindLookup {
		bags = z.bags(sections, node, &l, in)
	}
	if l.Values == 0 && (kind == schema.KindSparse || kind == schema.KindRows || kind == schema.KindMean) {
		for i, s := range sections {
			if bags != nil && bags[i].Count > 0 {
				s.Count = uint64(bags[i].Count)
			}
			l.Values += int(s.Count) * int(s.Dim)
		}
	}
	z.spoil(&h, in)
	if in.odd() {
		from = schema.TrainerMember(in.below(4))
	}
	return from, z.fill(l, h, sections, bags, in)
}

// parts says where a frame belongs, and how large its parts are; Values in values.
func (z *fuzzed) parts(h *schema.Head, in *fuzzInput) (l schema.Layout, sections []schema.Section) {
	l.Kind = h.Kind
	owned, rows := z.place.OwnedChunks(z.owner), z.place.SparseBucket(z.owner)
	if place := z.place.OfTrainers(); place != nil && h.Kind == schema.KindPull {
		owned = place.OwnedChunks(z.owner)
	}
	chunk := func() {
		if len(owned) > 0 {
			c := owned[in.below(len(owned))]
			h.Bucket, h.Chunk, h.Chunks = c.Bucket, c.Chunk, c.Chunk+1
		}
	}
	switch l.Kind {
	case schema.KindDense, schema.KindMean:
		chunk()
		l.Values = 3
		if in.odd() {
			l.Values = in.below(8)
		}
		if l.Kind == schema.KindMean && in.odd() {
			h.Bucket, l.Values, sections = rows, 0, z.sections(in, 4)
		}
	case schema.KindSparse:
		h.Bucket, sections = rows, z.sections(in, 4)
		if in.below(16) == 0 { // in two chunks
			h.Chunk, h.Chunks = schema.Chunk(in.below(2)), 2
		}
	case schema.KindLookup, schema.KindRows:
		sections = z.sections(in, 4)
	case schema.KindPull:
		h.Sequence = schema.Sequence(in.number())
		if h.Flags = uint32(in.below(2)) * schema.FlagParameters; in.below(3) == 0 {
			h.Bucket, sections = schema.Bucket(in.below(9)), z.section(in, 1+int(in.next()))
		} else if chunk(); in.below(4) == 0 {
			h.Bucket = rows
		}
		h.Chunks = 0
	case schema.KindState:
		l.Values, sections = in.below(60), z.section(in, in.below(3))
	case schema.KindForward, schema.KindBackward, schema.KindOutput:
		l.Values, h.Sequence = 1+in.below(8), 1
	}
	for _, s := range sections {
		l.Keys += int(s.Count)
	}
	if l.Kind == schema.KindPull {
		l.Keys = len(sections)
	}
	l.Sections = len(sections)
	return l, sections
}

// sections are some of the tables, with so many keys at most.
func (z *fuzzed) sections(in *fuzzInput, keys int) (all []schema.Section) {
	for i := range z.job.Tables {
		if in.below(3) > 0 {
			_, dim := z.place.Columns(schema.Table(i), z.owner)
			all = append(all, schema.Section{Table: schema.Table(i), Dim: uint32(max(1, dim)), Count: uint64(in.below(keys))})
		}
	}
	if len(all) > 0 && in.odd() {
		all[0].Table, all[0].Dim = schema.Table(in.number()), uint32(1+in.below(70))
	}
	return all
}

// section is one of the tables.
func (z *fuzzed) section(in *fuzzInput, keys int) []schema.Section {
	all := z.sections(in, 4)
	if len(all) == 0 {
		all = []schema.Section{{Table: schema.Table(in.below(3)), Dim: uint32(1 + in.below(9))}}
	}
	all[0].Count = uint64(keys)
	return all[:1]
}

// bags makes sections with keys bags of one of the node's lanes; nil for rows.
func (z *fuzzed) bags(sections []schema.Section, node lane.Node, l *schema.Layout, in *fuzzInput) []schema.Bags {
	if in.below(2) == 0 {
		return nil
	}
	bags := make([]schema.Bags, len(sections))
	for i, s := range sections {
		if s.Count > 0 && in.below(4) > 0 {
			bags[i] = schema.Bags{Lane: uint32(node.First) + uint32(in.below(int(node.Count))),
				Count: 1 + uint32(in.below(int(s.Count)))}
			l.Bags += int(bags[i].Count)
		}
	}
	return bags
}

// spoil changes a field of the head now and then.
func (z *fuzzed) spoil(h *schema.Head, in *fuzzInput) {
	for _, change := range []func(){
		func() { h.Batch = schema.Batch(in.number()) },
		func() { h.Bucket = schema.Bucket(in.number()) },
		func() { h.Chunk = schema.Chunk(in.number()) },
		func() { h.Chunks = schema.Chunk(in.number()) },
		func() { h.Offset = in.number() },
		func() { h.Weight = [...]float64{0, 0.5, 1e300, 1 << 53, 1 << 54, math.Inf(1), -1}[in.below(7)] },
		func() { h.Flags ^= 1 << in.below(12) },
		func() { h.Sequence = schema.Sequence(in.number()) },
		func() { h.Generation = schema.Generation(in.number()) },
		func() { h.Node = fuzzNodes[in.below(len(fuzzNodes))] },
		func() { h.Lanes = uint16(in.number()) },
		func() { h.Job += schema.RunID(in.below(2)) },
	} {
		if in.odd() {
			change()
		}
	}
}

// fill builds the frame with keys and values of the bytes.
func (z *fuzzed) fill(l schema.Layout, h schema.Head, sections []schema.Section, bags []schema.Bags,
	in *fuzzInput) []byte {
	if l.DType = schema.DTypeNone; l.Kind == schema.KindDense || l.Kind == schema.KindSparse {
		if l.DType = z.place.Plan.DType; in.odd() {
			l.DType = schema.DType(1 + in.below(3))
		}
	}
	size := max(4*min(1, l.Values), l.Values*4)
	if l.DType == schema.DTypeFloat16 || l.DType == schema.DTypeBFloat16 {
		size = 2 * l.Values
	}
	l.Values = size
	if l.Kind == schema.KindControl || l.Kind == schema.KindRefusal {
		l.Body = 1 + in.below(9)
	}
	f, err := schema.NewFrame(l)
	if err != nil {
		panic(fmt.Sprintf("%+v: %v", l, err)) // the layouts above are all small and of their kinds
	}
	h.DType = l.DType
	f.SetHead(h)
	copy(f.Sections(), sections)
	copy(f.Bags(), bags)
	offsets := f.Offsets()
	for _, s := range f.Bags() {
		for k := range s.Count {
			offsets[k] = k
		}
		offsets = offsets[s.Count:]
	}
	at := 0
	for i, s := range sections {
		key := uint64(in.next())
		if in.odd() {
			key = in.number()
		}
		for range min(int(s.Count), len(f.Keys())-at) {
			f.Keys()[at] = key
			if key < 50 || l.Kind != schema.KindPull {
				f.Keys()[at] %= 60
			}
			if key += 1 + uint64(in.below(8)); l.Bags > 0 && bags[i].Count > 0 {
				key = key * 37 % 61 // in no order
			}
			at++
		}
	}
	values := f.Values()
	for i := range values { // small numbers of any type, now and then NaN
		if values[i] = in.next() & 0x3f; i%4 == 3 && in.odd() {
			values[i-1], values[i] = 0xff, 0xff
		}
	}
	return f.Seal()
}
