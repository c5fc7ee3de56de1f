package schema

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gradbus/lane"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/v1 again; frames that exist are never changed by a release")

// sample is a valid frame of a kind. There is one for every kind and for every form that the kind has.
type sample struct {
	name  string
	frame []byte
}

const sampleRun RunID = 0x0123456789abcdef

func build(t testing.TB, l Layout, h Head, fill func(*Frame)) []byte {
	t.Helper()
	f, err := NewFrame(l)
	if err != nil {
		t.Fatal(err)
	}
	h.Job, h.Generation = sampleRun, 1
	f.SetHead(h)
	if fill != nil {
		fill(f)
	}
	return f.Seal()
}

// left and root are nodes of the samples.
func left() lane.Node { return lane.Node{First: 0, Count: 2} }
func root() lane.Node { return lane.Node{First: 0, Count: 4} }

func sampleValues(v ...float32) func(*Frame) { return func(f *Frame) { copy(f.Float32s(), v) } }

func sampleKeys(f *Frame) {
	f.SetSection(0, Section{Table: 0, Dim: 2, Count: 2})
	f.SetSection(1, Section{Table: 1, Dim: 1, Count: 1})
	copy(f.Keys(), []uint64{3, 1 << 40, 5})
	copy(f.Float32s(), []float32{1, 2, 3, 4, 5})
}

// contributions are the samples of what trainers send shards to be added up.
func contributions(t testing.TB) []sample {
	// Table 0: bags {9, 3, 9} and {3} of lane 1, bag {4} of lane 3. Table 1: the row of key 5, which has no bag.
	bags := func(f *Frame) {
		for i, s := range []Section{{Table: 0, Dim: 2, Count: 4}, {Table: 0, Dim: 2, Count: 1},
			{Table: 1, Dim: 1, Count: 1}} {
			f.SetSection(i, s)
		}
		copy(f.Bags(), []Bags{{Lane: 1, Count: 2}, {Lane: 3, Count: 1}, {}})
		copy(f.Offsets(), []uint32{0, 3, 0})
		copy(f.Keys(), []uint64{9, 3, 9, 3, 4, 5})
		copy(f.Float32s(), []float32{1, 2, 3, 4, 5, 6, 7})
	}
	return []sample{
		{"dense", build(t, Layout{Kind: KindDense, Values: 12}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Node: left(), Lanes: 4, Offset: 65536, Weight: 32, Sequence: 9},
			sampleValues(1, -2, 0.5))},
		{"dense-absent", build(t, Layout{Kind: KindDense}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Node: left(), Lanes: 4, Offset: 65536, Sequence: 10}, nil)},
		{"dense-bfloat16", build(t, Layout{Kind: KindDense, DType: DTypeBFloat16, Values: 6}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Node: left(), Lanes: 4, Offset: 65536, Weight: 32, Sequence: 9},
			func(f *Frame) { copy(f.Halves(), []uint16{0x3f80, 0xc000, 0x3f00}) })}, // 1, -2, 0.5
		{"dense-float16", build(t, Layout{Kind: KindDense, DType: DTypeFloat16, Values: 6}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Node: left(), Lanes: 4, Offset: 65536, Weight: 32, Sequence: 9},
			func(f *Frame) { copy(f.Halves(), []uint16{0x3c00, 0xc000, 0x3800}) })},
		{"sparse-bfloat16", build(t, Layout{Kind: KindSparse, DType: DTypeBFloat16, Values: 10, Keys: 3, Sections: 2}, Head{
			Batch: 7, Bucket: 3, Chunks: 1, Node: root(), Lanes: 4, Weight: 64, Sequence: 11}, func(f *Frame) {
			sampleKeys(f)
			copy(f.Halves(), []uint16{0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0}) // 1 to 5
		})},
		{"sparse", build(t, Layout{Kind: KindSparse, Values: 20, Keys: 3, Sections: 2}, Head{
			Batch: 7, Bucket: 3, Chunks: 1, Node: root(), Lanes: 4, Weight: 64, Sequence: 11}, sampleKeys)},
		{"sparse-empty", build(t, Layout{Kind: KindSparse}, Head{
			Batch: 7, Bucket: 3, Chunks: 1, Node: root(), Lanes: 4, Weight: 64, Sequence: 12}, nil)},
		{"sparse-bags", build(t, Layout{Kind: KindSparse, Values: 28, Keys: 6, Sections: 3, Bags: 3}, Head{
			Batch: 7, Bucket: 3, Chunks: 1, Node: root(), Lanes: 4, Weight: 64, Sequence: 11}, bags)},
	}
}

