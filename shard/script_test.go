package shard

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
	"gradbus/shard/state"
)

// TestShardScripts runs the scripts of testdata/scripts. A script starts with a job and then tells what trainers
// send, one frame a paragraph; below each stands what the shard answers. go test -rewrite writes the answers anew.
//
//	job trainers= lanes= [consistency=] [ahead=] [group=] [shards=] [index=] [apply=] [lr=] [momentum=]
//	    [w=] [words=] [dim=] [budget=] [parked=] [resumed=]
//	dense from= batch= node=first+count weight= value= [bucket= chunk= chunks= offset= values= run= generation=
//	    lanes= at=i:x]
//	sparse from= batch= node= weight= [chunk=i/n]      then lines "table key: value" (every column has that value)
//	lookup from= batch= [chunk=] [number=]             then lines "table: key key ..."
//	pull from= batch= bucket= [chunk=] [parameters] [number=]
//	copy at=                                           the version is to be written down
//	ask batch= chunk= number=                          what the trainers own of it is asked for
//	rows from= batch= table= partition= cursor= max=   pulls rows of a partition
//	gone who=                                          a trainer of a grouped job that will contribute no more
//	heartbeat, waiting, state
func TestShardScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.d = t, d
			return s.run()
		})
		s.close()
	})
}

type script struct {
	t       *testing.T
	d       *datadriven.TestData
	backend cuda.Backend
	shard   *Shard
	job     *schema.Job
	place   *schema.Placement
}

func (s *script) close() {
	if s.shard != nil {
		s.shard.Close()
	}
}

func (s *script) run() string {
	switch s.d.Cmd {
	case "job":
		return s.begin()
	case "dense":
		return s.dense()
	case "sparse":
		return s.sparse()
	case "lookup":
		return s.lookup()
	case "pull":
		return s.pull()
	case "rows":
		return s.rows()
	case "copy":
		s.shard.CopyAt(state.CopyRequest{At: schema.Version(s.count("at", 0)), All: true, BytesMax: 1 << 20})
		return ""
	case "ask":
		o, err := s.shard.AskTrainerChunk(s.count("chunk", 0), schema.Version(s.count("batch", 0)),
			schema.Sequence(s.count("number", 1)))
		must(s.t, err)
		var b strings.Builder
		s.tell(&b, &o)
		return b.String()
	case "heartbeat":
		f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindHeartbeat})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: 2})
		return s.step(f)
	case "gone":
		outputs, err := s.shard.Gone([]schema.Member{schema.Member(s.text("who", "t0"))})
		must(s.t, err)
		var b strings.Builder
		kept, _ := s.shard.clock.(*round.Grouped).Versions()
		fmt.Fprintf(&b, "%d versions kept\n", kept)
		for _, o := range outputs {
			s.tell(&b, &o)
		}
		return b.String()
	case "waiting":
		w := s.shard.Waiting()
		return fmt.Sprintf("batch %d: %d rounds wait for %v\n", w.Batch, w.Rounds, w.Members)
	case "state":
		parked := 0
		for i := range s.shard.parked {
			parked += len(s.shard.parked[i].frames)
		}
		return fmt.Sprintf("batch %d, %d rounds open, staged %v, %d lookups parked\n", s.shard.Batch(), s.open(),
			s.shard.StagedBytes() > 0, parked)
	}
	s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
	return ""
}

// open is the number of open rounds of all batches under way.
func (s *script) open() int {
	n := 0
	for _, l := range s.shard.clock.Lines() {
		n += l.Open()
	}
	return n
}

func (s *script) text(name, otherwise string) string {
	s.d.MaybeScanArgs(s.t, name, &otherwise)
	return otherwise
}

