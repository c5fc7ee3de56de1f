// Package terminal shows in a terminal what a ps tells on its page.
//
//   - Client (client.go) asks a ps, and says in one line why it does not answer.
//   - Text (screen.go) is pure: a status in, text out. Texts in a status come from other machines, so a terminal never
//     receives what it would take for a command.
//
// It knows the ps by its API only and takes nothing from the process it runs in: neither environment nor standard
// streams.
package terminal

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// URLDefault is where a ps serves its page unless it is told otherwise.
const URLDefault = "http://127.0.0.1:8080"

// Config is whom a Client asks.
type Config struct {
	URL     string        // of the page, without a path: http://127.0.0.1:8080
	Token   string        // that is shown; empty is none
	TLS     *tls.Config   // for https; nil is the system's certificates
	Timeout time.Duration // of one request; 0 is 5 s
}

// Client asks one ps. It is safe for use by several goroutines.
type Client struct {
	config Config
	base   string
	http   *http.Client
}

const (
	timeoutDefault = 5 * time.Second
	// answerBytesMax bounds an answer: a thousand trainers take about 1 MiB.
	answerBytesMax = 64 << 20
)

// NewClient checks an address. It sends no request yet.
func NewClient(c Config) (*Client, error) {
	if c.Timeout == 0 {
		c.Timeout = timeoutDefault
	}
	if !strings.Contains(c.URL, "://") {
		c.URL = "http://" + c.URL // as in 127.0.0.1:8080, which people write
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--ps %q: want the URL of a ps's page, for example %s", schema.Clip(c.URL), URLDefault)
	case u.Scheme == "nats":
		return nil,
			fmt.Errorf("--ps %s: that is the address for trainers; want the URL of the page, which the ps names when it "+
				"starts, for example %s", c.URL, URLDefault)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "",
		u.Path != "" && u.Path != "/":
		return nil, fmt.Errorf("--ps %q: want http:// or https:// and a host, for example %s", schema.Clip(c.URL), URLDefault)
	}
	transport := &http.Transport{TLSClientConfig: c.TLS, ResponseHeaderTimeout: c.Timeout,
		DialContext: (&net.Dialer{Timeout: c.Timeout}).DialContext}
	return &Client{config: c, base: u.Scheme + "://" + u.Host,
		http: &http.Client{Transport: transport, CheckRedirect: refuseRedirect}}, nil
}

// refuseRedirect returns a redirect as the answer: a token is sent only to the named ps.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// URL returns the address of the ps, without a path.
func (c *Client) URL() string { return c.base }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Errors of a Client: each is one line that says what to do.
var (
	// ErrUnreachable reports that no ps answers at the address.
	ErrUnreachable = errors.New("no ps answers")
	// ErrToken is said where the ps wants another token than was shown, or one at all.
	ErrToken = errors.New("the ps wants a token")
	// ErrNotGradbus is said where something else than a ps answers.
	ErrNotGradbus = errors.New("this is not a gradbus ps")
	// ErrOther is said where a ps answers something that this version does not know.
	ErrOther = errors.New("the ps does not answer this")
	// errNotYet is said by a ps that has just begun.
	errNotYet = fmt.Errorf("%w yet", ErrOther)
)

// notYetEvery is the interval of requests to a ps that has just started.
const notYetEvery = 200 * time.Millisecond

// Status asks for a status. raw is the answer as it came, without line breaks. A ps that has just begun, and has none
// yet, is asked again until the client's time is over.
func (c *Client) Status(ctx context.Context) (view *status.Status, raw []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	for {
		again := err
		if raw, err = c.get(ctx, "/api/v1/status"); again != nil && ctx.Err() != nil {
			return nil, nil, again
		}
		if !errors.Is(err, errNotYet) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, nil, err
		case <-time.After(notYetEvery):
		}
	}
	if err != nil {
		return nil, nil, err
	}
	view = new(status.Status)
	if err := decode(raw, view); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.base, err)
	}
	return view, oneLine(raw), nil
}

