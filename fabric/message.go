package fabric

// Message is one delivery. Data belongs to the receiver, who may write to it, until Release; the receiver that never
// calls it keeps Data for good.
type Message struct {
	Data []byte

	subject Subject
	text    string // where it is not what the subject prints as
	parsed  bool
	lease   *Lease // nil: Data is nobody else's
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

// Lease is a receiver's right to the bytes of one message.
type Lease struct{}

// Release gives the bytes back; from then on they may be overwritten at any time. Call it at most once.
func (l *Lease) Release() {}
