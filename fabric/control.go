package fabric

import (
	"context"
	"fmt"

	"gradbus/internal/loglimit"

	"github.com/nats-io/nats.go/jetstream"
)

// Control is a member's connection to the NATS server or cluster that carries control: messages between members,
// heartbeats, and the buckets that list ps processes and jobs. Gradients never use it. It reconnects by itself,
// forever, to any server of the cluster. It is safe for concurrent use.
type Control struct {
	config Config
	line   line
	nats   *natsLine           // the line, if it uses nats.go
	js     jetstream.JetStream // there
	bus    *busServer          // the line's server, if it is on a Bus; else nil

	life
}

// DialControl connects. Config.URL may name several servers of one cluster, separated by commas, and may contain
// user:password. Otherwise it behaves like Dial, with the same errors.
func DialControl(ctx context.Context, config Config) (*Control, error) {
	if config.PendingBytesMax == 0 {
		config.PendingBytesMax = PendingBytesMaxDefault
	}
	config.Log = loglimit.Logger(config.Log)
	if err := config.checkURL(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no answer within %s", dialTimeout))
	defer cancel()
	config.Direct = false // handlers of control may take long, and take locks
	c := &Control{config: config, life: life{states: newStateLoop(config.OnState)}}
	if err := c.open(ctx); err != nil {
		c.states.end()
		c.states.wait()
		return nil, err
	}
	c.states.connected()
	return c, nil
}

// open makes the line, over a Bus or over NATS.
func (c *Control) open(ctx context.Context) error {
	bus, err := busOf(&c.config)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	if c.bus = bus; bus != nil {
		l, err := dialBus(&c.config, &c.handlers, c.lineEvent)
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		c.line = l
		return nil
	}
	if c.nats, err = dialNats(ctx, &c.config, controlLine, &c.handlers, c.lineEvent); err != nil {
		return err
	}
	c.line = c.nats
	if c.js, err = jetstream.New(c.nats.nats); err != nil { // only for options that are not used here
		c.line.close()
		return fmt.Errorf("dial %s: %w", address(&c.config), err)
	}
	return nil
}

// asking returns the context of a first request to JetStream, which a server without permission for this client leaves
// unanswered. end returns the error to report: ErrDenied in that case, else that of whileConnected.
func (c *Control) asking(ctx context.Context) (within context.Context, end func(err error) error) {
	within, answered := c.nats.whileConnected(ctx)
	within, cancel := context.WithCancel(within)
	stop := make(chan struct{})
	go func() {
		select {
		case <-c.nats.denied:
			cancel()
		case <-stop:
		}
	}()
	return within, func(err error) error {
		close(stop)
		cancel()
		select {
		case <-c.nats.denied:
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w at %s: it is a ps that takes other ps as its peers only with its control token", ErrDenied,
					c.Address())
			}
		default:
		}
		return answered(err)
	}
}

// Address returns the host and port that was dialed, without credentials, for people.
func (c *Control) Address() string { return address(&c.config) }

// LocalHost returns this machine's address on the route to the server; "" within one process.
func (c *Control) LocalHost() string {
	if c.nats == nil {
		return ""
	}
	return c.nats.localHost()
}

// Publish sends data, which the caller may reuse at once. Nothing is queued while the server is lost. Errors:
// ErrSubject, ErrPayload, ErrLost, ErrRefused, ErrClosed.
func (c *Control) Publish(subject string, data []byte) error {
	parsed, err := ParseSubject(subject)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return c.Send(parsed, data)
}

// Send is Publish without a subject's text.
func (c *Control) Send(at Subject, data []byte) error {
	if err := at.check(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	subject := at.String()
	if most := c.PayloadBytesMax(); len(data) > most {
		return fmt.Errorf("publish %s: %w: %d bytes, and %s takes at most %d: raise max_payload there", subject, ErrPayload,
			len(data), c.Address(), most)
	}
	err := c.line.publish(&at, subject, data)
	if err == nil {
		return nil
	}
	if closed := c.Err(); closed != nil {
		return fmt.Errorf("publish %s: %w", subject, closed)
	}
	return fmt.Errorf("publish %s: %w: %w", subject, ErrLost, err)
}

// PayloadBytesMax returns the size of the largest message that the server accepts.
func (c *Control) PayloadBytesMax() int { return c.line.payloadMax() }

// Subscribe calls the handler for every message that matches the pattern, in order, on its own goroutine, until Close.
// The subscription is active at the server when Subscribe returns. A handler must not call Close.
func (c *Control) Subscribe(pattern string, handler func(Message)) error {
	if _, err := routePattern(pattern); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return c.subscribe(c.line, pattern, handler)
}

// Stats returns the counts.
func (c *Control) Stats() (s Stats) {
	c.line.count(&s)
	return s
}

// Flush waits until the server has processed everything published before, at most 5 s.
func (c *Control) Flush(ctx context.Context) error {
	return c.flush(ctx, c.line)
}

// Close sends pending messages, closes the connection and waits until every handler and OnState have returned. It may
// be called again.
func (c *Control) Close() {
	c.fail(fmt.Errorf("connection %w", ErrClosed))
	c.line.close()
	c.states.end()
	c.handlers.Wait()
	c.states.wait()
}
