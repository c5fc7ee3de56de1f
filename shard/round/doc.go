// Package round is the state of rounds: what has been contributed to each of them, by whom, and what came out. A
// round is one aggregation: over one chunk of dense values (Dense), or over all rows that an owner has (Sparse).
// Package shard uses it, in a ps and in a trainer that reduces, so that both keep the same rules:
//
//   - Each lane counts at most once. A contribution is a node of the lane tree; the same node again is a repeat, and
//     one that shares lanes with another is refused (dense.go). All rounds of a batch agree on what each node weighs
//     (dense.go).
//   - A round closes by lanes: when its nodes cover the tree, or a trainer's share of it where each trainer has
//     rounds of its own; never by a count of messages. Rounds of one chunk close in the order of their batches; where
//     trainers may run ahead, later ones are kept until it is their turn.
//   - Which rounds trainers share, when one is over, who hears of it and by which number, what is kept of it and who
//     is waited for is a Clock's to say (clock.go): Bounded for rounds of all trainers (sync is no batch ahead), Each
//     for rounds of one trainer, Grouped for those of the next requests. A Line is a sequence of rounds with what it
//     has of each.
//   - Sums run along the lane tree, so that the bits do not depend on the order of arrival. Two children of a node
//     are added as soon as both are there, in the left one's memory, and the right one's is given back at once: what
//     a round holds while it waits for its last lane is the fewest nodes that cover the others. What the last
//     contribution completes is left to the owner, who divides and may run an optimizer in the same pass. Rows of two
//     children are merged into memory of their own. All can be left to the end of a round: the bits are the same
//     (schema.Summing).
//   - Results over chunks are kept in the frames that they are published in, for as many batches as a trainer may
//     lack (results.go).
//
// Gradients of 16 bits are widened by the kernels that add them, exactly, and sums are float32. Rows of a table may
// come as the bags of single lanes; results.go sums them up by row first, which is what a trainer does that sends rows.
//
// # What it must not know
//
// Subjects, windows, optimizers, the time of day: an owner takes frames in, decides what a result is made of the sum,
// and publishes it. The package does no I/O, starts no goroutine and depends on no map's order.
//
// # Costs
//
// In steady state nothing is allocated. A contribution costs a look-up of its chunk, two binary searches among the
// nodes that are there, and one pass over its values (CheckFinite). Adding two children early costs a pass over three
// chunks in the cache, one more than adding all terms in one pass at the end (SummingAtClose); docs/benchmarks.md has
// both.
package round
