package trainer

import (
	"context"
	"fmt"
	"sync"

	"gradbus/schema"
)

// checkpoints is what the coordinator has answered to requests for durable versions.
type checkpoints struct {
	*connection

	mu      sync.Mutex // a leaf
	durable schema.Version
	refused *schema.Refused // the answer to the last request; nil where there is none
	changed chan struct{}   // closed and replaced at every answer
}

func newCheckpoints(c *connection) *checkpoints {
	return &checkpoints{connection: c, changed: make(chan struct{})}
}

// take takes an answer: a version that is durable, or why the one that was asked for is not.
func (k *checkpoints) take(v schema.Version, refused *schema.Refused) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.durable, k.refused = max(k.durable, v), refused
	close(k.changed)
	k.changed = make(chan struct{})
}

// answered returns whether a version is durable, and why the last request was refused, once. changed is closed at the
// next answer.
func (k *checkpoints) answered(v schema.Version) (durable bool, refused *schema.Refused, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	refused, k.refused = k.refused, nil
	return k.durable >= v, refused, k.changed
}

// request returns when the version that the trainer has is durable.
func (k *checkpoints) request(ctx context.Context) (schema.Version, error) {
	v := k.newest()
	if err := k.job.CheckCheckpoint(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if v <= k.job.StartVersion() {
		return 0, fmt.Errorf("%w: checkpoint of job %s: no batch is complete: want one", ErrOrder, k.job.Name)
	}
	ctx, stop := k.running(ctx)
	defer stop()
	k.answered(v) // forgets what was refused before
	for {
		durable, refused, changed := k.answered(v)
		switch {
		case durable:
			return k.job.Counted(v), nil
		case refused != nil:
			return 0, fmt.Errorf("checkpoint of job %s: %w", k.job.Name, refusedBy(refused))
		}
		if err := k.ask(ctx, schema.Control{Checkpoint: &schema.Checkpoint{Version: v}}, changed); err != nil {
			return 0, fmt.Errorf("checkpoint of job %s: %w", k.job.Name, err)
		}
	}
}

// Checkpoint makes the version of the session durable, where its ps keeps checkpoints, and returns it. It is called
// between batches, by one trainer or by several at the same version, and waits until the files of all shards are on the
// disk. Config.Resume begins there.
//
// ErrAgain is to be followed by the same call. Errors: ErrOrder before the first batch and while lanes of a lost trainer
// are to be computed, ErrConfig of a job whose shards have no version or not all of it, Refused with the reason where
// the version cannot be written, and those of Run. After any of them the session continues.
func (s *Session) Checkpoint(ctx context.Context) (v schema.Version, err error) {
	err = s.read(ctx, func(m *membership) error {
		if m != s.membership {
			return fmt.Errorf("%w: checkpoint of job %s: lanes of batch %d are to be computed: want it when that is complete",
				ErrOrder, m.job.Name, m.newest())
		}
		if err := m.settled(ctx); err != nil {
			return err
		}
		v, err = m.checkpoints.request(ctx)
		return err
	})
	return v, err
}