func (s *script) number(name string, otherwise float64) float64 {
	text := s.text(name, "")
	if text == "" {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	must(s.t, err)
	return v
}

func (s *script) count(name string, otherwise int) int {
	return int(s.number(name, float64(otherwise)))
}

func (s *script) begin() string {
	s.close()
	s.job = &schema.Job{
		Name: "script", Workload: "test", Trainers: s.count("trainers", 1), Lanes: s.count("lanes", 1),
		Consistency: s.text("consistency", schema.ConsistencySync), Ahead: s.count("ahead", 0), Group: s.count("group", 0),
		Apply: s.text("apply", schema.ApplyUpdate), Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytesMin,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(s.number("lr", 1)),
			Momentum: float32(s.number("momentum", 0))},
	}
	if n := s.count("w", 0); n > 0 {
		s.job.Parameters = []schema.Parameter{{Name: "w", Shape: []int{n}, Init: schema.Init{Kind: schema.InitZeros}}}
	}
	if n := s.count("words", 0); n > 0 {
		s.job.Tables = []schema.TableSpec{
			{Name: "words", Rows: uint64(n), Dim: s.count("dim", 2), Partitions: 4, Init: schema.Init{Kind: schema.InitZeros}},
			{Name: "users", Rows: 3, Dim: 1, Partitions: 2, Init: schema.Init{Kind: schema.InitZeros}},
		}
	}
	must(s.t, s.job.Validate())
	if s.backend == nil {
		var err error
		s.backend, err = cuda.Open(cuda.Options{Name: "go"})
		must(s.t, err)
	}
	s.place = schema.NewPlacement(s.job, s.count("shards", 1))
	var err error
	s.shard, err = New(context.Background(), Config{
		Job: s.job, Placement: s.place, Index: s.count("index", 0), RunID: shardtest.RunID, Generation: 2,
		Backend: s.backend, Contributors: round.ContributorsOf(s.job), StagedBytesMax: int64(s.count("budget", 1<<20)),
		ParkedBytesMax: int64(s.count("parked", 4<<10)), Resumed: s.resumed(),
	})
	must(s.t, err)
	return fmt.Sprintf("%s has %d rounds a batch\n", s.shard.member, s.shard.clock.Line(0).Rounds())
}

// resumed is a version that the shard begins with: 0, 1, 2 and so on, with slots of 0.5.
func (s *script) resumed() *Resumed {
	v := schema.Version(s.count("resumed", 0))
	if v == 0 {
		return nil
	}
	return &Resumed{Version: v, Read: func(tensor func(state.Tensor) error, _ func(state.Rows) error) error {
		t := state.Tensor{Name: "w", Version: v, Steps: uint64(v)}
		for i := range s.job.Parameters[0].Elements() {
			t.Values = append(t.Values, float32(i))
		}
		for _, slot := range state.SlotsOf(s.job.OptimizerOfParameter(0)) {
			t.Slots = append(t.Slots, state.Slot{Name: slot.Name, Values: slices.Repeat([]float32{0.5}, len(t.Values))})
		}
		return tensor(t)
	}}
}

// head is what the arguments say of a frame's head.
func (s *script) head() schema.Head {
	h := schema.Head{
		Job: schema.RunID(s.count("run", int(shardtest.RunID))), Generation: schema.Generation(s.count("generation", 2)),
		Batch:  schema.Batch(s.count("batch", 0)),
		Bucket: schema.Bucket(s.count("bucket", 0)), Lanes: uint16(s.count("lanes", s.job.Lanes)),
		Weight: s.number("weight", 0),
	}
	if node := s.text("node", ""); node != "" {
		if _, err := fmt.Sscanf(node, "%d+%d", &h.Node.First, &h.Node.Count); err != nil {
			s.t.Fatalf("%s: node %q: %v", s.d.Pos, node, err)
		}
	}
	chunk, chunks, cut := strings.Cut(s.text("chunk", "0"), "/")
	n, err := strconv.Atoi(chunk)
	must(s.t, err)
	h.Chunk, h.Chunks = schema.Chunk(n), schema.Chunk(n+1)
	if cut {
		n, err = strconv.Atoi(chunks)
		must(s.t, err)
		h.Chunks = schema.Chunk(n)
	}
	return h
}

