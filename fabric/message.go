package fabric

// Message is one delivery. Data belongs to the receiver, who may write to it, until Release; the receiver that never
// calls it keeps Data for good. Data begins at a multiple of 64 in memory where it came over a data connection.
type Message struct {
	Data []byte

	subject Subject
	text    string // where it is no subject
	parsed  bool
	lease   *Lease // nil: Data has no other user

	borrowedFrom *Buffers // where Data is the publisher's and only for the time of the call; Keep takes a buffer from it
}

// Keep makes Data the receiver's, as it is everywhere but on a connection of Config.Direct: there it ends with the call
// of the handler, unless Keep has made a copy of it.
func (m *Message) Keep() {
	if m.borrowedFrom == nil {
		return
	}
	m.lease = m.borrowedFrom.get(len(m.Data))
	m.Data, m.borrowedFrom = m.lease.room[:copy(m.lease.room, m.Data)], nil
}

// NewMessage is a message with a subject's text, as if it had arrived.
func NewMessage(subject string, data []byte) Message {
	m := Message{Data: data}
	var err error
	if m.subject, err = ParseSubject(subject); err != nil {
		m.text = subject
		return m
	}
	m.parsed = true
	return m
}

// Parse gives the subject, without allocating where it is right.
func (m *Message) Parse() (Subject, error) {
	if m.parsed {
		return m.subject, nil
	}
	return ParseSubject(m.text)
}

// Module is the name of the module that the message is to or from; false where it is about none.
func (m *Message) Module() (name string, is bool) {
	s, err := m.Parse()
	return s.Name, err == nil && s.Kind == KindModule
}

// Text is the subject as it arrived; one allocation.
func (m *Message) Text() string {
	if m.parsed {
		return m.subject.String()
	}
	return m.text
}

// Release is Lease().Release().
func (m *Message) Release() { m.lease.Release() }

// Lease gives the right to Data apart from the message, to be passed on without an allocation. It may be nil, whose
// Release does nothing.
func (m *Message) Lease() *Lease { return m.lease }

// tokenTable keeps one string for each token that a line has seen, so that subjects are read without allocating.
// Bounded, since an unauthenticated client may invent tokens: once full it is emptied.
type tokenTable map[string]string

const tokenTableMax = 4096

func (t tokenTable) keep(token string) string {
	if kept, ok := t[token]; ok {
		return kept
	}
	if len(t) >= tokenTableMax {
		clear(t)
	}
	kept := string([]byte(token))
	t[kept] = kept
	return kept
}

// keepSubject makes a subject's tokens outlive the text they were read from.
func (t tokenTable) keepSubject(s *Subject) {
	s.Job, s.From, s.Kind, s.To = t.keep(s.Job), t.keep(s.From), t.keep(s.Kind), t.keep(s.To)
	if s.Name != "" {
		s.Name = t.keep(s.Name)
	}
}
