package trainer

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/endpoint"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

const (
	// reduceBytesMax is the budget for contributions to open rounds of a reduce range; see stagedBytes.
	reduceBytesMax = 128 << 20
	// refusalsPerSecond bounds what is said about bad frames, so that a flood of them costs its sender's line alone.
	refusalsPerSecond = 100
)

// reducer runs the shard of what this trainer adds up for all, in a job that reduces between trainers: its chunks of
// every dense bucket, and its partitions of replicated tables. To the other trainers it is what a shard of a ps is.
// This trainer's own contributions go in where they lie (contribute), and its own results come out without a message.
//
// Frames are taken on the goroutines of the data server's connection, own contributions on the one that calls Run.
// Whoever steps holds the step lock, and publishes what comes of it without.
type reducer struct {
	job     *schema.Job
	joined  *schema.Joined
	owner   int        // this trainer
	self    int        // the same among contributors
	own     *ownServer // set before the first frame
	results *results
	fail    func(error)
	limit   fabric.Limiter // of refusals

	stepLock sync.Mutex // guards what follows
	end      *endpoint.Endpoint
	begun    []schema.Batch // by contributor: the latest batch that it has begun, or asked for
}

// newReducer makes the shard of this trainer.
func newReducer(s *membership) (*reducer, error) {
	r := &reducer{job: s.job, joined: &s.joined, owner: s.owners[string(s.joined.Member)], results: s.results,
		fail: s.fail, begun: make([]schema.Batch, s.job.Trainers), limit: fabric.Limiter{PerSecond: refusalsPerSecond}}
	r.self = r.owner - s.place.Shards
	config := shard.Config{Job: s.job, Placement: s.place, Index: r.owner, RunID: s.joined.RunID,
		Generation: s.joined.Generation, Backend: s.config.Backend, Contributors: round.ContributorsOf(s.job),
		StagedBytesMax: stagedBytes(s.job), Own: s.joined.Member, Lent: s.config.Bus != nil}
	if v := s.joined.Version; v > 0 { // trainers have that themselves
		config.Resumed = &shard.Resumed{Version: v, Read: func(func(state.Tensor) error, func(state.Rows) error) error {
			return nil
		}}
	}
	end, err := endpoint.New(s.ctx, endpoint.Config{Shard: config, WindowBytes: fabric.WindowBytesDefault,
		Publish: r.publish,
		Ack: func(to schema.Member, frame []byte) {
			r.own.publish(r.subject(fabric.KindAck, to), fabric.WithoutRoom(frame))
		}})
	if err != nil {
		return nil, err
	}
	r.end = end
	return r, nil
}

// stagedBytes is the budget for open rounds on one trainer: enough for the share of every other one to hold what it may
// send before it hears of its window, and one chunk of each of its nodes, which close together.
func stagedBytes(job *schema.Job) int64 {
	share := int64(2 * fabric.WindowBytesDefault)
	for _, h := range round.ContributorsOf(job) {
		nodes := len(lane.Nodes(h.First, h.Count, job.Lanes))
		share = max(share, int64(nodes)*int64(job.ChunkBytes+shard.FrameBytesOver))
	}
	return max(reduceBytesMax, int64(job.Trainers)*share)
}

// contribute takes a frame of this trainer's own, which must not change until the batch is complete. What a shard would
// refuse is an error.
func (r *reducer) contribute(f *schema.Frame) error {
	v := f.View()
	taken, err := r.step(r.joined.Member, &v, nil)
	if err != nil || taken.Reason == schema.ReasonOK || taken.Reason == schema.ReasonDuplicate {
		return err
	}
	h := v.Head()
	frame := fmt.Sprintf("%s: batch %d bucket %d chunk %d lanes %v", r.joined.Member, h.Batch, h.Bucket, h.Chunk, h.Node)
	return refusedFrame(frame, taken.Reason.String(), taken.Outputs[0].Text)
}

// step gives the endpoint a frame, and publishes what comes of it. What another goroutine publishes just then it leaves
// to that one.
func (r *reducer) step(from schema.Member, v *schema.View, p round.Payload) (taken endpoint.Taken, err error) {
	h := v.Head()
	r.stepLock.Lock()
	defer r.end.Flush()
	defer r.stepLock.Unlock()
	if i := r.end.Contributor(from); i != r.self { // it has all results of the batches before
		r.begun[i] = max(r.begun[i], h.Batch)
	}
	r.end.Await(&r.stepLock, h.Kind, h.Batch)
	if taken, err = r.end.Step(from, v, p); err != nil {
		return taken, fmt.Errorf("reduce range of %s: %w", r.joined.Member, err)
	}
	if from == r.joined.Member && taken.Reason != schema.ReasonOK { // its refusal is an error
		taken.Outputs = slices.Clone(taken.Outputs)
		return taken, nil
	}
	r.end.Put(taken.Outputs, nil)
	return taken, nil
}

