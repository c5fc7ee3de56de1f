package terminal

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Check is one line of a ps's /readyz?verbose.
type Check struct {
	Failed bool
	Text   string
}

// readyBytesMax bounds an answer of /readyz.
const readyBytesMax = 64 << 10

// Ready asks a ps whether it can do its work, and for the checks that say so.
func (c *Client) Ready(ctx context.Context) (ready bool, checks []Check, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	request, err := c.request(ctx, "/readyz?verbose", "text/plain")
	if err != nil {
		return false, nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return false, nil, c.unreachable(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusServiceUnavailable {
		return false, nil, c.refused("/readyz", answer)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, readyBytesMax))
	if err != nil {
		return false, nil, fmt.Errorf("ask %s: /readyz: %w", c.base, err)
	}
	for line := range strings.Lines(string(body)) {
		word, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		checks = append(checks, Check{word == "failed", strings.TrimSpace(text)})
	}
	return answer.StatusCode == http.StatusOK, checks, nil
}
