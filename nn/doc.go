// Package nn is the layers and losses that the workloads need, over a cuda.Backend: an embedding bag, a linear layer and
// softmax cross-entropy, forward and backward written out.
//
// A layer holds its sizes and scratch memory, which it reuses from call to call, and no parameters: those belong to the
// session, so a layer is handed them. Gradients are sums over the samples, never divided; whoever knows the weight of
// the whole batch divides once. Sums run in the canonical order of package cuda, so that the same samples give the same
// bits on every backend.
//
// The package knows shapes and derivatives. It must not know of jobs, batches, lanes, tables' keys or optimizers. A
// newcomer may add a layer: one file, explicit Forward and Backward, a comment that names every shape, a test against
// finite differences and golden values made by testdata/golden.py with PyTorch. Layers are not safe for concurrent use.
//
// Left out on purpose: a graph that differentiates by itself. Three layers do not need one, and explicit backward passes
// let a workload say when a gradient is final, so that it travels while the rest is computed.
package nn