// publish sends what the shard puts out, and puts results of all in place here.
func (r *reducer) publish(o *shard.Output) {
	if o.Kind == schema.KindRefusal {
		r.say(o.To, o.Frame)
		return
	}
	r.own.publish(r.subject(fabric.KindMean, o.To).WithBucket(uint64(o.Batch), uint32(o.Bucket)),
		fabric.NewPayload(o.Built.Room()))
	if o.To != schema.All {
		return // another trainer has asked for it
	}
	result := o.Built.View()
	if _, err := r.results.take(r.owner, false, o.Batch, &result); err != nil {
		r.fail(err)
	}
}

// receive takes a message that came in at the data server. It does not wait for anything but the other goroutine that
// adds up.
func (r *reducer) receive(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil {
		m.Release()
		return
	}
	v, refused := r.check(&subject, &m)
	if refused != nil {
		m.Release()
		r.refuse(&subject, v.Head(), refused)
		return
	}
	if _, err = r.step(schema.Member(subject.From), &v, m.Lease()); err != nil {
		r.fail(err)
	}
}

// check verifies a message, and that another trainer has sent it.
func (r *reducer) check(subject *fabric.Subject, m *fabric.Message) (v schema.View, refused *schema.FrameError) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		return v, schema.Refusing(err)
	}
	wanted, head := fabric.KindReduce, v.Head()
	switch head.Kind {
	case schema.KindDense, schema.KindSparse:
	case schema.KindPull:
		wanted = fabric.KindPull
	default:
		return v, schema.Refuse(schema.ReasonUnknownKind, "a trainer takes no frames of kind %v from another", head.Kind)
	}
	if subject.Kind != wanted {
		return v, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind, subject.Kind)
	}
	if i := r.end.Contributor(schema.Member(subject.From)); i < 0 || i == r.self {
		return v, schema.Refuse(schema.ReasonUnknownSender, "%s is not another trainer of job %s", subject.From, r.job.Name)
	}
	if err := v.CheckJob(r.joined.RunID, r.joined.Generation); err != nil {
		return v, schema.Refusing(err)
	}
	return v, nil
}

// tick sends the acks that have waited for long enough. It is called every tickEvery.
func (r *reducer) tick() {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	if r.own != nil {
		r.end.Tick()
	}
}

// refuse tells a sender why its frame went nowhere.
func (r *reducer) refuse(subject *fabric.Subject, head schema.Head, why *schema.FrameError) {
	r.say(schema.Member(subject.From), schema.EncodeRefusal(head, why.Reason, why.Detail))
}

// say sends a refusal, unless others were sent too often this second.
func (r *reducer) say(to schema.Member, refusal []byte) {
	if r.limit.Allow(time.Now()) {
		r.own.publish(r.subject(fabric.KindCtl, to), fabric.WithoutRoom(refusal))
	}
}

func (r *reducer) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(r.job.Name), string(r.joined.Member), kind, string(to))
}

// done reports whether every other trainer has all results of the batches before b, or is gone.
func (r *reducer) done(b schema.Batch, gone map[schema.Member]bool) bool {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	if r.end.Idle() {
		return true
	}
	for i, begun := range r.begun {
		if i != r.self && begun < b && !gone[schema.TrainerMember(i)] {
			return false
		}
	}
	return true
}

// close gives back what open rounds hold. Nobody receives any more.
func (r *reducer) close() {
	if r != nil {
		r.end.Close()
	}
}

// waiting is whom the open rounds lack, as a shard's ps says of its own: empty where nobody is waited for, because
// nothing is open that somebody has contributed to.
func (r *reducer) waiting() []schema.Waiting {
	r.stepLock.Lock()
	defer r.stepLock.Unlock()
	w := r.end.Waiting()
	if w.Rounds == 0 {
		return []schema.Waiting{}
	}
	return []schema.Waiting{w.Waiting}
}

// sendReport tells the coordinator whom this trainer's rounds wait for, as often as it gives signs of life, so that
// one who lives and sends nothing is found out where no shard of a ps would notice.
func (s *membership) sendReport() error {
	if s.reducer == nil {
		return nil
	}
	report := &schema.Report{Ready: true, Waiting: s.reducer.waiting()}
	frame, err := schema.EncodeControl(s.head(s.newest()), schema.Control{Report: report})
	if err != nil {
		return err
	}
	return publish(s.control, s.subject(fabric.KindCtl, schema.Coordinator), frame)
}