// samples are frames of a job of one trainer, one shard, four lanes, and two tables of dim 2 and 1.
func samples(t testing.TB) []sample {
	leave, err := EncodeControl(Head{Job: sampleRun, Generation: 1}, Control{Leave: &Leave{Reason: "disk full"}})
	if err != nil {
		t.Fatal(err)
	}
	refusal := EncodeRefusal(Head{Job: sampleRun, Generation: 1, Batch: 6, Bucket: 2, Chunk: 1, Chunks: 3,
		Node: left(), Lanes: 4},
		ReasonStaleBatch, "batch 6: batch 7 is under way")
	return append(slices.Concat(contributions(t), moduleSamples(t), poolingSamples(t), reportSamples(t)), []sample{
		{"mean", build(t, Layout{Kind: KindMean, Values: 12}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Offset: 65536, Node: root(), Lanes: 4, Weight: 64},
			sampleValues(0.5, -1, 0.25))},
		{"mean-parameters", build(t, Layout{Kind: KindMean, Values: 12}, Head{
			Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2, Offset: 65536, Node: root(), Lanes: 4, Weight: 64, Flags: FlagParameters},
			sampleValues(8, 9, 10))},
		{"mean-closed",
			build(t, Layout{Kind: KindMean}, Head{Batch: 7, Bucket: 3, Chunks: 1, Node: root(), Lanes: 4, Weight: 64}, nil)},
		{"state-rows", build(t, Layout{Kind: KindState, Values: 24, Keys: 2, Sections: 1}, Head{
			Batch: 7, Chunk: 3, Weight: 7, Flags: FlagMore, Sequence: 13}, func(f *Frame) {
			f.SetSection(0, Section{Table: 0, Dim: 2, Count: 2})
			copy(f.Keys(), []uint64{3, 9})
			copy(f.Float32s(), []float32{1, 2, 3, 4, 0.5, 0.25}) // rows, then a slot with one value a row
		})},
		{"state-parameter", build(t, Layout{Kind: KindState, Values: 16}, Head{
			Batch: 7, Bucket: 1, Chunk: 4, Offset: 2, Weight: 7, Flags: FlagMore | FlagParameters, Sequence: 14},
			sampleValues(1, 2, 0.5, 0.25))},
		{"state-end", build(t, Layout{Kind: KindState}, Head{
			Batch: 7, Chunk: 5, Chunks: 6, Offset: 5, Flags: FlagMore, Sequence: 15}, nil)},
		{"lookup", build(t, Layout{Kind: KindLookup, Keys: 3, Sections: 2}, Head{Batch: 7, Chunks: 1}, sampleKeys)},
		{"lookup-empty", build(t, Layout{Kind: KindLookup}, Head{Batch: 7, Chunks: 1}, nil)},
		{"rows", build(t, Layout{Kind: KindRows, Values: 20, Keys: 3, Sections: 2}, Head{Batch: 7, Chunks: 1}, sampleKeys)},
		{"rows-more", build(t, Layout{Kind: KindRows, Values: 8, Keys: 1, Sections: 1}, Head{
			Batch: 8, Bucket: 5, Chunk: 2, Flags: FlagMore}, func(f *Frame) {
			f.SetSection(0, Section{Table: 0, Dim: 2, Count: 1})
			f.Keys()[0] = 42
			copy(f.Float32s(), []float32{7, 8})
		})},
		{"pull", build(t, Layout{Kind: KindPull}, Head{Batch: 7, Bucket: 2, Chunk: 1, Chunks: 2}, nil)},
		{"pull-parameters",
			build(t, Layout{Kind: KindPull}, Head{Batch: 8, Bucket: 2, Chunk: 1, Chunks: 2, Flags: FlagParameters}, nil)},
		{"pull-table", build(t, Layout{Kind: KindPull, Keys: 1, Sections: 1}, Head{Batch: 8, Bucket: 5, Chunk: 2},
			func(f *Frame) {
				f.SetSection(0, Section{Table: 0, Dim: 2, Count: 1})
				f.Keys()[0] = 40
			})},
		{"ack", build(t, Layout{Kind: KindAck}, Head{}, func(f *Frame) {
			f.SetAck(Ack{Cumulative: 100, Bitmap: [4]uint64{6, 0, 0, 1 << 63}, Window: 4 << 20})
		})},
		{"control", leave},
		{"beat", build(t, Layout{Kind: KindHeartbeat}, Head{Batch: 7}, nil)},
		{"refusal", refusal},
	}...)
}

