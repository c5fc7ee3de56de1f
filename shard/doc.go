// Package shard owns the parameters and tables of a job, with their optimizers. New makes a shard. Step applies one
// verified frame and returns the frames to publish. Package ps runs one shard behind its server for each shard of a
// job; a trainer that reduces runs one for its range.
//
// A shard is a pure state machine: the same frames in the same order produce the same bits.
//
// # Files
//
//   - shard.go: frames and rounds. trainerstate.go: the trainers whose frames the shard accepts, and the progress of
//     its rounds. Package round has the sums and the clocks: which rounds trainers share, when a round closes, and who
//     receives its result. No file in this package reads the consistency mode.
//   - model.go: the parameters and tables of the shard. lookups.go: answers to requests, immediate or parked.
//     replica.go: copies of versions. Package state has values and optimizers.
//   - Package endpoint puts a shard behind the windows of its contributors.
//   - Package shardtest has jobs, frames and a naive model of a job for tests.
//
// # A batch
//
// Trainers look up rows at version b, and contribute sums over nodes of the lane tree. A dense chunk closes when its
// nodes cover all lanes; the sparse round of a shard closes when the nodes of all its tables do. The outcome of a dense
// chunk is written into the frame that publishes it, and does not overwrite version b. Rows are changed in place when
// their round closes, because each trainer received its rows before it contributed.
//
// A lookup of batch b+1 may arrive earlier. The shard parks it; the answer also proves to the trainer that the round
// has closed. The first contribution to b+1, or pull for it, comes from a trainer that has every result of b from every
// shard. So b is complete everywhere, and the shard moves on. Until then it stores the results of b-1 for trainers that
// missed some.
//
// This describes sync. round/clock.go and round/grouped.go have the clocks of the other modes. If a table is cut by
// columns, a shard has some columns of every row, and therefore pools whole bags in the answer to a lookup.
//
// # What it must not know
//
// The time of day, I/O, subjects, windows, goroutines. Its caller handles time and acknowledgements.
//
// # Changing it
//
// Begin with the scripts in testdata: change one, run go test -rewrite and look at the difference. A new refusal is an
// easy first change. A change to the order of a sum, to what closes a round or to when rows are committed must pass the
// property test in shard_test.go, and is described in docs/protocol.md if frames show it.
package shard
