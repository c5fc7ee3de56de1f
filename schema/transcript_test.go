package schema_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

const (
	transcriptFile = "testdata/v1/transcript.txt"
	patience       = 3 * time.Minute // with one answer, on a machine under load
)

// message is one entry of the transcript.
type message struct {
	subject string
	frame   []byte
}

// exchange is what the trainer says, and the subjects of what it hears before it goes on.
type exchange struct {
	comment string
	say     message
	hear    []string
}

const demo = "gradbus.v1.demo."

// transcriptJob has one trainer with two lanes, a parameter of two values and a table of four rows of one.
func transcriptJob() *schema.Job {
	zeros := schema.Init{Kind: schema.InitZeros}
	return &schema.Job{
		Name: "demo", Workload: "example", Settings: map[string]string{"batch_size": "2"}, Seed: 1, Trainers: 1, Lanes: 2,
		Consistency: schema.ConsistencySync, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail, ChunkBytes: 4096,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{2}, Init: zeros}},
		Tables:     []schema.TableSpec{{Name: "t", Rows: 4, Dim: 1, Partitions: 1, Init: zeros}},
	}
}

// exchanges is the life of a job as its trainer sees it.
func exchanges(t *testing.T) []exchange {
	t.Helper()
	must := func(frame []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	frame := func(kind schema.Kind, h schema.Head, keys []uint64, values ...float32) []byte {
		h.Job, h.Generation, h.Lanes = schema.SampleRun, 1, 2
		l := schema.Layout{Kind: kind, Keys: len(keys), Sections: min(1, len(keys)), Values: 4 * len(values)}
		f, err := schema.NewFrame(l)
		if err != nil {
			t.Fatal(err)
		}
		f.SetHead(h)
		if len(keys) > 0 {
			f.SetSection(0, schema.Section{Table: 0, Dim: 1, Count: uint64(len(keys))})
		}
		copy(f.Keys(), keys)
		copy(f.Float32s(), values)
		return f.Seal()
	}
	all := lane.Root(2)
	tablePull := frame(schema.KindPull, schema.Head{Batch: 1, Bucket: 0, Chunk: 1, Sequence: 4}, []uint64{1})
	return []exchange{
		{"the trainer asks for a place, under a name that it drew; the first to do so registers the job",
			message{demo + "j-0123456789ab.ctl.coordinator", must(schema.EncodeControl(schema.Head{Lanes: 2},
				schema.Control{Join: &schema.Join{Job: transcriptJob(), Host: "example (pid 1)"}}))},
			[]string{demo + "coordinator.ctl.j-0123456789ab", demo + "coordinator.ctl.all"}},
		{"from now on it gives a sign of life every second, and so does the coordinator",
			message{demo + "t0.beat.all", frame(schema.KindHeartbeat, schema.Head{}, nil)}, nil},
		{"batch 0: it asks for rows 1 and 3 of table 0, at version 0",
			message{demo + "t0.lookup.s0.0",
				frame(schema.KindLookup, schema.Head{Chunks: 1, Sequence: 1}, []uint64{1, 3})},
			[]string{demo + "s0.rows.t0.0"}},
		{"batch 1: it asks for row 3 at version 1, which is not there yet; here that overtakes its contributions " +
			"to batch 0, " +
			"and the shard parks it",
			message{demo + "t0.lookup.s0.1",
				frame(schema.KindLookup, schema.Head{Batch: 1, Chunks: 1, Sequence: 2}, []uint64{3})}, nil},
		{"what comes too early for that is refused; the head says which frame it was",
			message{demo + "t0.lookup.s0.5",
				frame(schema.KindLookup, schema.Head{Batch: 5, Chunks: 1, Sequence: 3}, []uint64{1})},
			[]string{demo + "s0.ctl.t0"}},
		{"the gradient of bucket 0, summed over two samples; the shard answers with w - 0.5 * gradient / 2",
			message{demo + "t0.dense.s0.0.0", frame(schema.KindDense, schema.Head{Chunks: 1, Node: all, Weight: 2, Sequence: 1},
				nil, 2, -4)},
			[]string{demo + "s0.mean.all.0.0", demo + "s0.ack.t0"}},
		{"the gradients of the two rows, in the shard's sparse bucket: the round is over, which the answer to the parked " +
			"lookup says; row 3 is now 0 - 0.5 * -8 / 2",
			message{demo + "t0.sparse.s0.0.1", frame(schema.KindSparse, schema.Head{
				Bucket: 1, Chunks: 1, Node: all, Weight: 2, Sequence: 2}, []uint64{1, 3}, 4, -8)},
			[]string{demo + "s0.rows.t0.1", demo + "s0.ack.t0"}},
		{"a result that did not arrive is asked for again",
			message{demo + "t0.pull.s0", frame(schema.KindPull, schema.Head{Bucket: 0, Chunk: 0, Chunks: 1}, nil)},
			[]string{demo + "s0.mean.t0.0.0"}},
		{"and so is whether the sparse round is over",
			message{demo + "t0.pull.s0", frame(schema.KindPull, schema.Head{Bucket: 1, Chunk: 0, Chunks: 1}, nil)},
			[]string{demo + "s0.mean.t0.0.1"}},
		{"the table is read: at most one row of partition 0, from key 1 on; the answer says that there are more",
			message{demo + "t0.pull.s0", tablePull}, []string{demo + "s0.rows.t0.1"}},
		{"the trainer leaves in peace, and being the last, it ends the job",
			message{demo + "t0.ctl.coordinator",
				must(schema.EncodeControl(schema.Head{Job: schema.SampleRun, Generation: 1, Batch: 1, Lanes: 2},
					schema.Control{Leave: &schema.Leave{}}))},
			[]string{demo + "coordinator.ctl.t0"}},
	}
}

// A server says, byte for byte, what the transcript says it does: the transcript is what docs/protocol.md leaves open.
// What a control message says of its sender (schema.Speaks) is left out. The run id is drawn anew for every
// job; it stands as 0123456789abcdef, which is 81985529216486895.
func TestServerKeepsToTheTranscript(t *testing.T) {
	server, err := ps.Start(context.Background(), ps.Config{Backend: "go"}, ps.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := fabric.Dial(context.Background(), fabric.Config{URL: server.URL(), Name: "demo/t0"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	heard := make(chan message, 1000)
	for _, to := range []string{"t0", "all", "j-0123456789ab"} {
		for _, pattern := range fabric.ListenAt("demo", to) {
			if err := conn.Subscribe(pattern, func(m fabric.Message) { heard <- message{m.Text(), m.Data} }); err != nil {
				t.Fatal(err)
			}
		}
	}
	var text strings.Builder
	var run schema.RunID
	waiting := map[string][]message{}
	for _, e := range exchanges(t) {
		fmt.Fprintf(&text, "# %s\n\n", e.comment)
		write(t, &text, "trainer", message{e.say.subject, schema.WithoutSpeaks(t, e.say.frame)})
		if err := conn.Publish(e.say.subject, schema.WithRun(t, e.say.frame, run)); err != nil {
			t.Fatal(err)
		}
		for _, subject := range e.hear {
			for deadline := time.After(patience); len(waiting[subject]) == 0; {
				select {
				case m := <-heard:
					waiting[m.subject] = append(waiting[m.subject], m)
				case <-deadline:
					t.Fatalf("%s: nothing on %s", e.comment, subject)
				}
			}
			m := waiting[subject][0]
			waiting[subject] = waiting[subject][1:]
			m.frame = normal(t, m.frame, &run)
			write(t, &text, "server", m)
		}
	}
	if *schema.Rewrite {
		if err := os.WriteFile(transcriptFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(transcriptFile)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Errorf("the exchange is not what %s holds; if that is meant, write it again with -rewrite and fix "+
			"docs/protocol.md:\n%s", transcriptFile, text.String())
	}
}

// normal puts the sample's run id in place of the run's, and learns that from the first answer.
func normal(t *testing.T, frame []byte, run *schema.RunID) []byte {
	t.Helper()
	v, err := schema.Verify(frame, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	h := v.Head()
	*run = h.Job
	if h.Kind != schema.KindControl {
		return schema.WithRun(t, frame, schema.SampleRun)
	}
	c, err := schema.DecodeControl(&v)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case c.Joined != nil && c.Joined.RunID == *run:
		c.Joined.RunID = schema.SampleRun
	}
	h.Job = schema.SampleRun
	frame, err = schema.EncodeControl(h, c)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func write(t *testing.T, to *strings.Builder, who string, m message) {
	t.Helper()
	v, err := schema.Verify(m.frame, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(to, "%s %s\n%s%s\n", who, m.subject, schema.Describe(&v), schema.HexText(m.frame))
}

// The transcript can be read without a server, for ever: its frames are whole and hold what is written above them,
// those that a shard takes fit the job, and the arithmetic is right.
func TestTranscriptIsRead(t *testing.T) {
	data, err := os.ReadFile(transcriptFile)
	if err != nil {
		t.Fatal(err)
	}
	place := schema.NewPlacement(transcriptJob(), 1)
	frames, texts := 0, ""
	for _, entry := range strings.Split(string(data), "\n\n") {
		who, rest, _ := strings.Cut(entry, " ")
		if who != "trainer" && who != "server" {
			continue
		}
		subject, rest, _ := strings.Cut(rest, "\n")
		var frame []byte
		text := ""
		for _, line := range strings.Split(rest, "\n") {
			if b, err := hex.DecodeString(strings.ReplaceAll(line, " ", "")); err == nil {
				frame = append(frame, b...)
			} else {
				text += line + "\n"
			}
		}
		v, err := schema.Verify(frame, schema.Limits{})
		if err != nil {
			t.Errorf("%s: %v", subject, err)
			continue
		}
		if got := schema.Describe(&v); got != text {
			t.Errorf("%s holds\n%s\nwant\n%s", subject, got, text)
		}
		if s, err := fabric.ParseSubject(subject); err != nil || s.HasBatch && s.Batch != uint64(v.Head().Batch) ||
			s.HasBucket && s.Bucket != uint32(v.Head().Bucket) {
			t.Errorf("%s does not address batch %d bucket %d: %v", subject, v.Head().Batch, v.Head().Bucket, err)
		}
		if err := place.CheckFrame(&v, 0); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		frames++
		texts += text
	}
	if want := strings.Count(string(data), demo); frames != want || frames < 20 {
		t.Errorf("%d frames under %d subjects", frames, want)
	}
	for _, fact := range []string{
		"values [-0.5 1]\n",          // w - 0.5 * (2, -4) / 2
		"keys [3]\nvalues [2]\n",     // 0 - 0.5 * -8 / 2
		"keys [1]\nvalues [-1]\n",    // 0 - 0.5 * 4 / 2
		"keys [1 3]\nvalues [0 0]\n", // version 0
		`"reason":"early_batch"`, "ack 1 [0 0 0 0] ", "ack 2 [0 0 0 0] ",
	} {
		if !bytes.Contains([]byte(texts), []byte(fact)) {
			t.Errorf("the transcript does not say %q", fact)
		}
	}
}
