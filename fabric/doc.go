// Package fabric carries bytes between the members of a job over NATS: an embedded server, connections, subjects, and
// windows that make sure of arrival.
//
// # What it knows and what it must not know
//
// It knows members' names, kinds of message and numbers of frames. It does not know what is in a frame: not
// gradients, not shapes, not what a batch is. It imports nats.go, nats-server and the standard library only. The one
// thing it reads and writes inside a frame is the sequence number, through an Envelope that its caller supplies. Ids
// are plain strings and integers here; callers have types for them.
//
// # The pieces
//
//	Server    an embedded NATS server, for ./bin/ps and for tests          server.go
//	Guard     what connections from outside may do, and how much        door.go
//	Conn      a member's lines to a server: bulk, results and control      conn.go
//	dataLine  a line that speaks the protocol itself, for bulk             dataline.go, wire.go
//	natsLine  a line over nats.go, for control                             natsline.go
//	Bus       servers and lines within one process                         bus.go, busline.go, busbucket.go
//	Control   a member's connection to the server that carries control     control.go
//	Service   a program as NATS's own tools find it                        server.go
//	Bucket    keys and values at that server, in JetStream                 bucket.go
//	Payload   bytes to be sent, with room around them                      message.go
//	Message   a delivery, and the lease of its bytes                       message.go
//	State     Connected, Lost, Back, Closed                                conn.go
//	Subject   gradbus.v1.{job}.{from}.{kind}.{to}[.{batch}[.{bucket}]]     subject.go
//	          gradbus.v1.{job}.{from}.module.{to}.{name}
//	Ask       a request that is repeated until it is answered              conn.go
//	Outbox    sending side of a window: numbers, holds, sends again        outbox.go
//	Inbox     receiving side: what has arrived, how much more may come     inbox.go
//	Receipt   an Inbox, and when its sender is to hear of it               inbox.go
//	RoundTrips how long answers take, and when one is overdue             outbox.go
//
// A newcomer may add a kind (subject.go), an error (conn.go) and anything to tests. The rules of Outbox and Inbox are
// protocol: a change of them is a change of docs/protocol.md and of every other client.
//
// # The data connection
//
// Bulk leaves a member on one connection and comes in on another, results; both speak NATS's protocol to an
// unmodified server with as few copies as that server allows. Config.Plain puts nats.go in their place, and the tests
// of connections run over both; it keeps order within a pattern only, where a data connection keeps it over all.
//
// Send writes header, frame and end with one system call from where they lie. Without a TCP socket, in process or
// under TLS, it copies up to 64 KiB of them together; SendInPlace copies nothing, of a Payload with room around it. A
// payload is read from the connection right into a leased buffer whose first byte is at a multiple of 64, and the
// handler is called by the goroutine that reads. Who has the Message, or its Lease, may pass it on and releases it
// once; the buffer is then used again. A second Release panics, as far as it can be told; none at all leaves the
// buffer to the collector.
//
// That handlers run where reading happens is also the back-pressure: while one runs, messages wait in the socket and
// in the server. A reader that is more than ServerConfig.PendingBytesMax behind is cut off. It is told Lost,
// reconnects, counts that, and windows send again what was dropped: so the windows that lead to a reader have to fit
// below half of that bound.
//
// A server reads 64 KiB at a time and passes on from there what lies whole in one read; the rest it first puts together
// in fresh memory. So messages up to 1 KiB short of 64 or 32 KiB are filled up with spaces between the words of their
// header, and where another size has put the stream out of step, a message without subscribers realigns it, once per
// mebibyte at most. A frame of 65024 bytes of values is the largest that fits. docs/memory.md counts the copies.
//
// Each line has two goroutines: one reads and reconnects, one sends a PING every 5 s and cuts a connection whose
// server has said nothing for two of them, or has taken nothing of a message for 10 s. Whatever a server says, the
// worst it can do to a member is an error and a new connection: lengths are checked before memory is taken, against
// max_payload and 64 MiB.
//
// # Within one process
//
// A Bus takes the place of NATS: the same Server, Conn, Control and Bucket, by addresses of the Bus. Send of a
// connection hands the message to each subscription that it matches. Where the receiving connection is Direct its
// handler runs within Send, under whatever the sender holds, and may send in turn; so it takes no lock that anybody
// holds while sending. Elsewhere each subscription has a queue, bounded, and a goroutine. Lend gives a receiver the
// sender's own bytes for as long as the two have agreed on; what is not lent is copied where it is kept. Windows
// stay, for what a stopped server loses. No goroutine and no timer is the Bus's own, so that it lives in
// testing/synctest.
//
// # How a frame gets across, exactly once
//
// NATS delivers at most once. Outbox numbers the frames of one (sender, receiver) pair from 1 without gaps and keeps
// each until it is acknowledged. Inbox marks what has arrived, so that a repetition is known as one, and makes an
// Ack: all up to Cumulative, a bitmap over the 256 after it, and a credit in bytes. Acks are sent at once for a gap
// and a repetition, soon for what else arrives, and whenever credit was given back; each says everything, so that any
// may be lost.
//
// A frame is sent again
//   - when one that was sent after it has arrived, once for each such piece of evidence; a frame that was sent several
//     times proves no more than its first sending would;
//   - when nothing was acknowledged for as long as round trips may take (RoundTrips): one only, the newest, whose ack
//     tells what else is missing, or every other time the oldest;
//   - when such a one is answered and no frame that was sent once: twice as many as have arrived of those that were on
//     the way when the wait was over, the oldest first;
//   - when the connection is back (ResendAll): all;
//   - when the receiver had no credit for it and now has.
//
// The credit is absolute, counted from the first byte of the first frame: it cannot be misread when acks overtake each
// other, and it never falls. It moves when the receiver has worked frames off, not when they arrive. Where a sender has
// no credit left and nothing on the way, the ack that would grant it may be the one that was lost: then Tick lets one
// frame go beyond the credit, which the receiver refuses with an ack.
//
// How long that is follows from round trips that were measured, as in TCP (RFC 6298): mean, four deviations, and what
// the receiver may put an ack off by; at least 50 ms above the mean, at most 5 s, doubled when it was not enough.
// What was sent twice is no measure (Karn's rule), so a doubling stays until something is. A gap needs no clock: what
// proves that a repetition was lost left after it, so no gap is answered twice within a round trip. A process that
// was kept from running does not take the acks it has not read for lost: Tick looks twice.
//
// An ack says received. That a batch is complete, or safe on a disk, is said by others in other messages.
//
// # Bounds
//
//	frames on the way            256 a window               what the bitmap covers
//	bytes on the way             4 MiB a window             OutboxConfig.BytesMax; a single larger frame goes alone
//	bytes held by a receiver     NewInbox's argument        at least one frame, and whatever cannot be worked off before
//	                                                        later frames of the same sender have come
//	message                      8 MiB                      ServerConfig.PayloadBytesMax, known to Conn from the server
//	waiting in the server        256 MiB a reader           ServerConfig.PendingBytesMax; then the reader is cut off; keep the
//	                                                        sum of the windows that lead to one reader below half of it
//	waiting for a handler        nothing                    on results; what is not handled is not read
//	  on control                 256 MiB, 65536 messages    Config.PendingBytesMax; then messages are dropped and counted
//	buffers of messages          what was not released
//	  and waits to be used again 32 MiB a Conn              Config.Buffers; or all that share them
//	reading and writing a line   33 KiB                     and 64 KiB where there is no TCP socket, in process or under TLS
//	connections under a Guard    four a member; 256 others, whose messages are small; 32 subscriptions each: door.go
//	tokens of subjects           4096 a line, of 63 bytes
//	while the server is lost     nothing is queued          Publish gives ErrLost; windows send again
//	states not told yet          4                          a loss and return stand for all later ones
//	Dial                         5 s                        or less by ctx
//	Publish into a full socket   10 s                       then the server counts as lost
//	Close                        1 s a line, 5 s handlers   a handler that still runs is logged
//
// # Locks and goroutines
//
// Outbox: turn, then mu; mu is never held while publishing. door.mu, then whatever NATS locks. Conn.mu and
// stateLoop.mu are leaves: nothing is called under them but reading a subscription's counter. dataLine: writer.mu,
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
// So the flusher of nats.go, which sends what Publish left in its buffer, costs nothing that an explicit flush would
// win back; over a data connection, whose two ways are two connections, the same takes a few µs more.
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
// Permissions by member are to come: Guard tells this process and its peers from all others, and bounds these.
// JetStream keeps buckets and nothing else: gradients never pass it. Headers and reply fields are not used, but for
// answers to NATS's own tools (server.go): the former destroy the alignment of frames, the latter let a message
// choose where an answer goes.
package fabric
