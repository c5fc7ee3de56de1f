// Package trainer is what a training program imports: it makes the program a trainer of a job, and runs the job's
// batches.
//
// # The story
//
// Join asks the coordinator for a place. The answer names the trainer, the lanes that it hosts and the shards; from
// these and the manifest everything else follows (schema.Placement), so that nothing is negotiated later. Run then goes
// from batch to batch:
//
//  1. keys.go, split.go, lookups.go: the workload names the keys of its lanes. The distinct ones are asked for, one
//     message a shard and to all shards at once. Keys of batch b+1 are found while the results of b are under way.
//     Tables that shards hold by columns or whole are asked for by bags and come back pooled (pooled.go, bagasks.go).
//  2. workload.go: the workload computes lane after lane, forward, loss, backward.
//  3. lanes.go, gradients.go, rowgrads.go: gradients are added up the lane tree, dense ones chunk by chunk while the
//     backward pass of the last lane runs, row gradients table by table. What the manifest wants in 16 bits is rounded once
//     when the sum of a hosted node is complete (round.go), with error feedback where it wants that. Row gradients that
//     may travel as the bags they come from wait until all lanes of the node are there (baggrads.go).
//  4. buckets.go, shares.go, sender.go: sums go into frames that were built once, and leave through a window a shard
//     (fabric.Outbox) as soon as they are complete.
//  5. results.go, parameters.go: what the shards answer builds the next version of the parameters beside the present
//     one. When everything is there the batch is complete, and only then the versions change places.
//
// timeline.go notes when each bucket left and came back, for those who ask.
//
// pulse.go tells once a second how the session fares, to whoever watches: what it does at the moment and which shard it waits for
// (awaited.go), the norm of a gradient now and then (norm.go), and in mean a digest of the replica, to be compared with the
// others' (fingerprint.go). Measurements space themselves by what they cost.
//
// module.go is another way to train, for modules that a shard hosts: inputs go there and outputs come back (module_ask.go),
// and nothing of the five steps is needed. module_clock.go tells where the time of such a pass goes.
//
// Package trainer/deal deals the samples of a training set to batches and lanes, as a Workload's Keys and Lane need them: each once an
// epoch, in an order that follows from the seed, whoever computes which lane.
//
// session.go, join.go, servers.go and receive.go hold it together: one connection to the coordinator and one to each
// server of shards, membership, signs of life, and every way in which a session can end. weights.go reads what was
// trained: rows for an evaluation, whole tables, the digest.
//
// Where the job's consistency is bounded, step 5 does not hold up the next batch: up to ahead+1 batches are open,
// each batch is computed on the newest version that is complete when it begins, and results build ahead+1 versions
// beside it. In async the same five steps are a trainer's own: its answers are to its own contributions, and it waits
// for no other. Where only tables are async (rowsalone.go), the dense part is as in sync, results over rows are not waited for, and
// the rows of batch b+1 are asked for together with the gradients of b.
//
// # Who does what when
//
// The goroutine that calls Run does all the work: keys, lanes, sums, frames, publishing. Messages arrive on goroutines of
// fabric's, which put rows and results in place and wake it up. One goroutine of the session (keepTime) drives the
// windows and sends beats, with which pulses leave, and another puts these together, for which nothing waits. Per batch a session allocates some hundred bytes; the network client allocates each message.
//
// # What it knows, and what it must not know
//
// It knows jobs, lanes, frames and subjects. It must not know how a shard works inside (package ps), nor what is trained:
// that is the Workload's. It reads no clock but to wait and to report, and no random number but for its joining name.
//
// A newcomer may add a workload in a folder of its own (trainer/packages is one), a field to Progress or Stats, or a
// way to read weights. The order in which rounds leave (sender.go) and in which sums run (lanes.go) are promises: the
// first keeps trainers from waiting for each other, the second makes results independent of who computed them.
//
// # What it leaves out
//
// Only the policy fail exists: a session that loses its server or its job has failed. Lanes are computed one after the
// other; a workload that wants more processors uses them within a lane. One table's rows of one batch must fit memory,
// since they lie in one buffer.
package trainer
