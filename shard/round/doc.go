// Package round aggregates contributions: it records what was contributed to each round and by whom, and computes the
// sums. A round is one aggregation, over one chunk of dense values (Dense) or over all rows of an owner (Sparse).
// NewClock makes the rounds of an owner. Package shard uses them, in a ps and in a trainer that reduces, so both keep
// the same rules:
//
//   - Each lane counts at most once. A contribution is a node of the lane tree. The same node again is a repeat, and a
//     node that overlaps another one is refused. All rounds of a batch agree on the weight of a node (dense.go).
//   - A round closes by lanes, never by a count of messages: when its nodes cover the tree, or the lanes of one trainer
//     if each trainer has rounds of its own. Rounds of one chunk close in the order of their batches; if trainers may
//     run ahead, later rounds wait for their turn.
//   - A Clock (clock.go) decides which rounds trainers share, when a round closes, who receives its result under which
//     number, which results are kept, and which trainers are waited for. The clocks are bounded (rounds of all
//     trainers; sync allows no batch ahead), each (rounds of one trainer) and Grouped (rounds of the next requests). A
//     Line is a sequence of rounds.
//   - Sums follow the lane tree, so the bits do not depend on the order of arrival. The two children of a node are
//     added as soon as both have arrived, in the memory of the left one, and the right one's payload is released at
//     once. So an open round holds the fewest nodes that cover its lanes. The last addition is left to the owner, which
//     divides and may run the optimizer in the same pass. Rows of two children are merged into separate memory. All
//     additions can be left to the end of a round, with the same bits (schema.Summing).
//   - Results over chunks are kept in the frames in which they are published, for as many batches as a trainer may miss
//     (results.go).
//
// The kernels that add 16-bit gradients widen them exactly; sums are float32. Rows of a table may arrive as the bags of
// single lanes. results.go sums them by row first, as a trainer does that sends rows.
//
// # What it must not know
//
// Subjects, windows, optimizers, the time of day. The package does no I/O, starts no goroutine and depends on no map's
// order.
//
// # Costs
//
// In steady state nothing is allocated. A contribution costs a lookup of its chunk, two binary searches among the nodes
// present, and one pass over its values (CheckFinite). Adding two children early costs a pass over three chunks in the
// cache, one more than adding all terms in one pass at the end (SummingAtClose); docs/benchmarks.md has both.
package round
