// Package state stores the part of a model that one owner has: dense parameters and rows of embedding tables, in
// versions, with the optimizers that step them. NewDense and NewArray make such state. Shards, modules that shards
// host, and trainers that keep replicas use it.
//
// Dense stores chunks of dense values. The owner chooses the memory of each version: frames that are published, a flat
// space, or a module's tensors. Table is the rows of an embedding table. Array, its only implementation, has a row for
// every key. The place of a row follows from its key (schema.Partitioning), so an Array stores rows and optimizer
// state, and nothing for keys. Rows of large tables are drawn when they are first used (table.go).
//
// A round changes rows in place. The undo log (snapshot.go) keeps their old values if the owner may roll the round back
// or read the previous version, and while a version is copied; nothing else keeps old rows. Exact rows catch up on the
// steps that they missed before they are read or stepped, so the table equals what dense steps would make of it.
//
// optimizer.go is the only place that turns a manifest's optimizer into a kernel's: its slots, its rate at a version,
// the number of its step. A new kind is one case there; slots are allocated, stepped, counted and saved by the names
// that package cuda gives them. A dense chunk counts its steps and a table its rounds, so no number depends on shards.
// Norm is the norm of gradients that are clipped together, in an order that does not depend on how tensors are cut.
//
// snapshot.go has the form in which a version is saved: pieces by the names of their tensors, with slots, steps and
// marks. They restore onto owners with another cut, with equal bits. An open round belongs to the next version, and is
// not saved.
//
// The package knows kernels, shapes and random numbers. It must not know frames, rounds, members, or how anything is
// sent. It reads no clock, does no I/O and starts no goroutine except those that draw initial rows. A newcomer may add
// a Table whose rows are stored elsewhere: table_test.go has the naive one that it must be equal to.
package state
