// Package shard is the owner of parameters, tables and their optimizers: a pure state machine, frames in, frames out.
// Package ps runs one behind a server for each shard of a job. Given the same frames in the same order it gives the
// same bits.
//
// # What is where
//
//   - shard.go takes a frame, says what became of it, and what becomes of a round. trainerstate.go has the trainers
//     whose frames it takes, and how far its rounds are. Package round has the sums, and the clocks: which rounds
//     trainers share, when one is over, and who hears of it. No file here asks for the consistency mode.
//   - model.go is the parameters and tables that a shard owns, lookups.go what is published and answered, at once or
//     later, standby.go copies of versions. Package state has values and optimizers.
//   - endpoint puts a shard behind the windows of its contributors, for ps and for trainers that reduce.
//   - shardtest has jobs, frames and a naive model of a job for tests, of other packages too.
//
// # A batch
//
// Trainers look rows up at version b, and contribute sums over nodes of the lane tree. A dense chunk closes when its
// nodes cover all lanes, the sparse round of a shard when those of all its tables do. Outcomes of dense chunks lie
// beside version b, in the frame they are published in. Rows change where they are when their round closes, since each
// trainer has had its own before it contributed. A lookup of batch b+1 may come earlier: it is parked until then, and
// its answer tells its trainer that the round is over. The first contribution to b+1, or pull for it, comes from one
// who holds every result of b from every shard: so b is complete everywhere, and the shard moves on. Until then the
// results of b-1 stay for trainers that missed some.
//
// So it is in sync. The clocks of the other modes differ in this (round/clock.go, grouped.go). Of a table cut by
// columns a shard has some of every row, and so of whole bags, which it pools in the answer to a lookup.
//
// # What it must not know
//
// The time of day, I/O, subjects, windows, goroutines: time and acknowledgements belong to its caller.
//
// # For a newcomer
//
// A refusal is easily added. The scripts in testdata are the place to begin: change one, run go test -rewrite and
// look at the difference. Whatever changes the order of a sum, what closes a round or when rows are committed needs the
// property test in shard_test.go to hold, and a word in docs/protocol.md where the wire shows it.
package shard
