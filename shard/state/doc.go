// Package state is what an owner keeps of a model: dense parameters and the rows of embedding tables, in versions, with
// the optimizers that make one version of the other. Shards, modules that shards host, and trainers that keep replicas
// all use it.
//
// Dense is chunks of dense values, whose versions lie where the owner wants them: in the frames that are published, in
// a flat space, in a module's tensors. Table is the rows of an embedding table; Array, the first of its kind, has a row
// for every key. Where it lies follows from the key (schema.Partitioning), so it keeps rows and what optimizers keep of
// them, and nothing of keys. Rows of large tables are drawn when they are wanted (table.go).
//
// A round changes rows in place. The undo log (snapshot.go) has what they were, where the owner may roll the round back
// or read the version before, and while a version is copied; nothing else keeps old rows. Rows that are exact make up
// for the steps that they sat out before anybody reads or steps them, so the table is what dense steps make of it.
//
// optimizer.go is the only place that makes a kernel's optimizer of a manifest's: which slots it has, its rate at a
// version, the number of its step. A new kind is one case there; slots are allocated, stepped, counted and saved by the
// names that package cuda gives them. A dense chunk counts the steps that it had, a table its rounds, so no number
// depends on shards. Norm is the norm of gradients that are clipped together, in an order that no cut shows in.
//
// snapshot.go has the form in which a version is saved: pieces by the names of their tensors, with slots, steps and
// marks. They restore onto owners with another cut, with equal bits. An open round is of the next version, and is not
// saved.
//
// The package knows kernels, shapes and random numbers. It must not know frames, rounds, who asks, or how anything
// travels; it reads no clock, does no I/O and starts no goroutine but those that draw initial rows. A newcomer may add
// a Table, whose rows may lie elsewhere: table_test.go has the naive one to which it must be equal.
package state
