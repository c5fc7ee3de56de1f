// Package nn is layers and losses over a cuda.Backend, forward and backward written out, in two forms.
//
// EmbeddingBag, Linear and CrossEntropy are single operations: the caller hands them every tensor and says when each
// runs.
//
// Module is a function made of layers, as configuration, written in Go or as JSON (Build): LinearLayer, BagLayer,
// Conv2d, MaxPool2d, ReLU, Dropout, Dropout2d, Flatten, Softmax, logSoftmax, and Sequential of them. A Net is a module
// with the memory of one pass. It runs forward and backward, and says of each parameter's gradient when it is final, so
// that it travels while the rest is computed. Its products and convolutions are a library's (cuda.Dense), whose bits
// they have; images lie inside as that library is fastest with (net.go).
//
// Neither holds parameters: those belong to the session or to the server, so a layer is handed them. Gradients are sums
// over the samples, never divided; the caller that knows the weight of the whole batch divides once. Initial values
// have PyTorch's default bounds and are counter-based (package philox), and so is what dropout drops. Sums of single
// operations run in the canonical order of package cuda, so that the same samples give the same bits on every backend.
//
// The package knows shapes and derivatives. It must not know of jobs, batches, lanes, tables' keys or optimizers. A
// newcomer may add a layer: a type in layers.go, a comment that names every shape, an entry in kinds (net.go), a naive
// version and a case in the tests against finite differences, and golden values made with PyTorch by
// testdata/layers.py. Layers and Nets are not safe for concurrent use; Modules are.
//
// Left out on purpose: a graph that differentiates by itself. A sequence of layers with explicit backward passes is
// what the programs need, and shows when a gradient is final.
package nn