// describe is a frame as text: what a reader of any version must find in it.
func describe(v *View) string {
	var b strings.Builder
	h := v.Head()
	fmt.Fprintf(&b, "kind %v\njob %016x\ngeneration %d\nbatch %d\nbucket %d\nchunk %d\nchunks %d\nnode %d %d\nlanes "+
		"%d\ndtype %d\n"+
		"flags %d\noffset %d\nweight %v\nsequence %d\n", h.Kind, uint64(h.Job), h.Generation, h.Batch, h.Bucket,
		h.Chunk, h.Chunks,
		h.Node.First, h.Node.Count, h.Lanes, h.DType, h.Flags, h.Offset, h.Weight, h.Sequence)
	for _, s := range v.Sections() {
		fmt.Fprintf(&b, "section table %d dim %d count %d\n", s.Table, s.Dim, s.Count)
	}
	for _, s := range v.Bags() {
		fmt.Fprintf(&b, "bags lane %d count %d\n", s.Lane, s.Count)
	}
	if v.Offsets() != nil {
		fmt.Fprintln(&b, "offsets", v.Offsets())
	}
	if v.Keys() != nil {
		fmt.Fprintln(&b, "keys", v.Keys())
	}
	if v.Float32s() != nil {
		fmt.Fprintln(&b, "values", v.Float32s())
	}
	if v.Halves() != nil {
		fmt.Fprintf(&b, "values %04x\n", v.Halves())
	}
	if a, ok := v.Ack(); ok {
		fmt.Fprintln(&b, "ack", a.Cumulative, a.Bitmap, a.Window)
	}
	if len(v.Body()) > 0 {
		fmt.Fprintf(&b, "body %s\n", v.Body())
	}
	return b.String()
}

// Every frame in testdata, of whichever version, is read and holds what its text says.
func TestGoldenFramesAreRead(t *testing.T) {
	if *rewrite {
		rewriteGolden(t)
	}
	files, err := filepath.Glob("testdata/v*/*.hex")
	if err != nil || len(files) < len(samples(t)) {
		t.Fatalf("%d golden frames, %v: want one for each of %d samples", len(files), err, len(samples(t)))
	}
	for _, file := range files {
		v, err := Verify(readHex(t, file), Limits{})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".hex") + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(&v); got != string(want) {
			t.Errorf("%s holds\n%s\nwant\n%s", file, got, want)
		}
	}
}

// What this package writes is, byte for byte, what it wrote when the golden frames were made.
func TestGoldenFramesAreWritten(t *testing.T) {
	kinds := map[Kind]bool{}
	for _, s := range samples(t) {
		if want := readHex(t, "testdata/v1/"+s.name+".hex"); !bytes.Equal(s.frame, want) {
			t.Errorf("%s is written as\n%s\nwant\n%s", s.name, hex.Dump(s.frame), hex.Dump(want))
		}
		v, err := Verify(s.frame, Limits{})
		check(t, err)
		kinds[v.Head().Kind] = true
	}
	if len(kinds) != int(kindMax) {
		t.Errorf("samples are of %d kinds of %d", len(kinds), kindMax)
	}
}

func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return data
}

// hexText is 16 bytes a line.
func hexText(data []byte) string {
	var b strings.Builder
	for line := range slices.Chunk(data, 16) {
		fmt.Fprintf(&b, "% x\n", line)
	}
	return b.String()
}

func rewriteGolden(t *testing.T) {
	check(t, os.MkdirAll("testdata/v1", 0o755))
	for _, s := range samples(t) {
		v, err := Verify(s.frame, Limits{})
		check(t, err)
		check(t, os.WriteFile("testdata/v1/"+s.name+".hex", []byte(hexText(s.frame)), 0o644))
		check(t, os.WriteFile("testdata/v1/"+s.name+".txt", []byte(describe(&v)), 0o644))
	}
}