func (s *script) dense() string {
	h := s.head()
	elements := 1
	if s.place.IsDense(h.Bucket) && int(h.Chunk) < s.place.Chunks(h.Bucket) {
		var offset int
		offset, elements = s.place.ChunkRange(h.Bucket, h.Chunk)
		h.Offset, h.Chunks = uint64(offset), schema.Chunk(s.place.Chunks(h.Bucket))
	}
	h.Offset, h.Chunks = uint64(s.count("offset", int(h.Offset))), schema.Chunk(s.count("chunks", int(h.Chunks)))
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindDense, Values: 4 * s.count("values", elements)})
	f.SetHead(h)
	for i := range f.Float32s() {
		f.Float32s()[i] = float32(s.number("value", 0))
	}
	if at, x, ok := strings.Cut(s.text("at", ""), ":"); ok {
		i, err := strconv.Atoi(at)
		must(s.t, err)
		v, err := strconv.ParseFloat(x, 32)
		must(s.t, err)
		f.Float32s()[i] = float32(v)
	}
	return s.step(f)
}

// tableNamed is the index and width of a table; a number names one that may not exist.
func (s *script) tableNamed(name string) (schema.Table, int) {
	for i, t := range s.job.Tables {
		if t.Name == name {
			return schema.Table(i), t.Dim
		}
	}
	n, err := strconv.Atoi(name)
	must(s.t, err)
	return schema.Table(n), 1
}

// sections reads lines "table[/dim] key ...: value" or "table[/dim]: key ...".
func (s *script) sections(withValues bool) (sections []schema.Section, keys []uint64, values []float32) {
	for line := range strings.Lines(s.d.Input) {
		head, tail, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields := strings.Fields(head)
		list := strings.Fields(tail)
		var value float64
		if withValues {
			var err error
			value, err = strconv.ParseFloat(list[0], 32)
			must(s.t, err)
			list = fields[1:]
		}
		name, width, wide := strings.Cut(fields[0], "/")
		table, dim := s.tableNamed(name)
		if wide {
			var err error
			dim, err = strconv.Atoi(width)
			must(s.t, err)
		}
		if n := len(sections); n == 0 || sections[n-1].Table != table {
			sections = append(sections, schema.Section{Table: table, Dim: uint32(dim)})
		}
		for _, k := range list {
			key, err := strconv.ParseUint(k, 10, 64)
			must(s.t, err)
			keys = append(keys, key)
			sections[len(sections)-1].Count++
			for range dim {
				values = append(values, float32(value))
			}
		}
	}
	return sections, keys, values
}

func (s *script) sparse() string {
	sections, keys, values := s.sections(true)
	h := s.head()
	h.Bucket = schema.Bucket(s.count("bucket", int(s.place.SparseBucket(s.shard.config.Index))))
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindSparse, Sections: len(sections), Keys: len(keys),
		Values: 4 * len(values)})
	f.SetHead(h)
	copy(f.Sections(), sections)
	copy(f.Keys(), keys)
	copy(f.Float32s(), values)
	return s.step(f)
}

func (s *script) lookup() string {
	sections, keys, _ := s.sections(false)
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindLookup, Sections: len(sections), Keys: len(keys)})
	h := s.head()
	h.Sequence = schema.Sequence(s.count("number", 0))
	f.SetHead(h)
	copy(f.Sections(), sections)
	copy(f.Keys(), keys)
	return s.step(f)
}

func (s *script) pull() string {
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull})
	h := s.head()
	h.Chunks = 0
	if h.Chunk > 0 {
		h.Chunks = h.Chunk + 1
	}
	if s.d.HasArg("parameters") {
		h.Flags, h.Sequence = schema.FlagParameters, schema.Sequence(s.count("number", 0))
	}
	f.SetHead(h)
	return s.step(f)
}

