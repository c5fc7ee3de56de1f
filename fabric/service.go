package fabric

import (
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go/micro"
)

// ServiceConfig is what a program says of itself to tools that look for services at a NATS server.
type ServiceConfig struct {
	Name        string            // of the kind of service: letters, digits, - and _
	Version     string            // of the program, as in 1.2.3
	Description string            // for people
	Metadata    map[string]string // what does not change while it runs

	// Endpoint and Subject name one question that the service answers, and where it is asked: "status" at
	// "gradbus-ps.a.status".
	Endpoint, Subject string
	// Answer is what is answered, a JSON value: to that question, and as the endpoint's data in $SRV.STATS. It is called
	// by a goroutine of NATS's, must return at once, and what it returns is not to be changed any more. nil says that
	// there is no answer yet.
	Answer func() []byte
}

// serviceBytesMax bounds the questions that wait for one answering goroutine; beyond, they are dropped.
const (
	serviceMessagesMax = 256
	serviceBytesMax    = 1 << 20
)

// Service makes the program known to tools that speak NATS's service protocol: nats micro ls, info and stats find it,
// by subjects $SRV.PING, $SRV.INFO and $SRV.STATS. It lasts until the connection ends, and may be called once. Its
// subscriptions are static. Answers go to the reply subject of who asks, as that protocol has it, and nothing else in
// this package does that: they are JSON, never frames, so that a question which names a member's subject makes nothing
// but a message that does not verify.
func (c *Control) Service(config ServiceConfig) error {
	if c.bus != nil {
		return nil // no tool reaches it
	}
	service, err := micro.AddService(c.nats.nats, micro.Config{
		Name: config.Name, Version: config.Version, Description: config.Description, Metadata: config.Metadata,
		QueueGroupDisabled: true,
		StatsHandler:       func(*micro.Endpoint) any { return json.RawMessage(answerOf(config.Answer)) },
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			c.config.Log.Warn("service fault", "connection", c.config.Name, "subject", err.Subject, "err", err.Description)
		},
	})
	if err != nil {
		return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
	}
	handler := micro.HandlerFunc(func(r micro.Request) {
		if err := r.Respond(answerOf(config.Answer)); err != nil && !isClosed(err) {
			c.config.Log.Debug("service question not answered", "subject", r.Subject(), "err", err)
		}
	})
	if err := service.AddEndpoint(config.Endpoint, handler, micro.WithEndpointSubject(config.Subject),
		micro.WithEndpointPendingLimits(serviceMessagesMax, serviceBytesMax)); err != nil {
		return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
	}
	return nil
}

func answerOf(answer func() []byte) []byte {
	if data := answer(); data != nil {
		return data
	}
	return []byte("null")
}
