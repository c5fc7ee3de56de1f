// Package chaos is test support: a TCP proxy between members and a NATS server that understands the client protocol
// well enough to harm it. Whole messages are dropped, repeated, delayed, put behind later ones, or have one bit of
// their payload changed; connections are cut, refused, or stop being read. Neither side needs to know, so that
// unchanged programs can be tested, as goroutines or as processes.
//
// # What it knows and what it must not know
//
// It knows how PUB, HPUB, MSG and HMSG are framed, and where a subject of gradbus names its kind. Everything else
// passes unchanged and in its place. It does not know what is in a payload, and imports the standard library alone. It
// cannot read TLS.
//
//	Proxy      listener, connections, switches: cut, refuse, stall            proxy.go
//	Rule       which messages suffer what, and how often                      rule.go
//	pipe       one direction of one connection: reads, decides, passes on     pipe.go, frame.go
//	Counts     what was done to how many, by direction and kind               counts.go
//
// # What a seed fixes
//
// The n-th message of one sender to one subject over one named connection suffers the same under the same seed and
// rules, whatever else is going on; so the first transmission of every frame does. Which frames are sent again, and how
// often, is the members' affair and follows their timing.
//
// # Bounds
//
//	one message           16 MiB; a larger one ends its connection
//	a control line        64 KiB, as in nats-server
//	held back, a pipe     1,024 messages and 16 MiB; beyond them nothing is delayed or put behind, which is counted
//	remembered subjects   131,072; then the count of the least recently used half starts from zero
//
// Every goroutine belongs to the Proxy; Close waits for all of them.
package chaos
