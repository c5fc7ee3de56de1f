// Package trainer makes a program a trainer of a job, and runs the job's batches.
//
// # Use
//
// A program says what it learns (NewJob), from which data (Samples), and what gradient a sample has (a function of a
// Step):
//
//	s, err := trainer.Train(ctx, url, job, data, step, trainer.PrintEpochs)
//	err = s.Save(ctx, "model.safetensors") // OpenModel reads it, without a server
//	err = s.Close()
//
// The example Quickstart is a whole program, and docs/programs.md continues from there. Every trainer of a job runs the
// same program with the same job. The coordinator gives each of them its lanes. Data and random numbers of a lane
// depend on (seed, batch, lane) alone, so the weights do not depend on the number of trainers.
//
// A program with a loop of its own uses Join, and a Batch that it holds from Next to Commit. Train is made of these.
// Where it computes whatever lanes it is assigned, it takes batches from NextAssigned, and lost trainers are replaced.
// Run is between the two: it holds the batches for a Workload, which names the keys of a lane and computes the lane.
// NetWorkload makes a Workload of a net.
//
// Package trainer/shuffle assigns the samples of a training set to batches and lanes: each sample once an epoch, in an
// order that follows from the seed. The folder examples has workloads to start from.
//
// # A batch
//
// Join asks the coordinator for a place. The answer names the trainer, its lanes and the shards. Everything else
// follows from these and the manifest (schema.Placement), so nothing is negotiated later. A batch has five steps
// (batch.go):
//
//  1. tables.go, routing.go, lookups.go: the program names the keys of its lanes. The session asks for the distinct keys,
//     in one message a shard and of all shards at once. Of tables by columns or whole it asks for bags, which come back
//     pooled (pooled.go).
//  2. workload.go, step.go: the program computes lane after lane, forward, loss, backward.
//  3. lanes.go, gradients.go, rowgrads.go: gradients are combined up the lane tree, dense ones chunk by chunk while the
//     backward pass of the last lane runs, row gradients table by table. Gradients that travel in 16 bits are rounded
//     once, when the sum of a hosted node is complete (gradients.go), with error feedback where the manifest has it. Row
//     gradients that may travel as bags wait until all lanes of the node are there (rowgrads.go).
//  4. scatter.go, sender.go, connection.go: sums go into frames that were built once. A frame leaves through the
//     window of its shard (fabric.Outbox) as soon as it is complete, or waits in the shard's queue until there is room.
//  5. results.go, parameters.go: results build the next version of the parameters beside the current one. The two
//     versions are swapped when all results of the batch are there.
//
// What was asked for, what has arrived and what is asked for again is decided by a pure state machine, package
// trainer/internal/exchange. exchanging.go drives it.
//
// In bounded, step 5 does not hold up the next batch: up to ahead+1 batches are open. Each is computed on the newest
// version that is complete when it begins. In async the five steps are a trainer's own: it waits for no other. Where
// only tables are async, the dense part is as in sync, and the rest as in async.
//
// A batch with tables pays one round trip. Next returns at once, so the program names the keys of batch b+1 while the
// results of b are under way. Fetch sends the lookups right behind the gradients of b, if the shards have room to park
// them (lookups.go, askAhead). A shard answers when its sparse round of b is over. The answer has the rows of version b+1,
// and says that the round is over.
//
// Where trainers reduce, each trainer runs the shard of its reduce range (reducer.go, package shard) behind a data
// server of its own.
//
// module.go trains modules that a shard hosts: inputs go to the shard and outputs come back.
//
// # Around it
//
// A Session (session.go) goes from one run of the job to the next (restart.go). Each run is a membership
// (membership.go), which trains (run.go, batch.go) and computes the lanes of lost trainers (takeover.go). It is made of
// parts that know less than it does and never call it:
//
//   - connection.go: the trainer's slot, its connections, and every way in which these end (liveness.go, leaving.go)
//   - receive.go: gives each message to the part that waits for it
//   - reader.go: reads what was trained
//   - share.go: answers who asks for parameters that trainers own
//   - telemetry.go: heartbeats, and once a second a report: what the session does, which shard it waits for, the norm of
//     a gradient (norm.go), and in mean a digest of the replica
//   - lr.go: agrees to a change of learning rates, and acts on it from its batch on
//
// clipped.go clips by the global norm. trace.go notes when each bucket left and came back.
//
// # Goroutines
//
// The goroutine that calls does all the work: keys, lanes, sums, frames, publishing. Messages arrive on goroutines of
// fabric's, or within the sender's publish where all members are in one process (fabric.Bus). These goroutines put the
// rows and results that they have claimed in place, and wake the caller. One goroutine of the session (keepTime) drives
// the windows and sends heartbeats, with which reports leave; another composes the reports. While frames wait for room
// in the window to an owner, one goroutine sends them. Per batch a session allocates some hundred bytes; the network
// client allocates each message.
//
// # What it knows, and what it must not know
//
// It knows jobs, lanes, frames and subjects. It must not know how a ps works inside, nor what is trained: the Workload
// knows that. It reads the clock only to wait and to report, and draws random numbers only for the name it joins under.
//
// A newcomer may add a workload in a folder of its own, a field to Progress or Stats, or a way to read weights. The
// order in which rounds leave for an owner (sender.go) is a promise: it keeps trainers from waiting for each other. The
// order of sums (lanes.go) is another: it makes results independent of who computed them.
//
// # What it leaves out
//
// Lanes are computed one after another; a workload uses several processors within a lane. The rows of one table and
// batch lie in one buffer, so they must fit into memory.
package trainer