// Events asks for what happened after an event; 0 is from the oldest on that is kept.
func (c *Client) Events(ctx context.Context, since uint64) ([]status.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	raw, err := c.get(ctx, "/api/v1/events?since="+strconv.FormatUint(since, 10))
	if err != nil {
		return nil, err
	}
	var of struct {
		Events []status.Event `json:"events"`
	}
	if err := json.Unmarshal(raw, &of); err != nil {
		return nil, fmt.Errorf("%s: %w: events: %s", c.base, ErrNotGradbus, schema.Clip(err.Error()))
	}
	return of.Events, nil
}

// decode reads a status and holds it to what every status has.
func decode(raw []byte, view *status.Status) error {
	if err := json.Unmarshal(raw, view); err != nil {
		return fmt.Errorf("%w of a version that this one understands: %s", ErrNotGradbus, schema.Clip(err.Error()))
	}
	if view.Version == "" || view.NowMS == 0 || view.Why.Level == "" {
		return fmt.Errorf("%w: its /api/v1/status names no version, time or level", ErrNotGradbus)
	}
	return nil
}

func oneLine(raw []byte) []byte {
	return []byte(strings.TrimSpace(strings.NewReplacer("\n", "", "\r", "").Replace(string(raw))))
}

// get sends one request and reads the answer, which is JSON.
func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base, err)
	}
	request.Header.Set("Accept", "application/json")
	if c.config.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.config.Token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		return nil, c.refused(path, answer)
	}
	raw, err := io.ReadAll(io.LimitReader(answer.Body, answerBytesMax))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return raw, nil
}

// refused says what an answer other than the one asked for means.
func (c *Client) refused(path string, answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)) // what cannot be read tells nothing
	var said struct {
		Error string `json:"error"`
	}
	known := json.Unmarshal(text, &said) == nil && said.Error != ""
	more := ""
	if known {
		more = ": it says: " + schema.Clip(clean(said.Error))
	}
	switch {
	case answer.StatusCode == http.StatusUnauthorized:
		if c.config.Token == "" {
			return fmt.Errorf("%s: %w: name the file that has it with --http-token-file%s", c.base, ErrToken, more)
		}
		return fmt.Errorf("%s: %w, and another one than --http-token-file has%s", c.base, ErrToken, more)
	case strings.Contains(string(text), "HTTP request to an HTTPS server"):
		return fmt.Errorf("%s: it speaks TLS: say https:// instead of http://, and --http-ca FILE where its "+
			"certificate is its own", c.base)
	case known && answer.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%s: %w%s", c.base, errNotYet, more)
	case known && answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s: %w, %s: it is of another version than this command%s", c.base, ErrOther, path, more)
	case known:
		return fmt.Errorf("%s: %w, %s (%s)%s", c.base, ErrOther, path, clean(answer.Status), more)
	}
	return fmt.Errorf("%s: %w: it answers %s with %s, %s", c.base, ErrNotGradbus, path, clean(answer.Status),
		schema.Clip(clean(cmp.Or(answer.Header.Get("Content-Type"), "of no type"))))
}

// unreachable says why a request had no answer.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return cause
	}
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("%s: its certificate is signed by an unknown authority: name its file with --http-ca: %w", c.base,
			ErrUnreachable)
	case errors.As(err, &hostname), errors.As(err, &invalid):
		return fmt.Errorf("%s: its certificate does not hold: %s: %w", c.base, schema.Clip(last(err).Error()), ErrUnreachable)
	case strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return fmt.Errorf("%s: it speaks no TLS: say http:// instead of https://: %w", c.base, ErrUnreachable)
	case strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), "readLoopPeekFail"):
		// the latter where it speaks before it is asked
		return fmt.Errorf("%s: %w: what answers speaks no HTTP (trainers' port? The page has one of its own)", c.base,
			ErrNotGradbus)
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w at %s within %s", ErrUnreachable, c.base, c.config.Timeout)
	}
	return fmt.Errorf("%w at %s: %s (start one with ./bin/ps, or name another with --ps)", ErrUnreachable, c.base,
		schema.Clip(last(err).Error()))
}

// last returns the innermost text of an error: "connection refused" without the addresses.
func last(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
