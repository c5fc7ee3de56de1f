package trainer

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"gradbus/schema"
	"gradbus/shard/state"
)

// learningRates is a session's state of learning rate changes. A proposal delays its batch until the coordinator has
// decided, so all owners apply the batch at the same rate.
type learningRates struct {
	*connection

	mu       sync.Mutex // a leaf
	serial   int        // of the newest message
	decided  []schema.LRChange
	applied  state.LRChanges // the same changes, for what this trainer steps itself
	proposed *schema.LR      // open proposal, or nil
	begun    schema.Batch    // number of batches that have begun
	refused  *schema.Refused // answer to the last request, or nil
	changed  chan struct{}   // closed and replaced at every message
}

func newLearningRates(c *connection, decided []schema.LRChange) *learningRates {
	l := &learningRates{connection: c, decided: decided, changed: make(chan struct{})}
	l.applied.Set(decided)
	return l
}

// LRScale returns the factor of the manifest's rates by the newest decision known here; 1 if there is none.
func (l *learningRates) LRScale() float32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.decided); n > 0 {
		return l.decided[n-1].Scale
	}
	return 1
}

// take handles a message of the coordinator. answer reports whether to answer it, with the number of batches that have
// begun.
func (l *learningRates) take(w *schema.LR) (begun schema.Batch, answer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Serial < l.serial || w.Serial == l.serial && !w.Final && l.proposed == nil && l.serial > 0 {
		return 0, false // older, or already decided
	}
	l.serial = w.Serial
	if l.proposed = nil; w.Final {
		l.decided = w.Changes
	} else {
		l.proposed = w
		l.decided = decidedBefore(w, l.decided) // the message with the decision before it may have been lost
	}
	l.applied.Set(l.decided) // no trainer has begun the batch of a new one
	close(l.changed)
	l.changed = make(chan struct{})
	return l.begun, !w.Final
}

// decidedBefore returns the decided changes on which a proposal is based. Of the known changes from the proposal's
// batch on, the proposal may replace one; they are included.
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

// begin begins batch b, unless a proposal delays it. Then it returns the channel that is closed at the next message,
// and the answer to the proposal.
func (l *learningRates) begin(b schema.Batch) (changed <-chan struct{}, delayed *schema.LRTaken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.proposed; p != nil && p.Changes[len(p.Changes)-1].From <= b {
		return l.changed, &schema.LRTaken{Serial: p.Serial, Begun: l.begun}
	}
	l.begun = max(l.begun, b+1)
	return nil, nil
}

// has returns the batch from which on the rates have the requested scale, by the last decision, or by any decision if
// the request names the batch.
func (l *learningRates) has(r schema.LRChange) (from schema.Batch, ok bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.From != 0 {
		return r.From, slices.Contains(l.decided, r), l.changed
	}
	if n := len(l.decided); n > 0 {
		return l.decided[n-1].From, l.decided[n-1].Scale == r.Scale, l.changed
	}
	return 0, r.Scale == 1, l.changed
}

// refuse records that a request was refused.
func (l *learningRates) refuse(r *schema.Refused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = r
	close(l.changed)
	l.changed = make(chan struct{})
}

// refusal returns, once, the refusal of the last request; otherwise nil.
func (l *learningRates) refusal() (r *schema.Refused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, l.refused = l.refused, nil
	return r
}

// takeLR handles a message about learning rates.
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
		changed, delayed := l.begin(b)
		if delayed == nil {
			return nil
		}
		if err := l.ask(ctx, schema.Control{LRTaken: delayed}, changed); err != nil { // what was decided may have been lost
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
	ask := schema.LRChange{From: from, Scale: scale}
	l.refusal() // of an earlier request that was sent twice
	if from > 0 {
		ask.From += first
	}
	for {
		at, ok, changed := l.has(ask)
		if ok {
			return at - min(at, first), nil
		}
		if err := l.ask(ctx, schema.Control{LR: &schema.LR{Changes: []schema.LRChange{ask}, Force: true}}, changed); err != nil {
			return 0, fmt.Errorf("scale the learning rates: %w", err)
		}
		if r := l.refusal(); r != nil {
			return 0, fmt.Errorf("scale the learning rates of job %s: %w", l.job.Name, refusedBy(r))
		}
	}
}
