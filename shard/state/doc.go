// Package state is what an owner keeps of a model: dense parameters and the rows of embedding tables, in versions, with the
// optimizers that make one version of the other. Shards, modules that shards host, and trainers that keep replicas all use it.
//
// Dense is chunks of dense values, whose versions lie where the owner wants them: in the frames that are published, in a flat
// space, in a module's tensors. Table is the rows of an embedding table; Array, the first of its kind, has a row for every key.
// A step of rows lies beside the table until the owner commits it, with all other rounds of the batch.
//
// optimizer.go is the only place that makes a kernel's optimizer of a manifest's. A new kind is one case there; slots
// are allocated, staged, counted and saved by the names that package cuda gives them.
//
// The package knows kernels, lanes, shapes and random numbers. It must not know frames, rounds, who asks, or how anything
// travels; it reads no clock, does no I/O and starts no goroutine but those that draw initial rows. A newcomer may add a Table.
package state
