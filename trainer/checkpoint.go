package trainer

import (
	"context"
	"fmt"
	"sync"

	"gradbus/schema"
)

// checkpoints has the coordinator's answers to requests for durable versions.
type checkpoints struct {
	*connection

	mu      sync.Mutex // a leaf
	durable schema.Version
	refused *schema.Refused // answer to the last request; nil if there is none
	changed chan struct{}   // closed and replaced at every answer
}

func newCheckpoints(c *connection) *checkpoints {
	return &checkpoints{connection: c, changed: make(chan struct{})}
}

// take stores an answer: a durable version, or the refusal of a request.
func (k *checkpoints) take(v schema.Version, refused *schema.Refused) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.durable, k.refused = max(k.durable, v), refused
	close(k.changed)
	k.changed = make(chan struct{})
}

// answered reports whether a version is durable, and returns, once, the refusal of the last request. changed is closed
// at the next answer.
func (k *checkpoints) answered(v schema.Version) (durable bool, refused *schema.Refused, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	refused, k.refused = k.refused, nil
	return k.durable >= v, refused, k.changed
}

// request returns when the trainer's version is durable.
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
	k.answered(v) // drop the refusal of an earlier request
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

// Checkpoint makes the session's version durable, if its ps stores checkpoints, and returns the version. It is called
// between batches, by one trainer, or by several at the same version. It waits until the files of all shards are on
// disk. Config.Resume begins with that version.
//
// After ErrAgain, call it again. Errors: ErrOrder before the first batch and while lanes of a lost trainer must be
// computed, ErrConfig if the shards have no version of the job or not all of it, Refused if the version cannot be
// written, and those of Run. The session continues after an error of Checkpoint itself.
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
