package trainer

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"gradbus/schema"
	"gradbus/shard/state"
)

// learningRates is a session's state of changes of the learning rates. A proposal delays its batch: it is not begun
// before the coordinator has decided, so that no owner applies it at another rate than the others.
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
