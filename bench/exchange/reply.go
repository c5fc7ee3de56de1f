package exchange

import (
	"context"
	"errors"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// ask publishes a request, again every second, until something comes that answers it.
func (m *member) ask(ctx context.Context, from <-chan *schema.View, to fabric.Subject, request []byte,
	answers func(*schema.View) bool) (*schema.View, error) {
	for {
		if err := m.conn.Send(to, request); err != nil && !errors.Is(err, fabric.ErrLost) {
			return nil, err
		}
		late := time.NewTimer(retryAfter)
		v, err := m.answered(ctx, from, late.C, answers)
		late.Stop()
		if v != nil || err != nil {
			return v, err
		}
	}
}

// answered waits for an answer; nil says that it is late.
func (m *member) answered(ctx context.Context, from <-chan *schema.View, late <-chan time.Time,
	answers func(*schema.View) bool) (*schema.View, error) {
	for {
		select {
		case v := <-from:
			if answers(v) {
				return v, nil
			}
		case <-late:
			return nil, nil
		case err := <-m.failed:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
