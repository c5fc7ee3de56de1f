package trainer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/state"
)

// learningRates is what a session knows of changes of the learning rates. A proposal holds its batch up: it is not
// begun before the coordinator has decided, so that no owner applies it at another rate than the others.
type learningRates struct {
	*connection

	mu       sync.Mutex // a leaf
	serial   int        // of the newest word
	decided  []schema.LRChange
	applied  state.LRChanges // the same, for what this trainer steps itself
	proposed *schema.LR      // nil where none is open
	begun    schema.Batch    // batches that have begun
	refused  *schema.Refused // the answer to the last request; nil where there is none
	changed  chan struct{}   // closed and replaced at every word
}

func newLearningRates(c *connection, decided []schema.LRChange) *learningRates {
	l := &learningRates{connection: c, decided: decided, changed: make(chan struct{})}
	l.applied.Set(decided)
	return l
}

// LRScale is by what the rates of the manifest are multiplied by the newest decision that is known here: 1 where none
// has changed them.
func (l *learningRates) LRScale() float32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.decided); n > 0 {
		return l.decided[n-1].Scale
	}
	return 1
}

// take takes a word of the coordinator's. answer says that it is to be answered, with the batches that have begun.
func (l *learningRates) take(w *schema.LR) (begun schema.Batch, answer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Serial < l.serial || w.Serial == l.serial && !w.Final && l.proposed == nil && l.serial > 0 {
		return 0, false // older, or decided by now
	}
	l.serial = w.Serial
	if l.proposed = nil; w.Final {
		l.decided = w.Changes
	} else {
		l.proposed = w
		l.decided = decidedBefore(w, l.decided) // the word of a decision before may have been lost
	}
	l.applied.Set(l.decided) // no trainer has begun the batch of a new one
	close(l.changed)
	l.changed = make(chan struct{})
	return l.begun, !w.Final
}

// decidedBefore is the changes that a proposal stands on, and what is known of its batch: one that it may take the
// place of.
func decidedBefore(w *schema.LR, known []schema.LRChange) []schema.LRChange {
	last := len(w.Changes) - 1
	all := slices.Clone(w.Changes[:last])
	for _, c := range known {
		if c.From >= w.Changes[last].From {
			all = append(all, c)
		}
	}
	return all
}

// begin begins a batch, unless a proposal holds it up: then changed is closed when there is news, and serial is that of
// the proposal.
func (l *learningRates) begin(b schema.Batch) (changed <-chan struct{}, held *schema.LRTaken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.proposed; p != nil && p.Changes[len(p.Changes)-1].From <= b {
		return l.changed, &schema.LRTaken{Serial: p.Serial, Begun: l.begun}
	}
	l.begun = max(l.begun, b+1)
	return nil, nil
}

// has is the batch from which on the rates have a scale: by the last decision, or by any where the batch is named.
func (l *learningRates) has(r *schema.ScaleLR) (from schema.Batch, ok bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.From != 0 {
		return r.From, slices.Contains(l.decided, schema.LRChange{From: r.From, Scale: r.Scale}), l.changed
	}
	if n := len(l.decided); n > 0 {
		return l.decided[n-1].From, l.decided[n-1].Scale == r.Scale, l.changed
	}
	return 0, r.Scale == 1, l.changed
}

// refuse notes that a request was refused.
func (l *learningRates) refuse(r *schema.Refused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = r
	close(l.changed)
	l.changed = make(chan struct{})
}

// refusal is why the last request was refused, once; else nil.
func (l *learningRates) refusal() (r *schema.Refused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, l.refused = l.refused, nil
	return r
}

// takeLR takes a word about the learning rates.
func (l *learningRates) takeLR(w *schema.LR) error {
	if !w.Final && len(w.Changes) == 0 {
		return fmt.Errorf("word of the coordinator: a proposal without a change of the learning rates")
	}
	if begun, answer := l.take(w); answer {
		return l.sendControl(schema.Control{LRTaken: &schema.LRTaken{Serial: w.Serial, Begun: begun}})
	}
	return nil
}

