package shard

import (
	"cmp"
	"fmt"
	"slices"

	"gradbus/schema"
	"gradbus/shard/round"
)

// answerBytesMax bounds the values in one answer: frames above 4 MiB are slower, not faster.
const answerBytesMax = 4 << 20

// FrameBytesOver bounds what a frame has besides its values, keys and sections.
const FrameBytesOver = 1 << 10

// stepLookup answers with the requested rows at the version of the requested batch, or parks the lookup until that
// version is complete.
func (s *Shard) stepLookup(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	early, refused := s.clock.Line(contributor).ReachRows(h.Batch)
	previous := refused != nil && s.reachesPrevious(contributor, h.Batch)
	if refused == nil || previous {
		refused = checkLookup(v)
	}
	if refused != nil {
		return refused, nil
	}
	if early {
		s.retained = s.park(contributor, h, v, payload)
		return nil, nil
	}
	if previous {
		h, v := *h, *v
		return nil, s.readPrevious(func() error { return s.answerLookup(contributor, &h, &v) })
	}
	return nil, s.answerLookup(contributor, h, v)
}

// checkLookup checks that the answer to a lookup fits into a frame.
func checkLookup(v *schema.View) *refusal {
	values := valuesOf(v)
	rows, layout := len(v.Keys()), answerLayout(v, values)
	if 4*values > answerBytesMax && (layout.Keys > 1 || layout.Pooled) {
		return schema.Refuse(schema.ReasonOversized,
			"%d keys ask for %d bytes of rows: want at most %d in one lookup", rows, 4*values, answerBytesMax)
	}
	if bytes := 4*values + len(v.Bytes()) + FrameBytesOver; bytes > schema.FrameBytesMax {
		return schema.Refuse(schema.ReasonOversized,
			"%d keys and their rows take %d bytes: want at most %d in one lookup", rows, bytes, schema.FrameBytesMax)
	}
	return nil
}

// answerLookup answers a lookup that checkLookup has passed.
func (s *Shard) answerLookup(contributor int, h *schema.Head, v *schema.View) error {
	f, err := s.answer(answerLayout(v, valuesOf(v)))
	if err == nil {
		err = s.readRows(v, f)
	}
	if err != nil {
		return err
	}
	s.outputRows(contributor, h, s.copyFlags(schema.Version(h.Batch)))
	if s.config.Journal != nil {
		s.config.Journal(Journal{Kind: schema.KindLookup, From: s.config.Contributors[contributor].Member, Batch: h.Batch})
	}
	return nil
}

// valuesOf returns the number of values in the answer to a lookup: a row for each key or bag.
func valuesOf(v *schema.View) (values int) {
	for _, part := range v.Parts() {
		rows := len(part.Keys)
		if part.Bags > 0 {
			rows = part.Bags
		}
		values += part.Dim * rows
	}
	return values
}

// answerLayout returns the layout of the answer to a lookup. Answers for bags have no keys.
func answerLayout(v *schema.View, values int) schema.Layout {
	l := schema.Layout{Kind: schema.KindRows, Values: 4 * values, Keys: len(v.Keys()), Sections: len(v.Sections()),
		Pooled: v.Bags() != nil}
	for i, b := range v.Bags() {
		if b.Count > 0 {
			l.Keys -= int(v.Section(i).Count)
		}
	}
	return l
}

// answer prepares the frame of rows for a layout.
func (s *Shard) answer(l schema.Layout) (f *schema.Frame, err error) {
	if s.rows == nil {
		s.rows, err = schema.NewFrame(l)
	} else {
		err = s.rows.Reset(l)
	}
	if err != nil {
		return nil, fmt.Errorf("build answer of %d keys: %w", l.Keys, err)
	}
	return s.rows, nil
}

