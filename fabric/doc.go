// Package fabric carries bytes between the members of a job over NATS. StartServer embeds a server, Dial and
// DialControl connect a member, Subject names a message, and Outbox and Inbox are the two ends of a window that
// retransmits what is lost. A Bus replaces NATS within one process.
//
// # What it knows and what it must not know
//
// It knows the names of members, kinds of messages and sequence numbers. It does not know the contents of a frame:
// neither gradients, nor shapes, nor what a batch is. It imports nats.go, nats-server and the standard library only.
// The only thing that it reads and writes inside a frame is the sequence number, through an Envelope that its caller
// supplies. Ids are plain strings and integers here; callers have types for them.
//
// # The pieces
//
//	Server    an embedded NATS server, for ./bin/ps and for tests          server.go
//	Guard     permissions and limits of connections from outside           callout.go
//	Key       the credential of a member                                    key.go
//	Conn      a member's lines to a server: bulk, results and control      conn.go
//	dataLine  a line that speaks the protocol itself, for bulk             dataline.go, wire.go
//	natsLine  a line over nats.go, for control                             natsline.go
//	Bus       servers and lines within one process                         bus.go, busline.go, busbucket.go
//	Control   a member's connection to the server that carries control     control.go
//	Service   a program as NATS's own tools find it                        server.go
//	Bucket    keys and values at that server, in JetStream                 bucket.go
//	Payload   bytes to send, with room around them                         message.go
//	Message   a delivery, and the lease of its bytes                       message.go
//	State     Connected, Lost, Back, Closed                                conn.go
//	Subject   gradbus.v1.{job}.{from}.{kind}.{to}[.{batch}[.{bucket}]]     subject.go
//	          gradbus.v1.{job}.{from}.module.{to}.{name}
//	Ask       a request that is repeated until it is answered              conn.go
//	Outbox    sending side of a window: numbers, keeps, retransmits        outbox.go
//	Inbox     receiving side: what has arrived, how much more may come     inbox.go
//	Receipt   an Inbox, and when to acknowledge                            inbox.go
//	RoundTrips how long answers take, and when one is overdue              outbox.go
//
// A newcomer may add a kind (subject.go), an error (conn.go) and anything to tests. The rules of Outbox and Inbox are
// part of the protocol: changing them changes docs/protocol.md and every other client.
//
// # The data connection
//
// Bulk leaves a member on one connection, and results arrive on another; both speak NATS's protocol to an unmodified
// server with as few copies as that server allows. Config.Plain replaces them by nats.go, and the tests of connections
// run over both; nats.go keeps order within a pattern only, a data connection over all messages.
//
// Send writes header, frame and end with one system call from where they lie. Without a TCP socket, in process or under
// TLS, it copies up to 64 KiB of them together; SendInPlace copies nothing of a Payload with room around it. A payload
// is read from the connection right into a leased buffer whose first byte is at a multiple of 64, and the goroutine
// that reads calls the handler. The owner of the Message, or of its Lease, may pass it on and releases it once; the
// buffer is then reused. A second Release panics if it can be detected; without a Release the garbage collector frees
// the buffer.
//
// Handlers run where reading happens, which is also the back-pressure: while one runs, messages wait in the socket and
// in the server. The server cuts off a reader that is more than ServerConfig.PendingBytesMax behind. The reader's state
// becomes Lost, it reconnects, counts that, and windows retransmit what was dropped. So the sum of the windows that
// lead to one reader has to stay below half of that bound.
//
// A server reads 64 KiB at a time and passes on from there what one read contains completely; it first assembles the
// rest in new memory. So messages up to 1 KiB short of 64 or 32 KiB are padded with spaces between the words of their
// header. If messages of other sizes have put the stream out of step, a message without subscribers realigns it, at
// most once per mebibyte. The largest such frame has 65024 bytes of values. docs/memory.md counts the copies.
//
// Each line has two goroutines: one reads and reconnects, one sends a PING every 5 s and cuts a connection whose server
// has sent nothing for two of them, or has accepted nothing of a message for 10 s. Whatever a server sends, the worst
// result for a member is an error and a new connection: lengths are checked against max_payload and 64 MiB before
// memory is allocated.
//
// # Within one process
//
// A Bus replaces NATS: the same Server, Conn, Control and Bucket, by addresses of the Bus. Send of a connection hands
// the message to each matching subscription. If the receiving connection is Direct, its handler runs within Send, under
// the locks of the sender, and may send in turn; so it must not take a lock that is held while sending. Otherwise each
// subscription has a bounded queue and a goroutine. Lend gives a receiver the sender's own bytes for as long as the two
// have agreed on; other data is copied where it is kept. Windows stay, for what a stopped server loses. The Bus itself
// has no goroutine and no timer, so it works in testing/synctest.
//
// # How a frame is delivered exactly once
//
// NATS delivers at most once. Outbox numbers the frames of one (sender, receiver) pair from 1 without gaps and keeps
// each until it is acknowledged. Inbox marks what has arrived, so that a repeat is recognized, and makes an Ack: all up
// to Cumulative, a bitmap over the 256 after it, and a credit in bytes. Acks are sent at once for a gap and a repeat,
// soon for anything else, and whenever credit was returned; each has the whole state, so any of them may be lost.
//
// A frame is retransmitted
//
//   - when one that was sent after it has arrived, once for each such piece of evidence; a frame that was sent several
//     times proves no more than its first transmission would;
//   - when nothing was acknowledged for as long as round trips may take (RoundTrips): one only, the newest, whose ack
//     tells what else is missing, or every other time the oldest;
//   - when such a retransmission is answered, and no frame that was sent once: twice as many as have arrived of those
//     that were in flight when the wait ended, the oldest first;
//   - when the connection is back (ResendAll): all;
//   - when the receiver had no credit for it and now has.
//
// The credit is absolute, counted from the first byte of the first frame: it cannot be misread when acks overtake each
// other, and it never falls. It rises when the receiver has processed frames, not when they arrive. If a sender has no
// credit left and nothing in flight, the ack that granted credit may have been lost: then Tick sends one frame beyond
// the credit, which the receiver refuses with an ack.
//
// The timeout follows from measured round trips, as in TCP (RFC 6298): mean, four deviations, and the time for which
// the receiver may delay an ack; at least 50 ms above the mean, at most 5 s, doubled when it was too short. A frame that
// was sent twice is not measured (Karn's rule), so a doubling stays until another one is. A gap needs no clock: the
// evidence that a retransmission was lost was sent after it, so no gap is answered twice within a round trip. A process
// that was suspended does not treat the acks that it has not read as lost: Tick looks twice.
//
// An ack means received. Other messages say that a batch is complete, or durable.
//
// # Bounds
//
//	frames in flight             256 a window               what the bitmap covers
//	bytes in flight              4 MiB a window             OutboxConfig.BytesMax; a single larger frame goes alone
//	bytes held by a receiver     NewInbox's argument        at least one frame, and whatever cannot be processed before
//	                                                        later frames of the same sender have arrived
//	message                      8 MiB                      ServerConfig.PayloadBytesMax, known to Conn from the server
//	waiting in the server        256 MiB a reader           ServerConfig.PendingBytesMax; then the reader is cut off; keep the
//	                                                        sum of the windows that lead to one reader below half of it
//	waiting for a handler        nothing                    on results; unhandled messages are not read
//	  on control                 256 MiB, 65536 messages    Config.PendingBytesMax; then messages are dropped and counted
//	buffers of messages          those not released
//	  and free ones              32 MiB a Conn              Config.Buffers; or all that share them
//	reading and writing a line   33 KiB                     and 64 KiB where there is no TCP socket, in process or under TLS
//	connections under a Guard    four a member; 256 others, whose messages are small; 32 subscriptions each: callout.go
//	tokens of subjects           4096 a line, of 63 bytes
//	while the server is lost     nothing is queued          Publish returns ErrLost; windows retransmit
//	unreported states            4                          a loss and return represent all later ones
//	Dial                         5 s                        or less by ctx
//	Publish into a full socket   10 s                       then the server counts as lost
//	Close                        1 s a line, 5 s handlers   a handler that still runs is logged
//
// # Locks and goroutines
//
// Outbox: turn, then mu; mu is never held while publishing. callout.mu, then the locks of NATS. Conn.mu and stateLoop.mu
// are leaves: nothing is called under them except to read a subscription's counter. dataLine: writer.mu,
// then mu; writer.mu is held while writing, mu never. Buffers.mu is a leaf. Inbox has no lock. A Conn owns one
// goroutine for OnState, two for each data line, NATS's own for control (reader, flusher, callbacks), and one for
// each subscription there; Close waits for those that run foreign code.
//
// # Measured
//
// Two cores of a Xeon (model 207), go test -bench . ./fabric, all in one process. Request to answer, through the
// server and both handlers:
//
//	128 B over loopback TCP                24 µs p50, 53 µs p99
//	4 KiB                                  26 µs p50
//	128 B while 256 KiB frames stream      22 µs p50, 1.5 ms p99 (two cores are one too few for it)
//	128 B, answering side in process       18 µs p50
//	256 KiB both ways                      0.84 ms p50
//
// So an explicit flush would save nothing over the flusher of nats.go, which sends what Publish left in its buffer. Over
// a data connection, whose two directions are two connections, the same takes a few µs more.
//
// A window with one sender, everything in one process, on two cores of an AMD EPYC that were busy with other work;
// the best of six runs, MB/s:
//
//	frames                   over data connections    over nats.go
//	4 KiB, TCP               410                      310
//	63.5 KiB, TCP            990                      610
//	256 KiB, TCP             950                      530
//	63.5 KiB, in process     1530                     680
//	256 KiB, in process      1390                     990
//
// ParseSubject takes 0.11 µs and allocates nothing; Server.Clients some 3 µs a connection. docs/memory.md has the
// time of several trainers to one shard by size of message.
//
// # Left out
//
// This package knows no roles: Guard.Grant says what a key may do. JetStream stores buckets and nothing else: gradients never pass through it. Headers and reply fields are not
// used, except in answers to NATS's own tools (server.go): headers destroy the alignment of frames, and reply fields
// let a message choose where an answer goes.
package fabric