// awaitLR returns when batch b may begin: at once, unless a change of the learning rates is proposed for it.
func (l *learningRates) awaitLR(ctx context.Context, b schema.Batch) error {
	for {
		changed, held := l.begin(b)
		if held == nil {
			return nil
		}
		if err := l.ask(ctx, schema.Control{LRTaken: held}, changed); err != nil { // what was decided may have been lost
			return fmt.Errorf("wait for a change of the learning rates: %w", err)
		}
	}
}

// ScaleLR is Session.ScaleLR in this run.
func (l *learningRates) ScaleLR(ctx context.Context, from schema.Batch, scale float32) (schema.Batch, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	ctx, stop := l.running(ctx)
	defer stop()
	first := l.job.StartVersion()
	ask := schema.ScaleLR{From: from, Scale: scale, Force: true}
	l.refusal() // of a request before that was said twice
	if from > 0 {
		ask.From += first
	}
	for {
		at, ok, changed := l.has(&ask)
		if ok {
			return at - min(at, first), nil
		}
		if err := l.ask(ctx, schema.Control{ScaleLR: &ask}, changed); err != nil {
			return 0, fmt.Errorf("scale the learning rates: %w", err)
		}
		if r := l.refusal(); r != nil {
			return 0, fmt.Errorf("scale the learning rates of job %s: %w", l.job.Name, refusedBy(r))
		}
	}
}

// ScaleLR does what Session.ScaleLR does, for a caller that is no trainer of the job: c says where its coordinator is
// found. A scale other than 0 that is not from schema.LRScaleMin to LRScaleMax is refused unless force is true: it is
// rather a slip. Errors: ErrConfig, those of dialing, Refused with the reason, and that no coordinator answered
// within Config.AnswerWithin.
//
//	from, err := trainer.ScaleLR(ctx, trainer.Config{Server: "nats://127.0.0.1:4222"}, "clicks", 0, 0.1, false)
func ScaleLR(ctx context.Context, c Config, job schema.JobName, from schema.Batch, scale float32,
	force bool) (schema.Batch, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	if err := schema.CheckName("job", string(job)); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if !(scale >= 0 && scale <= math.MaxFloat32) {
		return 0, fmt.Errorf("%w: scale %v of the learning rates: want a finite number, at least 0", ErrConfig, scale)
	}
	c = c.withDefaults()
	a := lrAsker{job: job, answers: make(chan schema.Control, 1)}
	frame, err := schema.EncodeControl(schema.Head{}, schema.Control{ScaleLR: &schema.ScaleLR{From: from, Scale: scale,
		Force: force}})
	if err != nil {
		return 0, err
	}
	if a.outsider, err = c.dialOutside(ctx, &schema.Job{Name: job}, a.receive); err != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s: %w", job, err)
	}
	defer a.conn.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, c.AnswerWithin,
		fmt.Errorf("no answer within %v: is the job running, and do its trainers begin batches?", c.AnswerWithin))
	defer cancel()
	answer, err := fabric.Ask(ctx, c.RetryAfter, func() error { return a.publish(frame) }, a.answers)
	if err != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s at %s: %w", job, c.serverName(), err)
	}
	if answer.Refused != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s: %w", job, refusedBy(answer.Refused))
	}
	if n := len(answer.LR.Changes); from == 0 && n > 0 {
		from = answer.LR.Changes[n-1].From
	}
	return from, nil
}

// lrAsker hears what a coordinator answers.
type lrAsker struct {
	outsider
	job     schema.JobName
	answers chan schema.Control
}

func (a *lrAsker) receive(m fabric.Message) {
	defer m.Release()
	c, ok := answerOf(m.Data)
	if v, err := schema.Verify(m.Data, schema.Limits{}); err == nil && v.Head().Kind == schema.KindRefusal && !ok {
		r, err := schema.DecodeRefusal(&v)
		if err != nil {
			return
		}
		c.Refused = &schema.Refused{Reason: r.Reason, Text: fmt.Sprintf("job %s is not registered there", a.job)}
		if r.Reason != schema.ReasonJobUnknown.String() {
			c.Refused.Text = r.Text
		}
	} else if !ok || c.Refused == nil && (c.LR == nil || !c.LR.Final) {
		return
	}
	select {
	case a.answers <- c:
	default:
	}
}