// outputRows publishes the answer to the request with head h, under the same number. The answer also proves that the
// rounds before the version of the rows have closed, and has the weight of the last one.
func (s *Shard) outputRows(contributor int, h *schema.Head, flags uint32) {
	lag, weight := schema.Batch(0), 0.0
	if l := s.clock.Line(contributor); l.Sparse != nil {
		lag, weight = h.Batch-min(h.Batch, l.Sparse.Closed()), l.Sparse.Weight()
		if h.Batch < l.Sparse.Closed() { // of the version before
			weight = l.Sparse.WeightBefore()
		}
	}
	s.rows.SetHead(schema.Head{
		Offset: uint64(lag),
		Kind:   schema.KindRows, Job: s.config.RunID, Generation: s.since[contributor], Batch: h.Batch, Bucket: h.Bucket,
		Chunk: h.Chunk, Chunks: h.Chunks,
		Lanes: uint16(s.config.Job.Lanes), DType: schema.DTypeFloat32, Flags: flags, Sequence: h.Sequence, Weight: weight,
	})
	s.rows.Seal()
	s.output(schema.KindRows, s.config.Contributors[contributor].Member, h.Batch, h.Bucket, s.rows)
}

// pullTable answers with the rows of one partition from a cursor key on: as many as were requested and fit.
func (s *Shard) pullTable(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	l := s.clock.Line(contributor)
	_, refused := l.Reach(h.Batch)
	previous := false
	if refused == nil {
		if _, refused = l.ReachRows(h.Batch); refused != nil {
			previous = s.reachesPrevious(contributor, h.Batch)
		}
	}
	if refused != nil && !previous {
		return refused, nil
	}
	sec := v.Section(0)
	t := s.tables[sec.Table] // not nil: CheckFrame requires that the partition is on this shard
	left := t.Left(schema.Partition(h.Bucket), v.Keys()[0])
	if previous {
		h, cursor := *h, v.Keys()[0]
		return nil, s.readPrevious(func() error { return s.answerPartition(contributor, &h, sec, cursor, left) })
	}
	l.Advance(h.Batch)
	s.beginCopy(l)
	return nil, s.answerPartition(contributor, h, sec, v.Keys()[0], left)
}

// answerPartition answers with the rows of a partition from a cursor on, of which left remain.
func (s *Shard) answerPartition(contributor int, h *schema.Head, asked schema.Section, cursor uint64, left int) error {
	_, dim := s.config.Placement.Columns(asked.Table, s.config.Index)
	n := min(left, max(1, s.config.Job.ChunkBytes/(4*dim)))
	if uint64(n) > asked.Count {
		n = int(asked.Count)
	}
	f, err := s.answer(schema.Layout{Kind: schema.KindRows, Values: 4 * n * dim, Keys: n, Sections: 1})
	if err != nil {
		return err
	}
	if err := s.tables[asked.Table].Scan(schema.Partition(h.Bucket), cursor, f.Keys(), f.Float32s()); err != nil {
		return fmt.Errorf("scan table %q: %w", s.config.Job.Tables[asked.Table].Name, err)
	}
	f.SetSection(0, schema.Section{Table: asked.Table, Dim: uint32(dim), Count: uint64(n)})
	var flags uint32
	if n < left {
		flags = schema.FlagMore
	}
	s.outputRows(contributor, h, flags)
	return nil
}

// closedRows reports the close of the sparse round of batch b to a line's trainers: by the answers to their parked
// lookups, or by the frames of its result. An answer carries the last round that has closed by then, so a trainer whose
// answer is still due receives the result of the round before. Frames with rows go to all trainers.
func (s *Shard) closedRows(l *round.Line, b schema.Batch, frames []*schema.Frame) {
	waited, bucket := false, s.config.Placement.SparseBucket(s.config.Index)
	for contributor := range s.parked {
		p := &s.parked[contributor]
		switch {
		case s.clock.Line(contributor) != l || len(p.frames) == 0 || p.next > 0 || p.batch > l.Awaiting(b):
			continue // no answer is due, or the first was sent
		case !p.due:
			p.due, s.answering = true, append(s.answering, contributor)
		case !l.Means.HasRows():
			s.outputResult(l, b-1, s.config.Contributors[contributor].Member, b-1, bucket, l.Means.Kept(b - 1)[0])
		}
		waited = true
	}
	if !waited || l.Means.HasRows() {
		s.closed(l, b, bucket, frames...)
		return
	}
	s.closed(l, b, bucket)
	for contributor := range s.parked {
		if p := &s.parked[contributor]; s.clock.Line(contributor) == l && (!p.due || p.next > 0) {
			s.outputResult(l, b, s.config.Contributors[contributor].Member, b, bucket, frames[0])
		}
	}
}

