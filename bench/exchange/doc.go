// Package exchange measures how fast gradients travel: from the buffer of a trainer to the sum on a shard and back,
// next to what the network of the same machine gives in the same run.
//
// # What is measured
//
// Every measure is a handful of processes that talk over loopback TCP, started for it and gone after it. They take
// turns, several times over, and figures are medians over the turns.
//
//	raw TCP       one socket, one writer, one reader into a fixed buffer; the best of three sizes of write
//	NATS          the publisher of one connection to the in-process reader of the embedded server
//	fan-in        trainers to the shards, verified and summed; they learn that a batch has closed, not its sums
//	round         two trainers push, the shard averages, both get and apply the result, by trainer.Session
//	requests      16 bytes to the shard's process and back, idle and while a fan-in flows
//	small round   64 KiB from each of two trainers, averaged and back, by trainer.Session
//
// Sums are checked exactly in the first and the last round, and at one element of every parameter in each round: values
// are small integers, so that float32 holds every sum. CPU seconds are those of all processes of a measure over its
// bytes. Trainers share the processors of the host as those of trainer --spawn do.
//
// # What is where
//
// run.go is the driver, and the orders and roles of its members, which are those of a harness (bench/harness). raw.go
// has the two streams, member.go a trainer that takes no results, trainer.go a Session, the server and the values of
// gradients. usage.go says what a process has used, result.go what comes out.
//
// # What it knows, and what it must not know
//
// It knows packages fabric, ps and trainer as a user does, and speaks the protocol as docs/protocol.md has it where a
// fan-in needs a trainer that takes no results. It must not know flags, nor where its figures are written.
package exchange
