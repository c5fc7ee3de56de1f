package fabric

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// connectTimeout bounds one attempt to connect, and again one handshake: a loopback needs a millisecond, a long
	// way with a lost packet a second, and a machine that is busy with other things some.
	connectTimeout = 5 * time.Second
	// writeTimeout bounds a Publish whose socket is full: a server that takes nothing for so long counts as lost.
	writeTimeout = 10 * time.Second
	// closeGrace is what Close gives a full socket to empty.
	closeGrace = time.Second
	// reconnectAfterMax bounds the pause between attempts, which begins at up to 50 ms and doubles.
	reconnectAfterMax = time.Second
)

type lineEvent int

const (
	lineLost lineEvent = iota
	lineBack
	lineEnded
)

// line is one connection of a Conn: natsLine over nats.go, or dataLine over fabric's own. Both reconnect for ever.
type line interface {
	// publish sends a message. text is the subject's where the caller has it, else "". Errors: errReconnecting,
	// errPayload, or what the connection says, after which whether the message went out is not known.
	publish(s *Subject, text string, data []byte) error
	// subscribe returns when the server knows the subscription.
	subscribe(pattern string, handler func(Message)) error
	// unsubscribe ends the subscriptions of a pattern. A handler that runs is not waited for.
	unsubscribe(pattern string)
	// flush waits for the server's word that it has taken in what was sent. ctx must have a deadline.
	flush(ctx context.Context) error
	isLost() bool
	payloadMax() int
	count(*Stats)
	// close ends the line within about closeGrace and tells nothing afterwards. Handlers may still run.
	close()
}

// errPayload: the message is larger than the server takes.
var errPayload = errors.New("larger than max_payload")

// reconnectAfter is the pause before an attempt to connect again: between half of what it may be and all of it, so that
// clients which lost a server together do not reconnect together. The point in between is a function of the names of
// connection and line and of the attempt alone: a simulation has the same pauses each time.
func (l lineIndex) reconnectAfter(connection string, attempts int) time.Duration {
	most := min(50*time.Millisecond<<min(attempts-1, 10), reconnectAfterMax)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d %d", connection, l, attempts)
	z := h.Sum64() // which the end of the text alone hardly changes in its upper bits: mixed as by SplitMix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return most/2 + time.Duration((z^z>>31)%uint64(most/2+1))
}

// dialed is how far an attempt to connect came.
type dialed struct {
	reached bool  // something listens there
	dialErr error // why it was not reached
	tls     *tlsWitness
}

// explain says what is wrong with an attempt to connect and what would be right.
func (d *dialed) explain(ctx context.Context, config *Config, err error) error {
	at := address(config)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("dial %s: %w", at, context.Cause(ctx))
	}
	if ctx.Err() != nil { // what is known otherwise is that the socket was closed
		err = context.Cause(ctx)
	}
	switch {
	case d.dialErr != nil:
		return fmt.Errorf("%w at %s: %w; ./bin/ps starts one", ErrNoServer, at, d.dialErr)
	case !d.reached: // no attempt was made
		return fmt.Errorf("dial %s: %w", at, err)
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, errUnauthorized):
		if config.Token == "" {
			return fmt.Errorf("dial %s: %w: it asks for a token and none was given", at, ErrRefused)
		}
		return fmt.Errorf("dial %s: %w: wrong token", at, ErrRefused)
	}
	if wrong := d.tls.explain(err); wrong != nil {
		return fmt.Errorf("dial %s: %w: %w", at, ErrRefused, wrong)
	}
	return fmt.Errorf("%w at %s: something listens there, but the NATS greeting failed (%w): it is another program, or "+
		"has no room for more connections; ./bin/ps starts one",
		ErrNoServer, at, err)
}

func address(config *Config) string {
	if config.Server != nil && config.Server.bus == nil {
		return "the server of this process"
	}
	if config.Server != nil {
		return config.Server.bus.at
	}
	var hosts []string
	for one := range strings.SplitSeq(config.URL, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Host == "" {
			return clip(WithoutUser(config.URL))
		}
		hosts = append(hosts, u.Host)
	}
	return strings.Join(hosts, ",")
}

// WithoutUser takes what may be a password out of addresses, separated by commas, for people to see. They need not be
// valid.
func WithoutUser(addresses string) string {
	all := strings.Split(addresses, ",")
	for i, one := range all {
		scheme, rest, found := strings.Cut(one, "://")
		if !found {
			scheme, rest = "", one
		}
		rest = rest[strings.LastIndex(rest, "@")+1:]
		if found {
			rest = scheme + "://" + rest
		}
		all[i] = rest
	}
	return strings.Join(all, ",")
}