// Answer answers one frame of a parked lookup whose rows are complete. The caller repeats it after a Step while Due
// reports true; other steps may come between. Output and error are those of Step.
func (s *Shard) Answer() ([]Output, error) {
	contributor := s.answering[0]
	p := &s.parked[contributor]
	f := &p.frames[p.next]
	s.outputs = s.outputs[:0]
	err := s.answerLookup(contributor, &f.head, &f.view)
	s.limitCopy()
	round.Release(f.payload)
	if p.next++; p.next == len(p.frames) {
		s.forget(contributor)
	}
	if err != nil {
		return nil, fmt.Errorf("shard %s of job %s: answer a parked lookup: %w", s.member, s.config.Job.Name, err)
	}
	return s.outputs, nil
}

// stepPull answers a pull: of a stored result, of current parameters, or of rows of a table.
func (s *Shard) stepPull(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	parameters := h.Flags&schema.FlagParameters != 0
	switch ofTrainers := parameters && s.dense == nil; { // CheckFrame requires that they exist
	case ofTrainers && len(v.Sections()) > 0:
		return s.pullResumedRows(contributor, h, v)
	case len(v.Sections()) > 0:
		return s.pullTable(contributor, h, v)
	case !parameters:
		return s.pullResult(contributor, h, h.Batch), nil
	case h.Batch == 0:
		return schema.Refuse(schema.ReasonStaleBatch,
			"parameters of version 0 follow from the manifest: want version 1 or later"), nil
	case ofTrainers:
		return s.pullResumed(contributor, h)
	}
	return s.pullResult(contributor, h, h.Batch-1), nil // version v is the result of batch v-1
}

// pullResult publishes a stored result again, to one trainer. It does not answer for an open round, whose result is
// published when the round closes.
func (s *Shard) pullResult(contributor int, h *schema.Head, batch schema.Batch) *refusal {
	dense := s.config.Placement.IsDense(h.Bucket)
	e, stored, refused := s.clock.Pull(contributor, batch, batch == h.Batch)
	if e.Fresh {
		s.enter(e)
	}
	if refused != nil || !stored {
		return refused
	}
	var frames []*schema.Frame
	switch {
	case !dense:
		frames = e.Line.Means.Kept(e.Round) // all frames: the trainer does not know how many there are
	case e.Round < e.Line.Dense.Closed(s.config.Placement.IndexOfChunk(h.Bucket, h.Chunk)):
		f := s.clock.Kept(e, s.config.Placement.IndexOfChunk(h.Bucket, h.Chunk))
		if f == nil {
			return schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: it was made before the job was resumed", batch)
		}
		frames = []*schema.Frame{f}
	}
	for _, f := range frames {
		s.outputResult(e.Line, e.Round, s.config.Contributors[contributor].Member, batch, h.Bucket, f)
	}
	return nil
}

// A lookup of batch b needs rows in which every batch before b-ahead is applied, by its sender's clock. It may arrive
// earlier, behind its sender's contributions or even before them. Then it is parked, and answered when the last of
// these rounds closes. So a trainer sends gradients and receives its next rows in one round trip.
//
// The shard parks the frames of one batch's lookup per trainer, in a reserve that contributions do not use. A repeated
// lookup replaces the earlier one. A lookup that does not fit is dropped, and its sender repeats it. A parked lookup
// proves nothing about other shards, so it does not move the shard to its batch.
//
// An answer proves that the rounds before its version have closed. So the close is sent only to trainers without a
// parked lookup.

// parking is the parked lookups of one trainer.
type parking struct {
	batch  schema.Batch
	frames []parkedLookup // in the order of their numbers; those before next are answered
	bytes  int64
	next   int
	due    bool // the rows are complete
}

// parkedLookup is one frame, in the payload in which it arrived.
type parkedLookup struct {
	head    schema.Head
	view    schema.View
	payload Payload
}

// parkedCost returns the bytes that a frame takes from its sender's reserve.
func parkedCost(v *schema.View) int64 { return int64(len(v.Bytes())) + FrameBytesOver }

// parkedLookups has the parked lookups of all trainers.
type parkedLookups struct {
	parked    []parking // by contributor
	answering []int     // contributors whose parked lookups are being answered, in order
	most      int64     // most bytes of one trainer
}

// Due reports whether parked lookups can be answered.
func (all *parkedLookups) Due() bool { return len(all.answering) > 0 }

