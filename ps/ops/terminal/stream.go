package terminal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Stream hands on every update of a ps until ctx ends, or the stream does, whose reason is the error: never nil. A
// stream that is silent for the client's timeout has ended.
func (c *Client) Stream(ctx context.Context, take func(*status.Update)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.config.Timeout,
		func() { cancel(fmt.Errorf("%w at %s: silent for %s", ErrUnreachable, c.base, c.config.Timeout)) })
	defer silent.Stop()
	answer, err := c.get(ctx, "/api/v1/stream", "text/event-stream")
	if err != nil {
		return c.ended(ctx, err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(make([]byte, 64<<10), answerBytesMax)
	var data []byte
	for lines.Scan() {
		silent.Reset(c.config.Timeout)
		line := lines.Bytes()
		if text, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(text, []byte(" "))...)
			continue
		}
		if len(line) > 0 || len(data) == 0 { // other fields, comments
			continue
		}
		update := new(status.Update)
		if err := json.Unmarshal(data, update); err != nil {
			return fmt.Errorf("%s: %w of a version that this one understands: %s", c.base, ErrNotGradbus,
				schema.Clip(err.Error()))
		}
		data = data[:0]
		take(update)
	}
	err = lines.Err()
	if err == nil {
		err = io.EOF
	}
	return c.ended(ctx, err)
}

// ended says why a stream did.
func (c *Client) ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w at %s any more", ErrUnreachable, c.base)
	}
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrToken) || errors.Is(err, ErrNotGradbus) ||
		errors.Is(err, ErrOther) {
		return err
	}
	return c.unreachable(ctx, err)
}
