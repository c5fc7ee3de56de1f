// Package ps is the parameter server. Start runs a server: shards, whose state machine is package shard, and a
// coordinator for each job, behind an embedded NATS server.
//
// # Files
//
//   - Package coordinator decides about a job: who has joined, when it starts, who is late. job.go has the runs of jobs,
//     also those that have ended, and watches the processes of this machine for them. restart.go chooses what an
//     interrupted job restarts from.
//   - control_loop.go is the goroutine of all coordinators. messages.go is what it reads. joins.go takes a join to its
//     coordinator: the job is acquired, the shard servers answer, then trainers are admitted. replication.go has replicas
//     kept, and hands jobs over; successor.go is the ps of a pair that may continue them.
//   - registry.go and acquire.go connect this ps with others: which ps there are, which one coordinates which job, and
//     which trainers took part in ended jobs. Only the registry waits for the control server, on its own goroutine.
//   - hosting.go has the shards on this ps, for any coordinator, and decides whether there is memory for a job.
//     assignment.go is those of one job. A coordinator and shards on one ps exchange the same messages as over the wire,
//     within the control loop.
//   - worker.go is the goroutine of one shard of one job, saving.go writes its part of a version. Package module runs what
//     a shard hosts beside its rounds; modules.go passes frames to it.
//   - server.go runs these parts and answers probes. links.go has the shards' connections, and receives frames.
//   - telemetry.go reports once a second, from what coordinators leave at each tick and shards answer, and receives the
//     reports of others (Options.Telemetry). watch.go times a shard's rounds and kernels, because a shard has no clock.
//
// # Goroutines and locks
//
// The control loop never waits for another server, a worker or a disk. The registry's goroutine makes requests to the
// control server, and sender writes to it; links are dialed, and jobs end, on goroutines of their own. Neither control
// loop nor shard waits for the reporter's goroutines.
//
// Each shard number has its own connection to the embedded server. Its goroutines receive and verify: one for bulk, one
// for lookups, and one for messages without a batch. They step a dense frame themselves if nothing waits, because its
// bytes are in their cache. Everything else is queued for the worker, a goroutine for each shard of each job; lookups
// and pulls go first. The goroutine that steps a shard holds its worker's step lock, and publishes without it (package
// endpoint): one goroutine at a time, in the order of the steps.
//
// The control loop owns the coordinators and the list of jobs. It alone starts and ends workers, and never waits for
// one: a job that ends keeps its memory until its workers have freed all of it. A worker that draws many values checks
// its context meanwhile. Requests to hosted modules have a goroutine each, at most one per trainer and module; as many
// compute at once as there are processors, and the worker waits for them.
//
// Lock order: a step lock, then sending, then the queues' locks; a client slot's, then its module's. No other lock is
// held while another is taken. On a fabric.Bus handlers of trainers run within a send, for an ack while the step lock
// is held: they never wait for it.
//
// # Memory
//
// JobBytes is the memory that a job is promised, and the job is refused if it is not available. MemoryOf lists its
// parts, ProcessBytes adds those of the process, and docs/memory.md explains all of it. Contributions wait in the
// payloads in which they arrived, each trainer within its share of the staged budget: its credit (fabric.Inbox) rises
// as rounds close. The trainers' windows, which follow from the server's own limit (budget.go), bound what is between
// socket and shard; a shard's queue has room for twice that.
//
// # Refusals
//
// A frame that verifies is refused under its own head, so its sender can identify it. A frame that does not verify is
// refused under an empty head, since only the subject names its sender; a damaged frame is retransmitted. The number of
// refusals per second is bounded; those beyond it are only counted.
//
// # What it must not know
//
// HTTP, NVML and dashboards (package ops uses reports), and package trainer: the two meet on the wire only.
//
// # For a newcomer
//
// Start with the scripts of package coordinator. A refusal, a counter or a field of Config is an easy first change.
package ps
