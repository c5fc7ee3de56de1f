// Package ps is the parameter server: shards that own parameters, tables and optimizers, a coordinator for each job,
// and the server that runs them behind an embedded NATS server.
//
// # What is where
//
//   - Shard (shard.go) is a pure state machine: frames in, frames out. timeline.go says which batches are open and
//     whose rounds they are, dense.go and sparse.go what becomes of a round, whose state package round keeps;
//     tables.go is its rows, lookups.go and results.go what it answers. Given the same frames in the same order it
//     gives the same bits, whoever runs it.
//   - Coordinator (coordinator.go, deadlines.go) is pure too: who has joined, when the job starts, who is late. Time
//     comes in with every call.
//     keepers.go is what it knows of the ps that keep the shards, lr.go how it agrees on a change of the learning rates.
//   - registry (registry.go, claims.go) is the place among other ps: who is announced, who coordinates which job, and who took part in those
//     that have ended (endings.go). It alone waits for the control server, on a goroutine of its own.
//   - joins.go takes who wants to join to a place: the name is claimed, the ps that keep shards are heard, then trainers are admitted.
//   - kept (kept.go, keeping.go) is what this ps keeps of a job, whoever coordinates it. Coordinator and shards on
//     one ps speak as they would over the wire, by letters, which then stay in the desk.
//   - modules (modules.go) are what a shard hosts beside its rounds: whole modules, with module.go what a request does,
//     module_versions.go parameters that are never written while anybody reads them, module_contexts.go what passes leave behind,
//     module_requests.go how requests come together and are answered once, module_life.go whose contexts end.
//   - Server (server.go) runs them: receive.go takes frames off the wire, a worker (worker.go) is the goroutine of one
//     shard of one job, the desk (desk.go, letters.go) the one goroutine of all coordinators.
//   - pulser (pulse.go) says once a second how all this fares, and hears what others say, for who asked (Options.Pulses): from
//     what coordinators leave at each tick (pulse_jobs.go) and shards answer when they are asked (pulse_shards.go). timed.go is the
//     clock around a shard's kernels, which the shard itself does not have. checks.go answers probes.
//
// # A batch
//
// Trainers look rows up at version b, and contribute sums over nodes of the lane tree. A dense chunk closes when its
// nodes cover all lanes, the sparse round of a shard when those of all its tables do. Outcomes lie beside version b,
// dense ones in the frame they are published in, rows in a staging area, until a frame of batch b+1 comes: its sender
// holds every result of b from every shard, so b is complete everywhere, and the shard moves on. Until then version b
// is whole, and so are the results of b-1 for trainers that missed some.
//
// So it is in sync. In bounded rounds of several batches are open at once, and rows change when their round closes.
// Of a table cut by columns a shard has some of every row, and so of whole bags, which it pools in the answer to a lookup.
//
// In async each trainer has rounds of its own, which are applied as they close, and the coordinator lets the job go
// on without a trainer that is lost. In grouped the next N requests make an update, and group.go says which do.
//
// # Goroutines and locks
//
// The desk never waits for another server, and neither desk nor shard ever waits for the pulser's two goroutines. Two goroutines for each shard id receive (one a connection) and verify. A
// dense frame that finds nothing waiting they step themselves, whose bytes are in their cache; everything else is
// queued for the worker, a goroutine for each shard of each job, but lookups and pulls go before what waits
// (turn.go). Whoever steps a shard, and publishes for it, holds its worker's turn. The desk's goroutine owns the
// coordinators and the list of jobs; it alone starts and ends workers, and never waits for one: a job that ends keeps what it was promised
// until its workers say that all is free. Whatever a worker makes or draws that is large looks at its context meanwhile. Requests to hosted modules have
// a goroutine each, one a trainer and module at most, of which as many compute as there are processors; the worker
// waits for them. Locks: a turn, then its queue's; a seat's, then its module's; else none is held while another is taken.
// On a fabric.Bus handlers of trainers run within a send, while the turn is held: they never wait for it.
//
// # Memory
//
// JobBytes is what a job is promised, and refused where it is not there; MemoryOf lists its parts, ProcessBytes adds
// those of the process, and docs/memory.md tells the whole story. Contributions wait in the payloads they came in,
// each trainer within its share of the staged budget: its credit (fabric.Inbox) moves as rounds close. What is
// between socket and shard the trainers' windows bound, which follow from the server's own limit (budget.go); a
// shard's queue holds them twice.
//
// # What a refusal tells whom
//
// A frame that verifies is refused under its own head, so its sender knows which one it was. One that does not verify is
// refused under an empty head: its sender's name is known from the subject alone, and a frame that was damaged on its way
// is better sent again than mourned. Refusals are bounded per second; what is held back is counted all the same.
//
// # What it must not know
//
// HTTP, NVML and dashboards (package ops builds on pulses), and package trainer: the two meet on the wire only. The shard
// and the coordinator moreover know no clock, no I/O, no subject and no goroutine.
//
// # For a newcomer
//
// A refusal, a counter or a field of Config is easily added. The stories in testdata are the place to begin: change one,
// run go test -rewrite and look at the difference. Whatever changes the order of a sum, what closes a round or when
// staged rows are committed needs the property test in shard_test.go to hold, and a word in docs/protocol.md where the
// wire shows it.
package ps