func (s *script) rows() string {
	table, dim := s.tableNamed(s.text("table", "words"))
	f := shardtest.NewFrame(s.t, schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
	h := s.head()
	h.Bucket, h.Chunks = schema.Bucket(s.count("partition", 0)), 0
	f.SetHead(h)
	f.SetSection(0, schema.Section{Table: table, Dim: uint32(s.count("dim", dim)), Count: uint64(s.count("max", 100))})
	f.Keys()[0] = uint64(s.count("cursor", 0))
	return s.step(f)
}

// step sends a frame and tells what comes back.
func (s *script) step(f *schema.Frame) string {
	v, err := schema.Verify(f.Seal(), schema.Limits{})
	if err != nil {
		return fmt.Sprintf("not a frame: %v\n", err)
	}
	outputs, reason, err := s.shard.Step(schema.Member(s.text("from", "t0")), &v, nil)
	must(s.t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", reason)
	for {
		for _, o := range outputs {
			s.tell(&b, &o)
		}
		if !s.shard.Due() {
			return b.String()
		}
		outputs, err = s.shard.Answer()
		must(s.t, err)
	}
}

func (s *script) tell(b *strings.Builder, o *Output) {
	v, err := schema.Verify(o.Frame, schema.Limits{})
	must(s.t, err)
	h := v.Head()
	if h.Job == shardtest.RunID && h.Generation == 2 && o.Kind != schema.KindRefusal {
		must(s.t, s.place.CheckFrame(&v, s.shard.config.Index))
	}
	switch o.Kind {
	case schema.KindRefusal:
		r, err := schema.DecodeRefusal(&v)
		must(s.t, err)
		fmt.Fprintf(b, "  to %s: refused, %s: %s\n", o.To, r.Reason, r.Text)
	case schema.KindMean:
		at := ""
		if o.Batch != h.Batch {
			at = fmt.Sprintf(" (its batch %d)", o.Batch)
		}
		if h.Flags&schema.FlagCopy != 0 {
			at += ", to be copied"
		}
		fmt.Fprintf(b, "  to %s%s: %s of batch %d bucket %d chunk %d/%d from element %d, weight %v:%s\n", o.To, at,
			map[bool]string{true: "parameters", false: "mean"}[h.Flags&schema.FlagParameters != 0], h.Batch, h.Bucket, h.Chunk,
			h.Chunks, h.Offset, h.Weight,
			runs(v.Float32s()))
	case schema.KindPull:
		fmt.Fprintf(b, "  to %s: what is bucket %d chunk %d at version %d? number %d\n", o.To, h.Bucket, h.Chunk, h.Batch,
			h.Sequence)
	case schema.KindState:
		fmt.Fprintf(b, "  to %s: parameter %d from element %d at version %d after %v steps, %d/%d, number %d:%s\n", o.To,
			h.Bucket, h.Offset, h.Batch, h.Weight, h.Chunk, h.Chunks, h.Sequence, runs(v.Float32s()))
	case schema.KindRows:
		fmt.Fprintf(b, "  to %s: rows of batch %d chunk %d, more %v", o.To, h.Batch, h.Chunk, h.Flags&schema.FlagMore != 0)
		if h.Offset > 0 {
			fmt.Fprintf(b, ", %d behind", h.Offset)
		}
		if h.Weight > 0 {
			fmt.Fprintf(b, ", weight %v", h.Weight)
		}
		b.WriteString("\n")
		for _, part := range v.Parts() {
			for i, key := range part.Keys {
				fmt.Fprintf(b, "    %s %d:%s\n", s.job.Tables[part.Table].Name, key, runs(part.Rows[i*part.Dim:(i+1)*part.Dim]))
			}
		}
	}
}

// runs shortens equal values: " 3 x 0.5, 1 x 2".
func runs(values []float32) string {
	var parts []string
	for i := 0; i < len(values); {
		n := i
		for n < len(values) && math.Float32bits(values[n]) == math.Float32bits(values[i]) {
			n++
		}
		parts = append(parts, fmt.Sprintf(" %d x %v", n-i, values[i]))
		i = n
	}
	if parts == nil {
		return " closed"
	}
	return strings.Join(parts, ",")
}
