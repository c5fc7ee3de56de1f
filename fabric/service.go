package fabric

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
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

const (
	// serviceMessagesMax and serviceBytesMax bound the questions that wait for one answering goroutine; beyond, they are
	// dropped.
	serviceMessagesMax = 256
	serviceBytesMax    = 1 << 20

	// inboxPrefix begins the reply subjects of NATS's clients, and memberInboxPrefix those of this package's connections.
	inboxPrefix       = "_INBOX."
	memberInboxPrefix = inboxPrefix + "gradbus"
)

// serviceSubjects gives the subjects at which a verb of NATS's service protocol is asked: of all services, of those of
// a name, and of one alone.
func serviceSubjects(verb micro.Verb, identity *micro.ServiceIdentity) (subjects []string) {
	for _, of := range [][2]string{{}, {identity.Name}, {identity.Name, identity.ID}} {
		subject, err := micro.ControlSubject(verb, of[0], of[1])
		if err != nil {
			panic(err) // only for verbs that do not exist
		}
		subjects = append(subjects, subject)
	}
	return subjects
}

// Service makes the program known to tools that speak NATS's service protocol: nats micro ls, info and stats find it,
// by subjects $SRV.PING, $SRV.INFO and $SRV.STATS. It lasts until the connection ends, and may be called once. Its
// subscriptions are static.
func (c *Control) Service(config ServiceConfig) error {
	if c.bus != nil {
		return nil // no tool reaches it
	}
	s := &service{line: c.nats}
	identity := micro.ServiceIdentity{Name: config.Name, ID: newSecret(), Version: config.Version,
		Metadata: config.Metadata}
	started := time.Now().UTC()
	answer := func() json.RawMessage {
		if data := config.Answer(); data != nil {
			return data
		}
		return json.RawMessage("null")
	}
	answers := map[string]func() any{config.Subject: func() any { return answer() }}
	for verb, says := range map[micro.Verb]func() any{
		micro.PingVerb: func() any { return &micro.Ping{ServiceIdentity: identity, Type: micro.PingResponseType} },
		micro.InfoVerb: func() any {
			return &micro.Info{ServiceIdentity: identity, Type: micro.InfoResponseType, Description: config.Description,
				Endpoints: []micro.EndpointInfo{{Name: config.Endpoint, Subject: config.Subject}}}
		},
		micro.StatsVerb: func() any {
			return &micro.Stats{ServiceIdentity: identity, Type: micro.StatsResponseType, Started: started,
				Endpoints: []*micro.EndpointStats{{Name: config.Endpoint, Subject: config.Subject,
					NumRequests: int(s.answered.Load()), NumErrors: int(s.refused.Load()), Data: answer()}}}
		},
	} {
		for _, subject := range serviceSubjects(verb, &identity) {
			answers[subject] = says
		}
	}
	if err := c.addHandler(); err != nil { // Close waits for what is subscribed here
		return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
	}
	defer c.handlers.Done()
	for subject, says := range answers {
		if err := c.nats.subscribeWithin(subject, serviceMessagesMax, serviceBytesMax, func(m *nats.Msg) {
			s.respond(m, says)
		}); err != nil {
			return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
		}
	}
	return nil
}

// service answers what tools ask.
type service struct {
	line              *natsLine
	answered, refused atomic.Uint64
}

// respond answers a question at the subject that its sender chose. This is the only place that publishes to such a
// subject. The connection may write to JetStream, so a reply subject outside of the inboxes of NATS's clients would
// have a stranger write there in our name ($KV.gradbus-servers.ID); one among the inboxes of members would forge an
// answer of JetStream's.
func (s *service) respond(m *nats.Msg, says func() any) {
	if !strings.HasPrefix(m.Reply, inboxPrefix) || strings.HasPrefix(m.Reply, memberInboxPrefix+".") {
		s.line.config.Log.Warn("service question refused, its reply subject is no inbox", "connection",
			s.line.config.Name, "subject", clip(m.Subject), "reply", clip(m.Reply), "refused", s.refused.Add(1))
		return
	}
	s.answered.Add(1)
	data, err := json.Marshal(says())
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !isClosed(err) {
		s.line.config.Log.Debug("service question not answered", "subject", m.Subject, "err", err)
	}
}