// park keeps a lookup whose rows are not complete yet. It reports whether there was room.
func (all *parkedLookups) park(contributor int, h *schema.Head, v *schema.View, payload Payload) bool {
	p := &all.parked[contributor]
	if p.batch != h.Batch {
		all.forget(contributor)
		p.batch = h.Batch
	}
	at, repeated := slices.BinarySearchFunc(p.frames, h.Sequence,
		func(f parkedLookup, n schema.Sequence) int { return cmp.Compare(f.head.Sequence, n) })
	bytes := p.bytes + parkedCost(v)
	if repeated {
		bytes -= parkedCost(&p.frames[at].view)
	}
	if bytes > all.most {
		return false
	}
	if repeated {
		round.Release(p.frames[at].payload)
		p.frames = slices.Delete(p.frames, at, at+1)
	}
	p.frames, p.bytes = slices.Insert(p.frames, at, parkedLookup{*h, *v, payload}), bytes
	return true
}

// forget drops the parked lookups of one trainer.
func (all *parkedLookups) forget(contributor int) {
	all.answering = slices.DeleteFunc(all.answering, func(due int) bool { return due == contributor })
	all.parked[contributor].discard()
}

// discard releases the parked frames.
func (p *parking) discard() {
	for i := range p.frames[p.next:] {
		round.Release(p.frames[p.next+i].payload)
	}
	clear(p.frames) // drops the views
	p.frames, p.bytes, p.next, p.due = p.frames[:0], 0, 0, false
}

// Output is a frame to publish.
type Output struct {
	Kind   schema.Kind   // schema.KindMean, KindRows, KindRefusal, or a request to a trainer: KindPull, KindState
	To     schema.Member // a trainer, or schema.All
	Batch  schema.Batch
	Bucket schema.Bucket
	Reason schema.Reason // of a refusal; ReasonOK otherwise
	Text   string        // of a refusal: a description of the frame, for a log
	Frame  []byte        // valid until the next call of Step or Answer, and longer if Outlasts reports it
	Built  *schema.Frame // the frame whose bytes Frame is; nil for a refusal

	until schema.Batch // of a result: the first batch whose rounds may overwrite the frame; 0: any
}

// Outlasts reports whether Frame stays valid in a Step of a frame of this kind, if newest is the newest batch under way
// then. Refusals and rare answers have frames of their own; all answers with rows share one frame, and the results of a
// chunk rotate through several.
func (o *Output) Outlasts(kind schema.Kind, newest schema.Batch) bool {
	switch o.Kind {
	case schema.KindRefusal, schema.KindPull, schema.KindState:
		return true
	case schema.KindRows:
		return kind == schema.KindDense || kind == schema.KindSparse
	}
	return newest < o.until
}

// refusal is the reason why a frame was not applied. A refused frame changes only a counter.
type refusal = schema.FrameError

// outbox collects what one call of the shard publishes.
type outbox struct{ outputs []Output }

// output publishes a sealed frame.
func (o *outbox) output(kind schema.Kind, to schema.Member, b schema.Batch, bucket schema.Bucket, f *schema.Frame) {
	v := f.View()
	o.outputs = append(o.outputs, Output{Kind: kind, To: to, Batch: b, Bucket: bucket, Frame: v.Bytes(), Built: f})
}

// outputResult publishes the result of a round under the batch number that its receiver uses.
func (o *outbox) outputResult(l *round.Line, r schema.Batch, to schema.Member, b schema.Batch, bucket schema.Bucket,
	f *schema.Frame) {
	o.output(schema.KindMean, to, b, bucket, f)
	if l.Stays > 0 {
		o.outputs[len(o.outputs)-1].until = r + l.Stays
	}
}

// outputRefusal sends a refusal, in a new frame: refusals are rare and small.
func (o *outbox) outputRefusal(to schema.Member, h schema.Head, r *refusal) {
	o.outputs = append(o.outputs, Output{Kind: schema.KindRefusal, To: to, Batch: h.Batch, Bucket: h.Bucket,
		Reason: r.Reason, Text: r.Detail, Frame: schema.EncodeRefusal(h, r.Reason, r.Detail)})
}

// Refuse returns the refusal of a frame that the caller did not pass to Step.
func (o *outbox) Refuse(to schema.Member, h schema.Head, r *schema.FrameError) []Output {
	o.outputs = o.outputs[:0]
	o.outputRefusal(to, h, r)
	return o.outputs
}
