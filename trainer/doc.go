// Package trainer makes a program a trainer of a job, and runs the job's batches.
//
// # Use
//
// A program says what it learns (NewJob), from what (Samples), and how a sample moves what (a function of a Step):
//
//	s, err := trainer.Train(ctx, url, job, data, step, trainer.PrintEpochs)
//	err = s.Save(ctx, "model.safetensors") // OpenModel reads it, without a server
//	err = s.Close()
//
// The example Quickstart is a whole program, and docs/programs.md goes on from there. Every trainer of a job runs the same program with
// the same job. The coordinator gives each of them its lanes. Data and random numbers of a lane depend on (seed, batch, lane) alone, so
// the weights do not depend on the number of trainers.
//
// Train is made of what a program with a loop of its own uses: Join, and a Batch that it holds from Next to Commit. Run is between
// the two: it holds the batches for a Workload, which names the keys of a lane and computes it; NetWorkload makes one of a net.
//
// Package trainer/deal deals the samples of a training set to batches and lanes: each once an epoch, in an order
// that follows from the seed. The folder examples has workloads to start from.
//
// # A batch
//
// Join asks the coordinator for a place. The answer names the trainer, its lanes and the shards. From these and the
// manifest the rest follows (schema.Placement), so nothing is negotiated later. A batch then goes through (batch.go):
//
//  1. keys.go, split.go, lookups.go: the program names the keys of its lanes. The distinct ones are asked for, in one
//     message a shard and of all shards at once. Keys of batch b+1 are found while the results of b are under way.
//     Tables by columns or whole are asked for by bags and come back pooled (pooled.go, bagasks.go).
//  2. workload.go, step.go: the program computes lane after lane, forward, loss, backward.
//  3. lanes.go, gradients.go, rowgrads.go: gradients are summed up the lane tree, dense ones chunk by chunk while the
//     backward pass of the last lane runs, row gradients table by table. What the manifest wants in 16 bits is rounded
//     once when the sum of a hosted node is complete (round.go), with error feedback where it wants that. Row gradients
//     that may travel as bags wait until all lanes of the node are there (baggrads.go).
//  4. buckets.go, shares.go, sender.go: sums go into frames that were built once. They leave through a window a shard
//     (fabric.Outbox) as soon as they are complete.
//  5. results.go, parameters.go: results build the next version of the parameters beside the present one. The versions
//     change places when all results of the batch are there.
//
// In bounded, step 5 does not hold up the next batch: up to ahead+1 batches are open. Each is computed on the newest
// version that is complete when it begins. In async the five steps are a trainer's own: it waits for no other. Where
// only tables are async (rowsalone.go), the dense part is as in sync, and the rows of batch b+1 are asked for
// together with the gradients of b.
//
// module.go is another way to train, for modules that a shard hosts: inputs go there and outputs come back
// (module_ask.go). module_clock.go measures such a pass.
//
// # Around it
//
// session.go, join.go, servers.go and receive.go hold it together: connections, membership, heartbeats, and every
// way in which a session can end. weights.go reads what was trained. timeline.go notes when each bucket left and
// came back.
//
// pulse.go reports once a second how the session fares: what it does and which shard it waits for (awaited.go), the
// norm of a gradient (norm.go), and in mean a digest of the replica (fingerprint.go). lr.go agrees to a change of
// learning rates and acts on it from its batch on; clipped.go clips by the global norm.
//
// # Goroutines
//
// The goroutine that calls does all the work: keys, lanes, sums, frames, publishing. Messages arrive on
// goroutines of fabric's, or within a publish of whoever sends them where all is in one process (fabric.Bus). They
// put rows and results in place and wake it up. One goroutine of the session
// (keepTime) drives the windows and sends heartbeats, with which reports leave; another composes the reports. Per
// batch a session allocates some hundred bytes; the network client allocates each message.
//
// # What it knows, and what it must not know
//
// It knows jobs, lanes, frames and subjects. It must not know how a shard works inside (package ps), nor what is
// trained: that is the Workload's. It reads no clock but to wait and to report, and no random number but for its
// joining name.
//
// A newcomer may add a workload in a folder of its own, a field to Progress or Stats, or a way to read weights. The
// order in which rounds leave (sender.go) and in which sums run (lanes.go) are promises: the first keeps trainers
// from waiting for each other, the second makes results independent of who computed them.
//
// # What it leaves out
//
// Only the policy fail exists: a session that loses its server or its job has failed. Lanes are computed one after
// the other; a workload that wants more processors uses them within a lane. One table's rows of one batch must fit
// memory, since they lie in one buffer.
package trainer
