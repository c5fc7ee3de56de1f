// Package ps is the parameter server: it runs shards, whose state machine is package shard, and a coordinator for
// each job behind an embedded NATS server.
//
// # What is where
//
//   - Package coordinator decides about a job: who has joined, when it starts, who is late. deaths.go watches the
//     processes of this machine for it, saving.go writes the versions that it asks for, ended.go has the runs that are
//     over, restart.go what an interrupted job restarts from.
//   - registry (registry.go, acquire.go) is the place among other ps: which of them there are, who coordinates which
//     job, and who took part in those that have ended. It alone waits for the control server, on a goroutine of its own.
//   - joins.go takes a join to its coordinator: the job is acquired, the shard servers are heard, then trainers are
//     admitted. room.go says whether there is memory for a job.
//   - assignment (assignment.go, assignments.go) is the shards of a job on this ps, whoever coordinates the job. A
//     coordinator and shards on one ps exchange the same messages as over the wire, which stay in the control loop.
//   - Package module has what a shard hosts beside its rounds; modules.go gives it frames. module_liveness.go says
//     whose contexts end.
//   - Server (server.go) runs them and answers probes: links.go has the shards' connections, and takes frames off the
//     wire. A worker (worker.go) is the goroutine of one shard of one job, the control loop (control_loop.go,
//     messages.go) that of all coordinators.
//   - reporter (telemetry.go) says once a second how all this fares, and hears what others say (Options.Telemetry):
//     from what coordinators leave at each tick and shards answer. watch.go times a shard's rounds and kernels, since
//     the shard itself has no clock.
//
// # Goroutines and locks
//
// The control loop never waits for another server, a worker or a disk. The registry's goroutine asks the control
// server, sender sends to it; links are dialed, and jobs end, on goroutines of their own. Neither control loop nor
// shard waits for the reporter's goroutines.
//
// Each shard number has a connection of its own to the embedded server. Its goroutines receive and verify: one for
// bulk, one each for lookups and for what is keyed by no batch. They step a dense frame themselves where nothing
// waits, since its bytes are in their cache. Everything else is queued for the worker, a goroutine for each shard of
// each job; lookups and pulls go first. Whoever steps a shard holds its worker's step lock, and publishes
// without it (package endpoint): one goroutine at a time, in the order of the steps.
//
// The control loop owns the coordinators and the list of jobs. It alone starts and ends workers, and never waits for
// one: a job that ends keeps what it was promised until its workers have freed all of it. A worker that makes or
// draws much looks at its context meanwhile. Requests to hosted modules have a goroutine each, one a trainer and
// module at most, of which as many compute as there are processors; the worker waits for them.
//
// Locks: a step lock, then sending, then its queues'; a client slot's, then its module's; else none is held while
// another is taken. On a fabric.Bus handlers of trainers run within a send, of an ack while the step lock is held:
// they never wait for it.
//
// # Memory
//
// JobBytes is what a job is promised, and refused where it is not there; MemoryOf lists its parts, ProcessBytes adds
// those of the process, and docs/memory.md tells all of it. Contributions wait in the payloads they came in, each
// trainer within its share of the staged budget: its credit (fabric.Inbox) moves as rounds close. What is between
// socket and shard the trainers' windows bound, which follow from the server's own limit (budget.go); a shard's queue
// holds them twice.
//
// # What a refusal tells whom
//
// A frame that verifies is refused under its own head, so its sender knows which one it was. One that does not verify
// is refused under an empty head: its sender's name is known from the subject alone, and a frame that was damaged on
// its way is better sent again than mourned. Refusals are bounded per second; what is held back is counted all the
// same.
//
// # What it must not know
//
// HTTP, NVML and dashboards (package ops builds on reports), and package trainer: the two meet on the wire only.
//
// # For a newcomer
//
// A refusal, a counter or a field of Config is easily added. The scripts of package coordinator are the place to begin.
package ps
