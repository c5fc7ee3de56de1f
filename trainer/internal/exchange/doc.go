// Package exchange decides what a trainer asks for again: a pure state machine over what was asked for and what has
// arrived. Events and time go in. Actions come out: what to send again, which batch is complete, when to look next.
// Package trainer runs one for each session, under a lock, and does what it says.
//
// # What is outstanding
//
//   - Results (results.go): every round of every open batch. Owners publish them unasked.
//   - Answers (answers.go): rows, pieces of a table, outputs of modules. Each has the number of its request.
//
// A value is put in place in three steps, so that several receivers copy at once. A Claim says whether the caller may
// place it; the caller copies, without the lock; then Place notes it. Whatever comes twice, late or out of turn is not
// claimed.
//
// # One way of sending again
//
// Gradients are not its business: they leave through windows, which repeat what was not acknowledged (fabric.Outbox).
// Everything else that is lost is noticed in one of three ways:
//
//   - An owner's results come in the order of its rounds. One that comes before an earlier one proves that the earlier
//     one was lost. The answer to a pull proves that of everything else that was published before.
//   - The connection is back: what is waited for is asked for at once.
//   - Nothing has come for as long as an answer may take (wait.go). Waits double up to eight times RetryAfter, since
//     what is late is more often not there yet than lost.
//
// # What it must not know
//
// The time of day, I/O, goroutines, frames, values. The scripts in testdata are the place to begin: change one, run
// go test -rewrite and look at the difference.
package exchange
