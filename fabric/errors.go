package fabric

import "errors"

// Errors that a caller may test for with errors.Is. Every one arrives wrapped in a sentence with the operation, the
// address or subject and what would be right.
var (
	// ErrNoServer: nothing that speaks NATS answered at the address. No connection exists.
	ErrNoServer = errors.New("no gradbus server")
	// ErrRefused: the server answered and turned the connection away (token, certificate). On Dial no connection
	// exists; later it means that the server came back with other credentials, and the connection is closed for good.
	ErrRefused = errors.New("refused by the server")
	// ErrLost: the server is out of reach for the moment. The message may not have been sent; the connection keeps trying
	// and reports Back when it has succeeded.
	ErrLost = errors.New("server lost")
	// ErrPayload: the message is larger than the server accepts. Nothing was sent.
	ErrPayload = errors.New("message too large")
	// ErrClosed: Close was called, on the connection or the window. Nothing was sent.
	ErrClosed = errors.New("closed")
	// ErrSubject: a subject or pattern is not of the form that docs/protocol.md gives. Nothing was sent or subscribed.
	ErrSubject = errors.New("bad subject")
	// ErrPortTaken: another process listens at the address. No server was started.
	ErrPortTaken = errors.New("port taken")
	// ErrNoJetStream: the control server does not have JetStream, or not for this account. Nothing was written.
	ErrNoJetStream = errors.New("no JetStream")
	// ErrDenied: the server does not let this client write what it was asked for. Nothing was written.
	ErrDenied = errors.New("not allowed")
	// ErrNoBucket: the control server has no such bucket, or lost it in a restart. Nothing was written.
	ErrNoBucket = errors.New("no such bucket")
	// ErrKeyExists: another client has written the key. Nothing was written.
	ErrKeyExists = errors.New("key exists")
	// ErrNoKey: the bucket has no such key.
	ErrNoKey = errors.New("no such key")
	// ErrAck: a peer acknowledged what was never sent. The window is as it was.
	ErrAck = errors.New("bad acknowledgement")
)
